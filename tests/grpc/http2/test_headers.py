"""Header blocks of requests: well-formedness, section by section of RFC 9113."""

from __future__ import annotations

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from farm.grpc.http2.headers import LARGEST_LIST, HeaderReader
from tests.support.http2_bytes import AS_READ, REQUEST, Pairs, block


def without(name: str) -> Pairs:
    return tuple(header for header in REQUEST if header[0] != name)


def test_a_request() -> None:
    assert HeaderReader().head(block(*REQUEST)) == (AS_READ, "", False, -1)


@pytest.mark.parametrize(
    ("headers", "length"),
    [
        ((*REQUEST, ("te", "trailers")), -1),
        ((*REQUEST, ("content-length", "17")), 17),
        ((*REQUEST, ("host", "localhost")), -1),
        ((*without(":authority"), ("host", "localhost")), -1),
        ((*REQUEST, ("a", ""), ("a", "b c\td"), ("b", "\xff\x7f")), -1),
        ((*REQUEST, ("cookie", "a=1"), ("cookie", "b=2")), -1),
        (((":method", "OPTIONS"), (":scheme", "http"), (":path", "*")), -1),
    ],
)
def test_what_is_well_formed(headers: Pairs, length: int) -> None:
    head = HeaderReader().head(block(*headers))
    assert (head.fault, head.length) == ("", length)


@pytest.mark.parametrize(
    ("headers", "fault"),
    [
        # 8.2: fields
        ((*REQUEST, ("X-Upper", "a")), "not a header name"),
        ((*REQUEST, ("a b", "a")), "not a header name"),
        ((*REQUEST, ("a:b", "a")), "not a header name"),
        ((*REQUEST, ("\xe4", "a")), "not a header name"),
        ((*REQUEST, ("", "a")), "not a header name"),
        ((*REQUEST, ("a", "b\0")), "NUL byte"),
        ((*REQUEST, ("a", "b\rc")), "line break"),
        ((*REQUEST, ("a", "b\nc")), "line break"),
        ((*REQUEST, ("a", " b")), "a space"),
        ((*REQUEST, ("a", "b ")), "a space"),
        ((*REQUEST, ("a", "\tb"), ("c", "d")), "a space"),
        ((*REQUEST, ("a", "b\t"), ("c", "d")), "a space"),
        # 8.2.2: connection-specific fields
        ((*REQUEST, ("connection", "close")), "HTTP/1.1"),
        ((*REQUEST, ("proxy-connection", "close")), "HTTP/1.1"),
        ((*REQUEST, ("keep-alive", "5")), "HTTP/1.1"),
        ((*REQUEST, ("transfer-encoding", "chunked")), "HTTP/1.1"),
        ((*REQUEST, ("upgrade", "x")), "HTTP/1.1"),
        ((*REQUEST, ("te", "trailers, deflate")), "te must be"),
        # 8.3: pseudo-headers
        ((*REQUEST, (":method", "POST")), "pseudo-headers"),
        ((*REQUEST, (":test", "a")), "pseudo-headers"),
        ((*REQUEST, (":status", "200")), "pseudo-headers"),
        ((("a", "b"), *REQUEST), "pseudo-headers"),
        (((":method", "POST"), *REQUEST), "pseudo-headers"),
        (((":path", "/"), *REQUEST), "pseudo-headers"),
        (((":scheme", "http"), *REQUEST), "pseudo-headers"),
        (((":test", "a"), *REQUEST), "pseudo-headers"),
        (((":", "a"), *REQUEST), "pseudo-headers"),
        (without(":method"), "lacks :method"),
        (without(":scheme"), "lacks :scheme"),
        (without(":path"), "lacks :path"),
        ((), "lacks :method, :path, :scheme"),
        ((*without(":path")[:3], (":path", "")), ":path is"),
        ((*without(":path")[:3], (":path", "*")), ":path is"),
        ((*without(":path")[:3], (":path", "x")), ":path is 'x'"),
        ((*without(":method")[:3], (":method", "")), ":method or"),
        ((*without(":scheme")[:3], (":scheme", "")), ":method or"),
        # 8.1.1 and 8.3.1: other malformed requests
        ((*REQUEST, ("content-length", "x")), "content-length is 'x'"),
        ((*REQUEST, ("content-length", "-1")), "content-length is"),
        ((*REQUEST, ("content-length", "1" * 19)), "content-length is"),
        ((*REQUEST, ("content-length", "1"), ("content-length", "2")), "is repeated"),
        ((*REQUEST, ("host", "localhost"), ("host", "localhost")), "is repeated"),
        ((*REQUEST, ("host", "elsewhere")), "differ"),
    ],
)
def test_what_is_malformed(headers: Pairs, fault: str) -> None:
    reader = HeaderReader()
    for _ in range(2):  # the second time from the cache
        assert fault in reader.head(block(*headers)).fault


@pytest.mark.parametrize(
    ("headers", "fault"),
    [
        ((("a", "b"),), ""),
        ((), ""),
        (((":method", "POST"),), "pseudo-header"),
        (((":a", "POST"),), "pseudo-header"),
        ((("A", "b"),), "not a header name"),
        ((("a", "b\n"),), "line break"),
        ((("connection", "close"),), "HTTP/1.1"),
    ],
)
def test_trailers(headers: Pairs, fault: str) -> None:
    found = HeaderReader().trailers(block(*headers))
    assert fault in found
    assert bool(fault) == bool(found)


def test_headers_that_are_too_long_are_cut_and_the_next_ones_are_read() -> None:
    encoder, reader = Encoder(), HeaderReader()
    long = [*REQUEST, *((f"a{i}", "b" * 1000) for i in range(20)), ("last", "entry")]
    head = reader.head(encoder.encode(long))
    assert head.oversized
    assert head.fault == ""
    assert head.headers.items() >= AS_READ.items()
    assert sum(len(n) + len(v) + 32 for n, v in head.headers.items()) <= LARGEST_LIST
    next_one = reader.head(encoder.encode([*REQUEST, ("last", "entry")]))
    assert next_one.headers == AS_READ | {b"last": b"entry"}


def test_blocks_are_remembered_until_the_table_changes() -> None:
    reader, first_of_table, second = HeaderReader(), b"\xbe", b"\xbf"
    assert reader.head(b"\x40\x01a\x011").headers == {b"a": b"1"}  # and added to the table
    found = reader.head(first_of_table)
    assert found.headers == {b"a": b"1"}
    assert reader.head(first_of_table) is found
    assert reader.head(b"\x40\x01b\x012").headers == {b"b": b"2"}
    for _ in range(2):
        assert reader.head(first_of_table).headers == {b"b": b"2"}
        assert reader.head(second).headers == {b"a": b"1"}
    assert reader.trailers(b"\x40\x01c\x013") == ""
    assert reader.head(first_of_table).headers == {b"c": b"3"}
    reader.head(b"\x41\x40" + b"x" * 64)  # an addition in which all bytes are large
    assert reader.head(first_of_table).headers == {b":authority": b"x" * 64}


names = st.sampled_from(["a", "b", "grpc-timeout", "user-agent", "te2"])


@given(st.lists(st.lists(st.tuples(names, st.sampled_from(["", "1", "2", "x" * 200])), max_size=6)))
def test_any_series_of_requests_is_read_as_it_was_meant(
    requests: list[list[tuple[str, str]]],
) -> None:
    encoder, reader = Encoder(), HeaderReader()
    for more in requests:
        head = reader.head(encoder.encode([*REQUEST, *more]))
        assert head.fault == ""
        assert head.headers == AS_READ | {n.encode(): v.encode() for n, v in more}


def test_what_is_remembered_is_bounded() -> None:
    encoder, reader = Encoder(), HeaderReader()
    encoder.encode([(f"name{i}", "b") for i in range(60)])
    for i in range(500):
        reader.head(block(*REQUEST, (f"a{i}", "b")))
        reader.head(b"\x82" * i)
    assert len(reader._faults) <= 64
    assert len(reader._heads) <= 64
    assert sum(map(len, reader._heads)) <= 64 * 256
