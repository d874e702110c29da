"""Sending within windows, and the work that frames cause: counted, not measured in time."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from farm.grpc.http2.connection import Http2Connection, Opened
from farm.grpc.http2.frames import (
    CONTINUATION,
    DATA,
    ENHANCE_YOUR_CALM,
    HEADERS,
    PADDED,
    PREFACE,
    PREFIX,
    PRIORITY,
    ConnectionFailed,
    frame,
    settings_frame,
)
from farm.grpc.http2.sending import STREAMS, TIMEOUTS, Drained, Stream
from farm.grpc.messages import AROUND, OK
from farm.grpc.messages import HEADERS as HEADERS_BLOCK
from tests.support.counted_work import steps
from tests.support.http2_bytes import (
    ANSWER,
    TRAILERS,
    answer,
    data,
    framed,
    frames_in,
    greeted,
    ping,
    request,
    reset,
    said,
    setting,
    window_update,
)


class Counted(Http2Connection):
    """Counts the streams that it examines to find those that may send."""

    def __init__(self) -> None:
        super().__init__()
        self.visits = 0

    def _send_pending(self, stream: int, of: Stream) -> int:
        self.visits += 1
        return super()._send_pending(stream, of)


def waiting(streams: int, size: int = 100, window: int = 0) -> Counted:
    """A connection with answers that wait for windows."""
    server = Counted()
    server.receive(PREFACE + setting(4, window))
    for i in range(streams):
        server.receive(request(2 * i + 1))
        server.send_data(2 * i + 1, bytes(size))
        server.end(2 * i + 1, TRAILERS)
    server.take()
    server.visits = 0
    return server


def data_of(sent: bytes) -> Counter[int]:
    """Return the bytes of DATA by stream, in the order in which they were sent."""
    found = Counter[int]()
    for kind, _, stream, payload in frames_in(sent):
        if kind == DATA:
            found[stream] += len(payload)
    return found


# Cost of windows


def test_a_window_update_looks_at_no_stream_that_cannot_go_on() -> None:
    server = waiting(1000)
    for _ in range(100):
        server.receive(window_update(0, 1000))
    assert server.visits == 0  # each waits for its own
    server.receive(window_update(501, 10))
    assert server.visits == 1
    assert data_of(said(server)) == {501: 10}


def test_a_connections_window_is_given_to_as_many_as_it_is_enough_for() -> None:
    server = waiting(1000, size=100, window=100)  # 655 were sent at once
    before = server.visits
    for _ in range(100):
        server.receive(window_update(0, 100))
    assert server.visits - before <= 2 * 100


def test_settings_of_many_windows_cost_what_their_frame_does() -> None:
    server = waiting(1000)
    for _ in range(10):
        server.receive(setting(4, 0))
    assert server.visits == 0, "a smaller first window lets nobody go on"
    up_and_down = settings_frame((4, 1), (4, 0)) * 1000
    server.receive(up_and_down)
    assert server.visits <= 1000  # once each, at the end
    server.visits = 0
    server.receive(up_and_down, limit=80)
    assert server.visits <= 80 // 8


def test_streams_take_turns() -> None:
    server = waiting(2, size=10 << 20, window=1 << 30)
    sent: dict[int, list[int]] = {1: [65_535], 3: [0]}  # the first sent as much as it could
    server.receive(window_update(0, 1 << 30), limit=1)
    for _ in range(50):
        for stream, size in data_of(said(server)).items():
            sent[stream].append(sent[stream][-1] + size)
        server.receive(limit=1)
    assert sum(sent[1][-1:] + sent[3][-1:]) == 20 << 20
    most = 64 * 16_384 + 65_535
    assert all(abs(a - b) <= most for a, b in zip(sent[1], sent[3], strict=True))


def test_each_drained_answer_is_told_once() -> None:
    server = greeted()
    server.receive(setting(4, 0) + request(1) + request(3))
    assert not server.send_data(1, b"abc")
    assert not server.send_data(1, b"def")
    assert not server.send_data(3, b"gh")
    assert server.receive(setting(4, 5)) == [Drained(3)]
    assert server.receive(setting(4, 6)) == [Drained(1)]
    assert data_of(said(server)) == {1: 6, 3: 2}
    assert server.receive(setting(4, 7)) == []


def test_who_does_not_read_is_sent_no_bodies() -> None:
    server = greeted()
    server.receive(request(1) + request(3))
    server.hold(True)
    answer(server, 1, ANSWER, b"abc", TRAILERS)
    assert data_of(said(server)) == {}
    server.receive(setting(5, 1 << 20))
    assert not server.send_data(3, b"def")
    server.hold(False)
    assert server.can_send
    assert server.receive() == [Drained(3)]
    assert data_of(said(server)) == {1: 3, 3: 3}
    assert server.open_streams == 1


def test_a_stream_that_ends_while_it_waits_leaves_nothing_behind() -> None:
    server = waiting(10)
    server.receive(reset(1))
    server.receive(window_update(3, 0))
    server.receive(setting(4, 50) + reset(5))
    assert not server._blocked.keys() & {1, 3, 5}
    assert not server.ready.keys() & {1, 3, 5}
    server.receive(setting(4, 100))
    assert server.open_streams == len(server.ready) == len(server._blocked) == 0


def test_windows_are_those_of_a_plain_count() -> None:
    """Compared with a model that visits all streams at every change."""
    chance = random.Random(7)
    server = waiting(20, size=10_000, window=50)
    sent = dict.fromkeys(range(1, 41, 2), 50)
    windows = dict.fromkeys(sent, 0)
    first, connection = 50, 65_535 - 20 * 50
    for _ in range(500):
        if chance.random() < 0.3:
            new = chance.randrange(0, 200)
            server.receive(setting(4, new))
            windows = {s: w + new - first for s, w in windows.items()}
            first = new
        elif chance.random() < 0.7:
            stream, more = chance.choice(list(windows)), chance.randrange(1, 100)
            server.receive(window_update(stream, more))
            windows[stream] += more
        else:
            more = chance.randrange(1, 300)
            server.receive(window_update(0, more))
            connection += more
        for stream, size in data_of(said(server)).items():
            sent[stream] += size
            windows[stream] -= size
            connection -= size
        assert connection >= 0
        if connection:  # all that may be sent has been sent
            assert all(w <= 0 or sent[s] == 10_000 for s, w in windows.items())
    assert len(set(sent.values())) > 1


# Work per step


FLOODS = {
    "SETTINGS": settings_frame((4, 1), (4, 0)),
    "WINDOW_UPDATE": window_update(0, 1),
    "WINDOW_UPDATE of a stream": window_update(1, 1),
    "PING": ping(),
    "PRIORITY": frame(PRIORITY, 0, 1, bytes(5)),
    "unknown": frame(0x77, 0, 0),
    "empty DATA": data(2 * STREAMS - 1),
    "padding": frame(DATA, PADDED, 2 * STREAMS - 1, b"\x02\0\0"),
}


def crowded(streams: int = STREAMS - 1, timeouts: int = 1 << 40) -> Counted:
    """As many streams with a waiting answer, and one that still sends."""
    server = waiting(streams)
    server.receive(request(2 * STREAMS - 1, end=False))
    server._timeouts = timeouts
    return server


@pytest.mark.slow
@pytest.mark.parametrize("flood", FLOODS)
def test_frames_take_work_in_proportion_to_their_number(flood: str) -> None:
    def work(frames: int) -> int:
        server = crowded()

        def receive() -> None:
            server.receive(FLOODS[flood] * frames, limit=64)
            while server.busy:
                server.receive(limit=64)
                server.take()

        return steps(receive)

    assert work(4_000) < 4.5 * work(1_000)


@pytest.mark.parametrize("flood", FLOODS)
def test_no_more_is_done_at_once_than_the_limit(flood: str) -> None:
    server = crowded(500)
    server.receive(FLOODS[flood] * 2_000, limit=64)
    turns = 1
    while server.busy:
        server.visits = 0
        server.receive(limit=64)
        assert 0 < server.spent <= 64 + 64 + 16
        assert server.visits <= 64 // 8
        turns += 1
    assert turns >= 2_000 // 64


def test_requests_count_for_more() -> None:
    server = greeted()
    server.receive(b"".join(request(2 * i + 1) for i in range(100)), limit=160)
    assert 4 < server.open_streams < 16
    server = greeted()
    wholes = b"".join(data(2 * i + 1, b"abc", end=True) for i in range(100))
    server.receive(b"".join(request(2 * i + 1, end=False) for i in range(100)))
    assert len(server.receive(wholes, limit=160)) == 20


def test_what_takes_longer_than_the_limit_is_read_alone() -> None:
    server, long = greeted(), ("a", "b" * 10_000)
    sent = request(1) + request(3, long) + request(5)
    for stream, alone in ((1, False), (None, False), (3, True), (5, False)):
        opened = [e.stream for e in server.receive(sent, 160, alone=alone) if isinstance(e, Opened)]
        assert opened == ([] if stream is None else [stream])
        sent = b""
    parts = frame(HEADERS, 0, 7, bytes(10_000)) + frame(CONTINUATION, 0, 7, b"a")
    server = greeted()
    assert server.receive(parts, 160, alone=False) == []
    assert server.spent == 0
    assert server.busy


def test_with_no_work_to_do_bytes_are_kept() -> None:
    server = greeted()
    assert server.receive(request(1)[:20], 0) == server.receive(request(1)[20:], 0) == []
    assert server.busy
    assert [e.stream for e in server.receive() if isinstance(e, Opened)] == [1]
    assert not server.busy


# Patience


def lasts(sent: bytes, server: Http2Connection | None = None) -> int:
    """Return how often these bytes may be sent."""
    server = server or crowded(10, TIMEOUTS)
    for i in range(3 * TIMEOUTS):
        try:
            server.receive(sent)
        except ConnectionFailed as failed:
            return i if failed.code == ENHANCE_YOUR_CALM else 3 * TIMEOUTS
        server.take()
    return 3 * TIMEOUTS


@pytest.mark.parametrize("flood", FLOODS)
def test_who_sends_what_asks_for_nothing_has_to_go(flood: str) -> None:
    # These settings make the server examine ten answers, which costs patience too.
    most = TIMEOUTS // 5 if flood == "SETTINGS" else 1.1 * TIMEOUTS
    assert TIMEOUTS // 20 < lasts(FLOODS[flood]) < most


def test_rapid_resets() -> None:
    server, streams = greeted(), range(1, 2 * TIMEOUTS + 20, 2)
    with pytest.raises(ConnectionFailed, match="ask for nothing"):
        server.receive(b"".join(request(s) + reset(s) for s in streams))
    assert STREAMS < server._last // 2 <= TIMEOUTS  # all open ones may be cancelled


def test_resets_that_the_client_makes_the_server_say() -> None:
    streams = range(1, 2 * TIMEOUTS, 2)
    wrong = b"".join(request(s) + window_update(s, 0) for s in streams)
    malformed = b"".join(request(s, ("te", "x")) for s in streams)
    for sent in (wrong, malformed):
        with pytest.raises(ConnectionFailed, match="ask for nothing"):
            greeted().receive(sent)


def test_time_gives_patience_back() -> None:
    server = greeted()
    assert TIMEOUTS - 10 < lasts(ping(), server) <= TIMEOUTS
    server.grow_patient(1.0)
    assert 90 < lasts(ping(), server) < 110
    server.grow_patient(1e6)
    assert TIMEOUTS - 10 < lasts(ping(), server) <= TIMEOUTS


def test_answers_give_patience_back() -> None:
    server = greeted()
    rest = ping() * 3 + window_update(0, 3)
    for stream in range(1, 1_001, 2):
        server.receive(request(stream))
        answer(server, stream, ANSWER, b"abc", TRAILERS)
        server.receive(rest)
        server.take()
    assert server._timeouts >= TIMEOUTS - 10


def test_one_byte_at_a_time_is_no_way_to_get_patience() -> None:
    server = greeted()
    server.receive(setting(4, 0) + request(1))
    server.send_data(1, bytes(1 << 20))
    assert lasts(window_update(1, 1), server) <= TIMEOUTS


def test_a_long_download_that_is_told_of_in_small_steps_lasts() -> None:
    server = greeted()
    server.receive(request(1))
    for _ in range(50):
        server.send_data(1, bytes(1 << 20))
        for _ in range(1 << 6):
            server.receive(window_update(1, 1 << 14) + window_update(0, 1 << 14))
        server.take()
    assert server._timeouts > TIMEOUTS // 2


def test_settings_have_few_parameters() -> None:
    server = greeted()
    server.receive(settings_frame(*[(4, 1)] * 32))
    with pytest.raises(ConnectionFailed, match="too many parameters") as caught:
        server.receive(settings_frame(*[(4, 1)] * 33))
    assert caught.value.code == ENHANCE_YOUR_CALM


def test_headers_are_bounded_and_joined_once() -> None:
    start, more = frame(HEADERS, 0, 1), frame(CONTINUATION, 0, 1, b"a" * 1000)
    server = greeted()
    server.receive(start + more * 32)
    with pytest.raises(ConnectionFailed, match="header block is too long") as caught:
        server.receive(more)
    assert caught.value.code == ENHANCE_YOUR_CALM
    parts: Any = server._block
    assert len(parts.parts) == 33  # as they arrived
    with pytest.raises(ConnectionFailed, match="ask for nothing"):
        greeted().receive(start + frame(CONTINUATION, 0, 1) * 20_000)


def test_a_frame_that_comes_byte_by_byte_is_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    joined, join = 0, Http2Connection._joined

    def noted(server: Http2Connection) -> bytes:
        nonlocal joined
        whole = join(server)
        joined += len(whole)
        return whole

    server = greeted()
    server.receive(request(1, end=False))
    whole = data(1, bytes(60_000))
    monkeypatch.setattr(Http2Connection, "_joined", noted)
    for i in range(len(whole)):
        server.receive(whole[i : i + 1])
    assert len(whole) <= joined <= 2 * len(whole)


def test_a_whole_answer_is_the_bytes_of_its_three_frames() -> None:
    message = b"of one message"
    at_once, one_by_one = greeted(), greeted()
    for server in (at_once, one_by_one):
        server.receive(request(1) + request(3))
    assert at_once.answer(3, *AROUND, message)
    answer(one_by_one, 3, HEADERS_BLOCK, framed(message), OK)
    assert b"".join(at_once.take()) == b"".join(one_by_one.take())
    assert at_once.open_streams == one_by_one.open_streams == 1
    assert at_once._timeouts == one_by_one._timeouts
    assert not at_once.answer(3, *AROUND, message)  # it is answered
    assert at_once.take() == []


@pytest.mark.parametrize("narrow", ["stream", "connection", "frame", "held", "receiving", "queued"])
def test_an_answer_that_cannot_be_sent_at_once_is_left_to_the_caller(narrow: str) -> None:
    server = greeted()
    rest_of_window = 65_535 - 4 * (16_000 + PREFIX)
    size = 1 - PREFIX + {"frame": 16_384, "connection": rest_of_window}.get(narrow, 16)
    if narrow == "stream":
        server.receive(setting(4, PREFIX + size - 1))
    server.receive(request(1, end=narrow != "receiving"))
    if narrow == "connection":
        for other in (3, 5, 7, 9):
            server.receive(request(other))
            assert server.answer(other, *AROUND, bytes(16_000))
    elif narrow == "held":
        server.hold(True)
    elif narrow == "queued":
        server.hold(True)
        server.send_data(1, b"more")
        server.hold(False)
    server.take()
    assert not server.answer(1, *AROUND, bytes(size))
    assert server.take() == []
    if narrow in ("stream", "connection", "frame"):
        assert server.answer(1, *AROUND, bytes(size - 1))
