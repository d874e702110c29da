"""Packets of MIP: recorded ones, every split, and random bytes."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import FarmError, InvalidInput, InvalidOutput, ModelFailed, UnsupportedFeature
from farm.protocols.mip.packets import (
    ERRORS,
    HEAD,
    LONGEST_TEXT,
    PING,
    PONG,
    ErrorCode,
    MipFault,
    MipFramer,
    PacketKind,
    PacketRequest,
    decode_head,
    encode_error,
    encode_farm_error,
    encode_request,
    error_of,
)

LIMIT = 1 << 20
TEXTS = bytes.fromhex("01000002 00000001 00000005 68656c6c6f 00000001 00000006 77c3b6726c64")
TEXTS_PACKET = bytes.fromhex("00020000 0000001f") + TEXTS


def found(*parts: bytes, limit: int = LIMIT) -> list[PacketRequest | MipFault]:
    """Return the requests and faults that a framer finds in these parts of a stream."""
    framer = MipFramer(limit)
    out = []
    for part in parts:
        framer.feed(part)
        while (item := framer.next()) is not None:
            out.append(item)
    return out


def packet(hexadecimal: str) -> bytes:
    return bytes.fromhex(hexadecimal)


def test_the_recorded_packets() -> None:
    assert packet("00 01 00 00 00000000") == PING
    assert packet("00 01 01 00 00000000") == PONG
    assert encode_request(TEXTS) == TEXTS_PACKET


@pytest.mark.parametrize(
    ("request_", "code", "breaks"),
    [
        ("01 01 00 00 00000000", 0, True),
        ("00 01 01 00 00000000", 1, False),
        ("00 03 00 00 00000000", 2, False),
        ("00 00 00 00 00000000", 2, False),
        ("09 63 09 00 00000000", 0, True),
        ("00 63 09 00 00000000", 1, False),
        ("00 02 00 00 ffffffff", 3, True),
        ("00 01 00 00 ffffffff", 3, True),
        ("00 63 00 00 ffffffff", 2, True),
        ("47", 0, True),
    ],
)
def test_the_code_of_each_mistake(request_: str, code: int, breaks: bool) -> None:
    framer = MipFramer(LIMIT)
    framer.feed(packet(request_))
    fault = framer.next()
    assert isinstance(fault, MipFault)
    assert (fault.code, framer.broken) == (code, breaks)
    assert framer.next() is None


STREAM = b"".join(
    [
        TEXTS_PACKET,
        PING,
        packet("00 01 00 00 00000003 aabbcc"),  # a ping with a payload
        packet("00 63 00 00 00000002 0101"),  # an unknown kind
        packet("00 02 01 00 00000001 00"),  # a response
        packet("00 02 00 07 00000000"),  # the last byte of these four means nothing
        TEXTS_PACKET,
        b"GET / HTTP/1.1\r\n\r\n",
    ]
)
WHOLE = found(STREAM)


def test_what_the_stream_holds() -> None:
    kinds = [item.kind if isinstance(item, PacketRequest) else item.code for item in WHOLE]
    assert kinds == [
        PacketKind.INFERENCE,
        PacketKind.PING,
        PacketKind.PING,
        ErrorCode.METHOD,
        ErrorCode.SUBTYPE,
        PacketKind.INFERENCE,
        PacketKind.INFERENCE,
        ErrorCode.PROTOCOL,
    ]
    assert [item.payload for item in WHOLE if isinstance(item, PacketRequest)] == [
        TEXTS,
        b"",
        b"",
        b"",
        TEXTS,
    ]


def test_every_split_point() -> None:
    for at in range(len(STREAM) + 1):
        assert found(STREAM[:at], STREAM[at:]) == WHOLE
    assert found(*[STREAM[i : i + 1] for i in range(len(STREAM))]) == WHOLE


@given(st.binary(max_size=300))
def test_any_bytes_are_taken_or_refused(data: bytes) -> None:
    framer = MipFramer(100)
    framer.feed(data)
    items = []
    while (item := framer.next()) is not None:
        items.append(item)
    assert len(items) <= len(data) // HEAD.size + 1


def test_what_is_awaited() -> None:
    framer = MipFramer(LIMIT)

    def waits_for() -> tuple[int | None, bool]:
        return framer.awaited, framer.in_payload

    assert waits_for() == (None, False)
    framer.feed(TEXTS_PACKET[:3])
    assert framer.next() is None
    assert waits_for() == (5, False)
    framer.feed(TEXTS_PACKET[3:10])
    assert framer.next() is None
    assert waits_for() == (29, True)
    framer.feed(TEXTS_PACKET[10:])
    assert framer.next() is not None
    assert (waits_for(), framer.heads) == ((None, False), 1)


def test_a_packet_costs_what_has_come_and_not_what_it_says() -> None:
    tracemalloc.start()
    try:
        framers = []
        for size in (2**32 - 1, 2**30):
            framer = MipFramer(2**30)
            framer.feed(HEAD.pack(0, PacketKind.INFERENCE, 0, 0, size))
            framer.next()
            framers.append(framer)
        assert [framer.broken for framer in framers] == [True, False]
        for _ in range(100):
            framers[0].feed(bytes(10_000))  # read no further
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_payload_that_is_dropped_is_not_kept() -> None:
    framer = MipFramer(LIMIT)
    framer.feed(HEAD.pack(0, PacketKind.PING, 0, 0, LIMIT))
    assert framer.next() == PacketRequest(PacketKind.PING, b"")
    tracemalloc.start()
    try:
        for _ in range(LIMIT // 1024):
            framer.feed(bytes(1024))
            assert framer.next() is None
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()
    framer.feed(PING)
    assert framer.next() == PacketRequest(PacketKind.PING, b"")


def test_every_error_has_a_code() -> None:
    assert set(ERRORS) == set(FarmError.kinds.values()) - {FarmError}


def test_an_error_carries_its_text_as_far_as_it_fits() -> None:
    assert encode_error(ErrorCode.SHAPE, "") == packet("00 00 04 00 00000000")
    answer = encode_farm_error(InvalidInput("ü" * LONGEST_TEXT + "\ud800"))
    _, kind, code, _, size = HEAD.unpack_from(answer)
    assert (kind, code, size) == (PacketKind.ERROR, ErrorCode.SHAPE, LONGEST_TEXT)
    assert answer[HEAD.size :].decode() == "ü" * (LONGEST_TEXT // 2)
    odd = encode_error(ErrorCode.INTERNAL, "x" + "ü" * LONGEST_TEXT)
    assert odd[HEAD.size :].decode() == "x" + "ü" * (LONGEST_TEXT // 2 - 1)


# The client's half


def test_heads_of_answers() -> None:
    assert decode_head(packet("00 02 01 00 0000001f"), PacketKind.INFERENCE).size == 0x1F
    kind, code, size = decode_head(packet("00 00 05 00 00000000"), PacketKind.INFERENCE)
    assert (kind, code, size) == (PacketKind.ERROR, 5, 0)


@pytest.mark.parametrize("head", ["01 02 01 00", "00 01 01 00", "00 02 00 00", "48 54 54 50"])
def test_heads_that_are_no_answers(head: str) -> None:
    with pytest.raises(InvalidOutput, match="the answer"):
        decode_head(packet(head + "00000000"), PacketKind.INFERENCE)


def test_errors_of_servers_with_and_without_a_text() -> None:
    error = error_of(5, b"", "m at here")
    assert type(error) is ModelFailed
    assert error.message == "m at here answers with error code 5: the model failed"
    told = error_of(4, b"entry 3 is\n long \xff", "here")
    assert type(told) is InvalidInput
    assert told.message == "here answers with error code 4: entry 3 is long �"
    assert type(error_of(2, b"", "here")) is UnsupportedFeature
    assert type(error_of(99, b"", "here")) is ModelFailed
