"""Messages over a connected pair of sockets: framing, bounds, and messages of a killed writer."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import tracemalloc
from collections.abc import Iterator, Sequence

import pytest

from farm.call import Buffer
from farm.transports.stream import line as module
from farm.transports.stream.line import LARGE, READ_AHEAD, WRITE_AT_ONCE, StreamLine

Pair = tuple[StreamLine, StreamLine]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = (StreamLine(end) for end in socket.socketpair())
    yield one, other
    one.close()
    other.close()


def as_bytes(frames: Sequence[Buffer] | None) -> list[bytes] | None:
    return None if frames is None else [bytes(frame) for frame in frames]


def carried(frames: Sequence[Buffer], pair: Pair) -> list[bytes] | None:
    """Return the received frames of a message, written and read alternately."""
    one, other = pair
    assert one.send(frames)
    while (received := other.receive()) is None:
        one.write_some() if one.queued else None
    return as_bytes(received)


@pytest.mark.parametrize(
    "lengths",
    [
        [0],
        [1],
        [0, 0, 0],
        [5, 0, 7],
        [LARGE, LARGE],
        [LARGE + 1],
        [READ_AHEAD],
        [3, LARGE + 1, 3],
        [10, 3_000_000, 1, 2_000_000],
        [1] * 3000,
        [LARGE + 1] * 100,
    ],
)
def test_a_message_arrives_as_it_was_sent(lengths: Sequence[int], pair: Pair) -> None:
    frames = [random.Random(n).randbytes(n) for n in lengths]
    assert carried(frames, pair) == frames


def test_messages_of_all_sizes_in_any_pieces() -> None:
    """For any split of the bytes into pieces, the same messages arrive."""
    chance = random.Random(5)
    sizes = [0, 1, 9, LARGE - 1, LARGE, LARGE + 1, READ_AHEAD, 3 * READ_AHEAD]
    messages = [
        [chance.randbytes(chance.choice(sizes)) for _ in range(chance.randint(1, 4))]
        for _ in range(40)
    ]
    raw = b"".join(
        struct.pack("<Q", len(frame) | (0 if i == len(message) - 1 else 1 << 63)) + frame
        for message in messages
        for i, frame in enumerate(message)
    )
    writer, reader = socket.socketpair()
    line = StreamLine(reader)
    received = []
    at = 0
    while at < len(raw):
        piece = raw[at : at + chance.choice([1, 7, 8, 1000, 70_000])]
        at += writer.send(piece)
        while (frames := line.receive()) is not None:
            received.append(as_bytes(frames))
    writer.close()
    while not line.ended():
        if (frames := line.receive()) is not None:
            received.append(as_bytes(frames))
    line.close()
    assert received == messages


def test_large_frames_may_be_written_to_and_small_ones_are_bytes(pair: Pair) -> None:
    one, other = pair
    one.send([b"small", bytes(LARGE + 1)])
    frames = other.receive()
    assert frames is not None
    small, large = frames
    assert type(small) is bytes
    assert isinstance(large, memoryview)
    large[0] = 5


def test_a_large_frame_is_received_into_its_own_memory_only(pair: Pair) -> None:
    one, other = pair
    frame = bytes(8 << 20)
    one.send([frame])
    tracemalloc.start()
    try:
        while (frames := other.receive()) is None:
            one.write_some()
        _, peak = tracemalloc.get_traced_memory()
        received = len(frames[0])
        del frames
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert received == len(frame)
    assert peak < 1.1 * len(frame)
    assert kept < 0.1 * len(frame)


def test_sending_never_waits_and_what_waits_is_counted(pair: Pair) -> None:
    one, other = pair
    frame = bytes(300_000)
    for _ in range(10):
        assert one.send([b"head", frame])
    total = 10 * (8 + 4 + 8 + len(frame))
    assert 0 < one.queued < total
    assert not one.flush(0.0)
    read = 0
    while read < 10:
        if other.receive() is None:
            one.write_some()
        else:
            read += 1
    assert one.queued == 0
    assert one.flush(0.0)


def test_no_more_than_a_bounded_part_is_written_or_read_at_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    monkeypatch.setattr(module, "WRITE_AT_ONCE", 10_000)
    one.send([bytes(50_000)])
    assert one.queued == 50_008 - 10_000
    one.write_some()
    assert one.queued == 50_008 - 20_000
    assert other.receive(3000) is None
    assert len(other._rest) >= 47_000
    one.flush(0.1)
    before = len(other._rest)
    assert other.receive(3000) is None
    assert len(other._rest) == before - 3000
    assert WRITE_AT_ONCE > 10_000


def test_what_was_written_before_a_kill_is_read() -> None:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        ours.close()
        line = StreamLine(theirs)
        for i in range(100):
            line.send([i.to_bytes(4, "little")])
        os.kill(os.getpid(), signal.SIGKILL)
    theirs.close()
    os.waitpid(pid, 0)
    line = StreamLine(ours)
    received = []
    while not line.ended():
        if (frames := line.receive()) is not None:
            received.append(int.from_bytes(frames[0], "little"))
    line.close()
    assert received == list(range(100))


@pytest.mark.parametrize("unread", [False, True])
def test_the_end_is_seen_once_all_is_read(pair: Pair, unread: bool) -> None:
    one, other = pair
    if unread:  # then the kernel says "reset" instead of "end of file"
        other.send([b"never read"])
    one.send([b"last"])
    one.close()
    assert as_bytes(other.receive()) == [b"last"]
    assert other.receive() is None
    assert other.receive() is None
    assert other.ended()
    assert not other.send([b"x"])
    assert not other.flush(0.0)


def test_half_a_message_is_none(pair: Pair) -> None:
    one, other = pair
    one._socket.send(struct.pack("<Q", 100) + b"half")
    one.close()
    assert other.receive() is None
    assert other.receive() is None
    assert other.ended()


def test_who_sends_no_messages_is_cut_off(pair: Pair) -> None:
    one, other = pair
    one._socket.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert other.receive() is None
    assert other.ended()


def test_flush_waits_for_room(pair: Pair) -> None:
    one, other = pair
    one.send([bytes(1_000_000)])
    assert not one.flush(0.01)
    if not os.fork():
        while other.receive() is None:
            pass
        os._exit(0)
    assert one.flush(20.0)
    os.wait()


def test_in_vain_is_said(pair: Pair) -> None:
    one, other = pair
    one.send([bytes(2_000_000)])
    other.close()
    assert not one.flush(5.0)
    assert one.queued == 0
    assert not one.send([b"x"])
    one.close()
    assert one.fileno() == -1


@pytest.mark.parametrize("length", [module.LONGEST_FRAME + 1, module.LONGEST_FRAME])
def test_a_frame_that_memory_does_not_hold_ends_the_line(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def empty(size: int, dtype: object) -> object:
        raise MemoryError(size)

    monkeypatch.setattr("numpy.empty", empty)
    one, other = socket.socketpair()
    line = StreamLine(other)
    one.sendall(struct.pack("<Q", length) + b"x" * 100)
    assert line.receive() is None
    assert line.ended()
    one.close()
    line.close()


def test_a_message_of_frames_without_end_ends_the_line() -> None:
    one, other = socket.socketpair()
    line = StreamLine(other)
    empty = struct.pack("<Q", 1 << 63)
    for _ in range(module.MOST_FRAMES // 1024):
        one.sendall(empty * 1024)
        assert line.receive() is None
    assert line.ended()
    one.close()
    line.close()


def test_idle_lines_share_a_few_buffers() -> None:
    pairs = [tuple(StreamLine(end) for end in socket.socketpair()) for _ in range(100)]
    tracemalloc.start()
    try:
        for one, other in pairs:
            assert one.send([b"a question"])
            assert as_bytes(other.receive()) == [b"a question"]
            assert other.receive() is None
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 10 * READ_AHEAD
    for line in (line for pair in pairs for line in pair):
        line.close()


def test_lines_that_hold_parts_of_messages_keep_their_buffers() -> None:
    """Bytes of ten messages arrive in turns; their lines exchange buffers with one that is idle."""
    ends = [socket.socketpair() for _ in range(10)]
    lines = [StreamLine(end) for _, end in ends]
    one, other = (StreamLine(end) for end in socket.socketpair())
    texts = [f"message {number} ".encode() * (number + 1) for number in range(10)]
    data = [struct.pack("<Q", len(text)) + text for text in texts]
    received: dict[int, list[bytes]] = {}
    for at in range(max(map(len, data))):
        for number, (sender, _) in enumerate(ends):
            sender.send(data[number][at : at + 1])
            if (frames := as_bytes(lines[number].receive())) is not None:
                received[number] = frames
        one.send([b"another"])
        assert as_bytes(other.receive()) == [b"another"]
        assert other.receive() is None
    assert [received[number] for number in range(10)] == [[text] for text in texts]
    for line in (*lines, one, other):
        line.close()
    for sender, _ in ends:
        sender.close()
