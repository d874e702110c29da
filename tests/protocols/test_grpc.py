"""gRPC's own words: messages in their frames, statuses, deadlines."""

from __future__ import annotations

import gzip
import itertools
import zlib

import grpc
import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from farm.protocols.grpc import (
    HEADERS,
    HEADERS_TOO_LARGE,
    LONGEST_TEXT,
    NOT_GRPC,
    OK,
    STATUSES,
    Failed,
    Messages,
    framed,
    timeout_s,
    trailers,
)


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
    with pytest.raises(Failed, match="grpc-timeout"):
        timeout_s(value)


@given(st.lists(st.binary(max_size=20), max_size=5), st.lists(st.integers(0, 130), max_size=8))
def test_messages_come_out_of_any_parts(messages: list[bytes], cuts: list[int]) -> None:
    body = b"".join(map(framed, messages))
    bounds = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    reader = Messages(b"identity", 100)
    found = [message for a, b in itertools.pairwise(bounds) for message in reader.add(body[a:b])]
    reader.end()
    assert found == messages


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "deflate"])
def test_packed_messages_are_unpacked_up_to_the_limit(pack: type) -> None:
    def sent(size: int) -> bytes:
        packed: bytes = pack(bytes(size))
        return b"\x01" + framed(packed)[1:]

    assert Messages(b"gzip", 1000).add(sent(1000)) == [bytes(1000)]
    with pytest.raises(Failed, match="larger than 1000 bytes"):
        Messages(b"gzip", 1000).add(sent(1001))
    with pytest.raises(Failed, match="larger than 1000 bytes"):
        Messages(b"deflate", 1000).add(sent(500_000))


@pytest.mark.parametrize(
    ("encoding", "message", "text"),
    [
        (b"gzip", b"no gzip", "not packed right"),
        (b"gzip", gzip.compress(b"abc", mtime=0)[:-1], "cut short"),
        (b"gzip", gzip.compress(b"abc", mtime=0) + b"x", "a tail"),
        (b"identity", gzip.compress(b"abc", mtime=0), "without grpc-encoding"),
    ],
)
def test_what_is_packed_wrong(encoding: bytes, message: bytes, text: str) -> None:
    with pytest.raises(Failed, match=text):
        Messages(encoding, 1000).add(b"\x01" + framed(message)[1:])


def test_an_unknown_packing() -> None:
    with pytest.raises(Failed, match="'snappy'") as caught:
        Messages(b"snappy", 10)
    assert caught.value.status == "UNIMPLEMENTED"


def test_a_message_too_large_is_refused_by_its_length_alone() -> None:
    reader = Messages(b"identity", 1000)
    assert reader.add(b"\x00\x00\x00") == []
    with pytest.raises(Failed, match="larger than 1000 bytes") as caught:
        reader.add(b"\x03\xe9")
    assert caught.value.status == "RESOURCE_EXHAUSTED"


def test_a_body_that_ends_in_the_middle() -> None:
    reader = Messages(b"identity", 1000)
    reader.add(framed(b"abc") + b"\x00\x00")
    with pytest.raises(Failed, match="in the middle"):
        reader.end()
