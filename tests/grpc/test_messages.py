"""gRPC over HTTP/2: framing of messages, statuses, deadlines."""

from __future__ import annotations

import gzip
import itertools
import random
import zlib
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from farm.bodies.body import HeldBody
from farm.grpc import messages as grpc_words
from farm.grpc.messages import (
    HEADERS,
    HEADERS_TOO_LARGE,
    LONG,
    LONGEST_TEXT,
    NOT_GRPC,
    OK,
    SHORT,
    STATUSES,
    GrpcFailure,
    Messages,
    Packed,
    PackedLong,
    timeout_s,
    trailers,
)
from tests.support.http2_bytes import framed


def headers(block: bytes) -> dict[str, str]:
    return {str(name): str(value) for name, value in Decoder().decode(block)}


def test_the_statuses_are_those_of_grpc() -> None:
    assert {code.name: code.value[0] for code in grpc.StatusCode} == STATUSES


def test_the_blocks_are_what_they_should_be() -> None:
    assert headers(HEADERS) == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-accept-encoding": "identity,deflate,gzip",
    }
    assert headers(OK) == {"grpc-status": "0"}
    assert headers(NOT_GRPC) == {":status": "415", "content-type": "text/plain"}
    assert headers(HEADERS_TOO_LARGE) == {":status": "431"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text", "plain text"),
        ("100 %", "100 %25"),
        ("ü\n", "%C3%BC%0A"),
        ("\ud800", "?"),
        ("x" * 5000, "x" * (LONGEST_TEXT - 3) + "..."),
    ],
)
def test_the_text_of_an_error_is_printable_ascii(text: str, expected: str) -> None:
    later = headers(trailers("NOT_FOUND", text, alone=False))
    assert later == {"grpc-status": "5", "grpc-message": expected}
    alone = headers(trailers("NOT_FOUND", text, alone=True))
    assert alone == {":status": "200", "content-type": "application/grpc", **later}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"2H", 7200.0),
        (b"3M", 180.0),
        (b"4S", 4.0),
        (b"500m", 0.5),
        (b"20u", 20e-6),
        (b"99999999n", 0.099999999),
        (b"0m", 0.0),
    ],
)
def test_deadlines(value: bytes, expected: float) -> None:
    assert timeout_s(value) == pytest.approx(expected)


@pytest.mark.parametrize("value", [b"", b"S", b"1", b"-1S", b"1.5S", b"123456789S", b"1s"])
def test_what_is_no_deadline(value: bytes) -> None:
    with pytest.raises(GrpcFailure, match="grpc-timeout"):
        timeout_s(value)


Message = bytes | HeldBody | Packed | PackedLong


def read(reader: Messages, part: bytes) -> list[Message]:
    """Return the messages that this part completes."""
    found = []
    whole = reader.add(part)
    while (message := reader.next()) is not None:
        found.append(message)
    assert bool(found) == whole
    return found


@given(
    st.lists(st.binary(max_size=20) | st.just(bytes(9000)), max_size=5),
    st.lists(st.integers(0, 130) | st.integers(0, 30_000), max_size=8),
)
def test_messages_come_out_of_any_parts(messages: list[bytes], cuts: list[int]) -> None:
    body = b"".join(map(framed, messages))
    bounds = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    reader, later = Messages(b"identity", 10_000), Messages(b"identity", 10_000)
    found = []
    for a, b in itertools.pairwise(bounds):
        found += read(reader, body[a:b])
        later.add(body[a:b])
        assert reader.is_partial == bool(reader._have)
    reader.end()
    assert found == messages
    assert [later.next() for _ in messages] == messages
    assert later.next() is None


@given(
    st.lists(st.binary(max_size=9) | st.integers(-2, 2).map(lambda n: bytes(LONG + n)), max_size=4),
    st.lists(st.integers(1, 2 * LONG), max_size=6),
    st.booleans(),
)
def test_long_messages_are_collected_as_they_come(
    messages: list[bytes], cuts: list[int], at_once: bool
) -> None:
    """However they are split, and with other messages before and after."""
    body = b"".join(map(framed, messages))
    bounds = [0, *sorted({min(cut, len(body)) for cut in cuts}), len(body)]
    reader, found = Messages(b"identity", 1 << 20), list[Message | None]()
    for a, b in itertools.pairwise(bounds):
        if at_once:
            found += read(reader, body[a:b])
        else:
            reader.add(body[a:b])
    if not at_once:
        found += [reader.next() for _ in messages]
    reader.end()
    assert reader.next() is None
    for message, expected in zip(found, messages, strict=True):
        if isinstance(message, HeldBody):
            assert len(expected) > LONG
            message = message.read()
        assert message == expected


@pytest.mark.parametrize("kind", [bytes, memoryview])
@pytest.mark.parametrize(("size", "parts"), [(0, 1), (LONG, 1), (LONG + 1, 2)])
def test_a_long_answer_is_not_copied(kind: type[Any], size: int, parts: int) -> None:
    message = kind(bytes(size))
    found = grpc_words.framed(message)
    assert b"".join(found) == b"\0" + size.to_bytes(4, "big") + bytes(size)
    assert len(found) == parts
    assert parts == 1 or found[1] is message


def test_a_packed_long_message_is_collected_packed() -> None:
    packed = gzip.compress(random.Random(0).randbytes(LONG + 100))
    reader = Messages(b"gzip", 1 << 20)
    framed_ = b"\x01" + framed(packed)[1:]
    reader.add(framed_[: LONG // 2])
    reader.add(framed_[LONG // 2 :] + framed(b"next"))
    message = reader.next()
    assert isinstance(message, PackedLong)
    assert message.collected.read() == packed
    assert message.limit == 1 << 20
    assert reader.next() == b"next"


def test_what_follows_a_message() -> None:
    reader = Messages(b"identity", 100)
    reader.add(framed(b"abc"))
    before = reader.has_rest
    reader.add(b"\0")
    assert (before, reader.has_rest) == (False, True)
    with pytest.raises(GrpcFailure, match="expected 0 or 1"):
        Messages(b"identity", 100).add(b"\x02\0\0\0\0")


def packed_as(pack: Callable[[bytes], bytes], message: bytes) -> bytes:
    return b"\x01" + framed(pack(message))[1:]


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "deflate"])
@pytest.mark.parametrize("limit", [1000, SHORT - 1, SHORT, SHORT + 1, 1_000_000])
def test_packed_messages_and_the_limit(pack: Callable[[bytes], bytes], limit: int) -> None:
    def unpacked(size: int) -> bytes:
        reader = Messages(b"gzip", limit)
        reader.add(packed_as(pack, bytes(size)))
        message = reader.next()
        if isinstance(message, Packed):
            assert size >= SHORT
            message = message.unpack()
        assert isinstance(message, bytes)
        return message

    for size in (limit - 1, limit):
        assert unpacked(size) == bytes(size)
    for size in (limit + 1, 500_000 + limit):
        with pytest.raises(GrpcFailure, match=f"larger than {limit} bytes") as caught:
            unpacked(size)
        assert caught.value.status == "RESOURCE_EXHAUSTED"


def test_a_message_unpacks_to_so_much_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_words, "UNPACKED_FREE", 1 << 20)
    reader = Messages(b"gzip", 1 << 30)
    reader.add(packed_as(gzip.compress, bytes(1 << 20)))
    free = reader.next()
    assert isinstance(free, Packed)
    assert free.unpack() == bytes(1 << 20)
    bomb = packed_as(gzip.compress, bytes(8 << 20))
    reader.add(bomb)
    message = reader.next()
    assert isinstance(message, Packed)
    assert len(message._first) == SHORT  # the event loop does no more for it
    with pytest.raises(GrpcFailure, match="more than 128 times its bytes") as caught:
        message.unpack()
    assert caught.value.status == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    ("encoding", "message", "text"),
    [
        (b"gzip", b"no gzip", "cannot decompress"),
        (b"gzip", gzip.compress(b"abc", mtime=0)[:-1], "cut short"),
        (b"gzip", gzip.compress(b"abc", mtime=0) + b"x", "a tail"),
        (b"gzip", gzip.compress(bytes(100_000), mtime=0)[:-1], "cut short"),
        (b"gzip", gzip.compress(bytes(100_000), mtime=0) + b"x", "a tail"),
        (b"identity", gzip.compress(b"abc", mtime=0), "without grpc-encoding"),
    ],
)
def test_what_is_packed_wrong(encoding: bytes, message: bytes, text: str) -> None:
    reader = Messages(encoding, 1 << 20)
    reader.add(b"\x01" + framed(message)[1:])
    with pytest.raises(GrpcFailure, match=text):
        read_whole(reader)


def read_whole(reader: Messages) -> Message | None:
    message = reader.next()
    return message.unpack() if isinstance(message, Packed) else message


def test_an_unknown_packing() -> None:
    with pytest.raises(GrpcFailure, match="'snappy'") as caught:
        Messages(b"snappy", 10)
    assert caught.value.status == "UNIMPLEMENTED"


def test_a_message_too_large_is_refused_by_its_length_alone() -> None:
    reader = Messages(b"identity", 1000)
    assert not reader.add(b"\x00\x00\x00")
    with pytest.raises(GrpcFailure, match="larger than 1000 bytes") as caught:
        reader.add(b"\x03\xe9")
    assert caught.value.status == "RESOURCE_EXHAUSTED"


def test_a_body_that_ends_in_the_middle() -> None:
    reader = Messages(b"identity", 1000)
    reader.add(framed(b"abc") + b"\x00\x00")
    assert reader.next() == b"abc"
    with pytest.raises(GrpcFailure, match="in the middle"):
        reader.end()
