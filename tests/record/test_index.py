"""The index: a dictionary from keys to offsets that takes little memory."""

from __future__ import annotations

import hashlib
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.record.index import TABLES, Index


def key(number: int) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


steps = st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 2**63)), max_size=200)


@given(steps)
def test_it_acts_like_a_dictionary(steps: list[tuple[bool, int, int]]) -> None:
    index, known = Index(), dict[bytes, int]()
    for put, number, offset in steps:
        # All in one table, so that they meet.
        k = (number * TABLES + 7).to_bytes(16, "little")
        if put:
            index.put(k, offset)
            known[k] = offset
        else:
            index.remove(k)
            known.pop(k, None)
        assert all(index.find(each) == known.get(each) for each in {k, *known})
    assert len(index) == len(known)
    assert sorted(index.offsets()) == sorted(known.values())


@pytest.mark.slow
def test_ten_thousand_points_a_table_take_less_than_fifty_bytes_each() -> None:
    index = Index()
    for number in range(300_000):
        index.put(key(number), number)
    assert [index.find(key(number)) for number in (0, 77_777, 299_999)] == [0, 77_777, 299_999]
    assert index.find(key(300_000)) is None
    assert index.nbytes < 50 * len(index)


pairs = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2**63)), max_size=100)


@given(st.lists(pairs, max_size=5), steps)
def test_many_at_once_are_as_one_after_another(
    groups: list[list[tuple[int, int]]], more: list[tuple[bool, int, int]]
) -> None:
    index, known = Index(), dict[bytes, int]()
    for group in groups:
        # All in two tables; numbers just below a power of two have the last slots as their homes.
        keys = [(((31 - n) % 2**50) * TABLES + n % 2).to_bytes(16, "little") for n, _ in group]
        index.put_all(b"".join(k[:8] for k in keys), array("Q", [offset for _, offset in group]))
        known |= dict(zip(keys, (offset for _, offset in group), strict=True))
        assert all(index.find(k) == offset for k, offset in known.items())
        assert len(index) == len(known)
    for put, number, offset in more:
        k = (number * TABLES).to_bytes(16, "little")
        if put:
            index.put(k, offset)
            known[k] = offset
        else:
            index.remove(k)
            known.pop(k, None)
        assert all(index.find(each) == known.get(each) for each in {k, *known})
    assert sorted(index.offsets()) == sorted(known.values())
