"""HPACK decoding: compared with the package hpack, the RFC's tables, and hostile bytes."""

from __future__ import annotations

import pytest
from hpack import Decoder, Encoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.table import HeaderTable
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.grpc.http2 import hpack
from farm.grpc.http2.frames import COMPRESSION_ERROR, ConnectionFailed
from farm.grpc.http2.hpack import HpackDecoder
from tests.support.counted_work import steps

MUCH = 1 << 20


def test_the_tables_are_those_of_the_rfc() -> None:
    assert hpack.STATIC == HeaderTable.STATIC_TABLE
    codes = hpack._codes()
    assert [codes[symbol][0] for symbol in range(257)] == list(REQUEST_CODES)
    assert [codes[symbol][1] for symbol in range(257)] == list(REQUEST_CODES_LENGTH)


names = st.sampled_from([b"a", b"b", b"grpc-timeout", b":path", b"content-type"])
values = st.binary(max_size=40) | st.sampled_from([b"x" * 3000, b"y" * 5000, bytes(range(256))])
fields = st.tuples(names, values, st.booleans())


@given(st.lists(st.tuples(st.lists(fields, max_size=6), st.integers(0, 4096)), max_size=12))
def test_any_series_of_blocks_is_read_as_it_was_meant(
    blocks: list[tuple[list[tuple[bytes, bytes, bool]], int]],
) -> None:
    """The third value of a field is whether it stays out of the tables; each block has a size."""
    decoder, encoder, theirs = HpackDecoder(), Encoder(), Decoder()
    for wanted, size in blocks:
        for huffman in (True, False):
            encoder.header_table_size = size
            packed = encoder.encode(wanted, huffman=huffman)
            read, listed = decoder.decode(packed, MUCH)
            assert read == [(name, value) for name, value, _ in wanted]
            assert listed == sum(len(name) + len(value) + 32 for name, value in read)
            assert [tuple(f) for f in theirs.decode(packed, raw=True)] == read


def test_what_is_beyond_the_limit_is_left_out_and_still_enters_the_table() -> None:
    encoder, decoder = Encoder(), HpackDecoder()
    first = encoder.encode([("a", "1"), ("b", "x" * 500), ("c", "3")])
    assert decoder.decode(first, 100) == ([(b"a", b"1")], 34 + 533 + 34)
    again = encoder.encode([("a", "1"), ("b", "x" * 500), ("c", "3")])
    assert len(again) == 3
    assert decoder.decode(again, MUCH)[0] == [(b"a", b"1"), (b"b", b"x" * 500), (b"c", b"3")]


def test_the_old_entries_of_a_long_table_have_numbers_of_several_bytes() -> None:
    encoder, decoder = Encoder(), HpackDecoder()
    wanted = [(f"a{i}", "") for i in range(80)]
    for _ in range(2):
        read, _ = decoder.decode(encoder.encode(wanted), MUCH)
        assert read == [(name.encode(), b"") for name, _ in wanted]


def test_the_table_is_bounded() -> None:
    decoder = HpackDecoder()
    for i in range(1000):
        decoder.decode(b"\x40\x01a\x7f\x00" + bytes(127), MUCH)
        decoder.decode(b"\x40\x03%03d\x00" % i, MUCH)
        assert sum(len(n) + len(v) + 32 for n, v in decoder._added) <= hpack.TABLE_BYTES
    decoder.decode(b"\x40\x01a\x7f\xe1\x1f" + bytes(127 + 0x61 + (0x1F << 7)), MUCH)
    assert decoder._added == []  # larger than the table: it ends empty, section 4.4


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # no entry 0
        b"\xbe",  # the dynamic table is still empty
        b"\xff\xff\xff\xff\xff\x01",  # a number that does not end
        b"\x7f\x07\x00",  # a name that is in no table
        b"\x82\x21",  # the table's size in the middle of a block
        b"\x3f\xe2\x1f",  # a larger table than announced: 4097
        b"\x20\x20\x20",  # three updates of the size
        b"\x40",  # cut short
        b"\x3f",  # in the number of a size
        b"\x00\x7f",  # in that of a length
        b"\x00\x05abc",
        b"\xff",
        b"\x00\x85\xf2\xb2\x4a\x84\xff\x84\x49\x50\x9f\xff",  # more than 7 bits of padding
        b"\x00\x85\xf2\xb2\x4a\x84\xff\x83\x49\x50\x90",  # padded with zeros
        # The end-of-string symbol inside.
        b"\x00\x85\xf2\xb2\x4a\x84\xff\x87\x49\x51\xff\xff\xff\xfa\x7f",
    ],
)
def test_what_is_no_block_is_refused(block: bytes) -> None:
    with pytest.raises(ConnectionFailed, match="headers: ") as caught:
        HpackDecoder().decode(block, MUCH)
    assert caught.value.code == COMPRESSION_ERROR


@given(st.binary(max_size=200))
@settings(max_examples=5 * settings().max_examples)
def test_no_bytes_make_it_fail_in_another_way(block: bytes) -> None:
    try:
        found, _ = HpackDecoder().decode(block, MUCH)
    except ConnectionFailed:
        return
    assert [tuple(f) for f in Decoder().decode(block, raw=True)] == found


@pytest.mark.parametrize(
    "part",
    [
        b"\x82",
        b"\x00\x01a\x01b",
        b"\x40\x01a\x00",
        b"\x40\x00\x00",
        b"\x00\x00\x84\xff\xf8\xff\xf9",
    ],
    ids=["indexed", "literal", "added", "empty", "huffman"],
)
def test_a_block_takes_work_in_proportion_to_its_bytes(part: bytes) -> None:
    def work(times: int) -> int:
        decoder, block = HpackDecoder(), part * times
        return steps(lambda: decoder.decode(block, 1000))

    assert work(4_000) < 4.5 * work(1_000)
