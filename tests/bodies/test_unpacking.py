"""Compressed bodies: unpacked, and refused if that takes too much."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest

from farm.bodies.unpacking import MOST_SWELLING, SWELLS_FREELY, Refused, unpacked

GZIPPED = gzip.compress(b"abc", mtime=0)  # without the time, so that test ids stay the same


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        (b"gzip", GZIPPED),
        (b"x-gzip", GZIPPED),
        (b"GZIP", GZIPPED),
        (b"deflate", zlib.compress(b"abc")),
        (b"identity", b"abc"),
        (b"", b"abc"),
        (b"gzip", gzip.compress(b"a", mtime=0) + gzip.compress(b"bc", mtime=0)),
        (b"gzip", GZIPPED + 3000 * gzip.compress(b"", mtime=0)),
    ],
)
def test_compressed_bodies_are_unpacked(encoding: bytes, packed: bytes) -> None:
    assert unpacked(packed, {b"content-encoding": encoding}, 100) == b"abc"


@pytest.mark.parametrize(
    ("encoding", "packed", "status", "text"),
    [
        (b"br", b"abc", 415, "Content-Encoding 'br' is not understood here"),
        (b"gzip", b"abc", 400, "the body is not gzip: "),
        (b"gzip", GZIPPED[:-4], 400, "is cut short or has a tail"),
        (b"gzip", GZIPPED + b"tail", 400, "the body is not gzip: "),
        (b"gzip", GZIPPED + GZIPPED[:-4], 400, "is cut short or has a tail"),
        (b"gzip", GZIPPED + GZIPPED + b"tail", 400, "the body is not gzip: "),
        (b"deflate", zlib.compress(b"abc") * 2, 400, "is cut short or has a tail"),
        (b"gzip", GZIPPED + gzip.compress(bytes(10**6), mtime=0), 413, "longer than 10000 bytes"),
        (b"gzip", GZIPPED * 3334, 413, "longer than 10000 bytes"),
        (b"gzip", gzip.compress(bytes(10**6), mtime=0), 413, "longer than 10000 bytes"),
        (b"gzip", b"", 400, "is cut short or has a tail"),
    ],
)
def test_compressed_bodies_that_cannot_be_are_refused(
    encoding: bytes, packed: bytes, status: int, text: str
) -> None:
    with pytest.raises(Refused) as caught:
        unpacked(packed, {b"content-encoding": encoding}, 10**4)
    assert caught.value.status == status
    assert text in caught.value.message


def test_a_body_that_swells_is_not_swallowed_whole() -> None:
    packed = gzip.compress(bytes(5 * 10**6))
    tracemalloc.start()
    try:
        with pytest.raises(Refused, match="longer than 100000 bytes"):
            unpacked(packed, {b"content-encoding": b"gzip"}, 10**5)
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


def test_a_long_body_may_not_swell_much() -> None:
    limit, headers = 1 << 30, {b"content-encoding": b"deflate"}
    little = zlib.compress(bytes(SWELLS_FREELY))
    assert len(unpacked(little, headers, limit)) == SWELLS_FREELY > MOST_SWELLING * len(little)
    bomb = zlib.compress(bytes(20 * 10**6))
    with pytest.raises(Refused, match=f"more than {MOST_SWELLING} times its size") as caught:
        unpacked(bomb, headers, limit)
    assert caught.value.status == 413


def test_many_members_do_not_swell_freely_either() -> None:
    packed = gzip.compress(b"abc") * 10 + gzip.compress(bytes(10 * SWELLS_FREELY))
    with pytest.raises(Refused, match=f"more than {MOST_SWELLING} times its size"):
        unpacked(packed, {b"content-encoding": b"gzip"}, 10**9)
