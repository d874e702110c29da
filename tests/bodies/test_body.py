"""Bodies as they arrive: short ones as bytes, long ones in files, compressed ones bounded."""

from __future__ import annotations

import gzip
import os
import zlib

import pytest

from farm.bodies.body import HEAVY_BYTES, Gathering, HeldBody
from farm.bodies.unpacking import Refused

LIMIT = 100 << 20


def gathered(*parts: bytes, encoding: bytes = b"", limit: int = LIMIT) -> bytes | HeldBody:
    body = Gathering(limit)
    for part in parts:
        body.add(part)
    assert body.size == sum(map(len, parts))
    return body.whole({b"content-encoding": encoding} if encoding else {})


def test_a_short_body_is_bytes() -> None:
    assert gathered() == b""
    part = b"abc"
    assert gathered(part) is part
    assert gathered(b"a", b"b") == b"ab"
    assert gathered(gzip.compress(b"abc"), encoding=b"gzip") == b"abc"


@pytest.mark.parametrize("encoding", [b"", b"identity"])
def test_a_body_above_the_bound_is_held(encoding: bytes) -> None:
    assert gathered(bytes(HEAVY_BYTES)) == bytes(HEAVY_BYTES)
    body = gathered(b"a", bytes(HEAVY_BYTES), b"b", encoding=encoding)
    assert isinstance(body, HeldBody)
    assert (body.size, body.encoding) == (HEAVY_BYTES + 2, b"")
    assert bytes(body.view()) == b"a" + bytes(HEAVY_BYTES) + b"b"


BOMB = zlib.compress(bytes(8 << 20))


@pytest.mark.parametrize("encoding", [b"gzip", b"x-gzip", b"deflate", b"GZIP"])
def test_a_bomb_is_held_as_it_came(encoding: bytes) -> None:
    packed = BOMB
    body = gathered(packed, encoding=encoding)
    assert isinstance(body, HeldBody)
    assert body.encoding == encoding.lower()
    assert bytes(body.view()) == packed


@pytest.mark.parametrize("encoding", [b"br", b"gzip"])
def test_a_short_body_that_cannot_be_unpacked_is_refused_at_once(encoding: bytes) -> None:
    with pytest.raises(Refused):
        gathered(b"no gzip", encoding=encoding)


def test_its_file_ends_with_it() -> None:
    body = HeldBody(LIMIT)
    body.add(b"abc")
    view, descriptor = body.view(), body.descriptor
    del body
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(descriptor)
    assert bytes(view) == b"abc"


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_raw_numbers_are_collected_in_memory() -> None:
    before = open_files()
    body = Gathering(LIMIT, HEAVY_BYTES + 3)
    for part in (b"a", bytes(HEAVY_BYTES), b"bc"):
        body.add(part)
    held = body.whole({})
    assert isinstance(held, HeldBody)
    assert held.size == HEAVY_BYTES + 3
    assert held.view() == b"a" + bytes(HEAVY_BYTES) + b"bc"
    assert held.view().readonly
    assert open_files() == before


def test_memory_moves_to_a_file_for_a_reader() -> None:
    body = HeldBody(LIMIT, 6)
    body.add(b"abc")
    body.add(b"de")  # less than announced
    view = body.view()
    assert os.pread(body.descriptor, 100, 0) == b"abcde"
    assert body.descriptor == body.descriptor
    assert bytes(view) == bytes(body.view()) == b"abcde"
    assert body.read() == b"abcde"


def test_more_than_was_announced_is_kept_too() -> None:
    body = HeldBody(LIMIT, 4)
    for part in (b"abc", b"def", b"g"):
        body.add(part)
    assert bytes(body.view()) == b"abcdefg"
