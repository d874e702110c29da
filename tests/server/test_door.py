"""What all doors share: the hints of a request, and values of headers."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest

from farm.call import Hints
from farm.errors import InvalidInput
from farm.server.door import (
    MOST_SWELLING,
    SWELLS_FREELY,
    Refused,
    header_value,
    hints_of,
    unpacked,
)

GZIPPED = gzip.compress(b"abc", mtime=0)  # without the time, so that test ids stay the same


def hints(*headers: tuple[bytes, bytes], user: str = "", peer: str = "10.0.0.7") -> Hints:
    return hints_of(dict(headers), peer, user)


def test_a_client_is_its_own_name_or_its_user_name_or_its_host() -> None:
    assert hints() == Hints(client="10.0.0.7")
    assert hints(user="ann") == Hints(client="ann")
    assert hints((b"farm-client", b"chain 3"), user="ann") == Hints(client="chain 3")
    assert len(hints((b"farm-client", b"x" * 1000)).client) == 100
    assert hints(peer="") == Hints(client="")
    assert hints((b"farm-priority", b"2"), user="ann") == Hints(client="ann", priority=2)


def test_priority_and_deadline_are_numbers() -> None:
    given = hints((b"farm-priority", b"-3"), (b"farm-deadline", b"2.5"))
    assert (given.priority, given.deadline_s) == (-3, 2.5)


@pytest.mark.parametrize("text", [b"", b"high", b"1.5", b"1001", b"-1001", b"9" * 5000, b"\xff"])
def test_other_priorities_are_refused(text: bytes) -> None:
    with pytest.raises(InvalidInput, match="expected a whole number from -1000 to 1000"):
        hints((b"farm-priority", text))


@pytest.mark.parametrize("text", [b"", b"soon", b"0", b"-1", b"nan", b"inf", b"1e999", b"\xff"])
def test_other_deadlines_are_refused(text: bytes) -> None:
    with pytest.raises(InvalidInput, match="expected seconds above 0"):
        hints((b"farm-deadline", text))


def test_header_values_are_printable() -> None:
    assert header_value("node3/4412-a1b2") == b"node3/4412-a1b2"
    assert header_value("n\u00f6de\r\nx: y") == b"n?de??x: y"


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        (b"gzip", GZIPPED),
        (b"x-gzip", GZIPPED),
        (b"GZIP", GZIPPED),
        (b"deflate", zlib.compress(b"abc")),
        (b"identity", b"abc"),
    ],
)
def test_compressed_bodies_are_unpacked(encoding: bytes, packed: bytes) -> None:
    assert unpacked(packed, {b"content-encoding": encoding}, 100) == b"abc"


@pytest.mark.parametrize(
    ("encoding", "packed", "status"),
    [
        (b"br", b"abc", 415),
        (b"gzip", b"abc", 400),
        (b"gzip", GZIPPED[:-4], 400),
        (b"gzip", GZIPPED + b"tail", 400),
        (b"gzip", gzip.compress(bytes(10**6), mtime=0), 413),
        (b"gzip", b"", 400),
    ],
)
def test_compressed_bodies_that_cannot_be_are_refused(
    encoding: bytes, packed: bytes, status: int
) -> None:
    with pytest.raises(Refused) as caught:
        unpacked(packed, {b"content-encoding": encoding}, 10**4)
    assert caught.value.status == status


def test_a_body_that_swells_is_not_swallowed_whole() -> None:
    packed = gzip.compress(bytes(50 * 10**6))
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
