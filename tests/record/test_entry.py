"""Evaluations as bytes: everything comes back, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import Array, Operation
from farm.record.entry import Entry, Status, decoded, encoded, key_and_status, status_of
from tests.record.entries import arrays, derivatives, names


def same(one: Array | None, other: Array | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return (
        one.tolist() == other.tolist() if one.dtype == object else one.tobytes() == other.tobytes()
    )


entries = st.builds(
    Entry,
    key=st.binary(min_size=16, max_size=16),
    model=names,
    version=names,
    operation=st.sampled_from([Operation.EVALUATE, Operation.GRADIENT, Operation.APPLY_HESSIAN]),
    config=names,
    inputs=st.lists(arrays(), max_size=2).map(tuple),
    outputs=st.lists(arrays(), max_size=2).map(tuple),
    derivative=st.none() | derivatives,
    time=st.floats(allow_nan=False),
    run_time_s=st.floats(allow_nan=False),
    status=st.sampled_from(Status),
    error=st.none() | st.tuples(names, names, names),
    worker=names,
    client=names,
    chain=names,
)


@given(entries)
def test_an_evaluation_comes_back(entry: Entry) -> None:
    payload = memoryview(encoded(entry).payload)
    back = decoded(payload)
    for name in Entry.__dataclass_fields__:
        if name not in ("inputs", "outputs", "derivative"):
            assert getattr(back, name) == getattr(entry, name)
    for name in ("inputs", "outputs"):
        pairs = zip(getattr(back, name), getattr(entry, name), strict=True)
        assert all(same(one, other) for one, other in pairs)
    assert (back.derivative is None) == (entry.derivative is None)
    if back.derivative is not None and entry.derivative is not None:
        assert same(back.derivative.sens, entry.derivative.sens)
        assert same(back.derivative.vec, entry.derivative.vec)
        assert back.derivative.in_wrt2 == entry.derivative.in_wrt2
    assert key_and_status(payload) == (entry.key, entry.status)


def test_arrays_that_come_back_can_be_written_to() -> None:
    one = Entry(b"k" * 16, "m", "", Operation.EVALUATE, "{}", (), (np.zeros(2),))
    (array,) = decoded(memoryview(encoded(one).payload)).outputs
    array[0] = 1.0


@pytest.mark.parametrize(
    ("array", "status"),
    [
        (np.array([1.0, -1.0]), Status.FINITE),
        (np.array([1.0, np.nan]), Status.NOT_FINITE),
        (np.array([np.inf]), Status.NOT_FINITE),
        (np.array([complex(0, np.nan)]), Status.NOT_FINITE),
        (np.array([b"nan"], dtype=object), Status.FINITE),
        (np.array([1]), Status.FINITE),
    ],
)
def test_numbers_that_are_not_finite_are_marked(array: Array, status: Status) -> None:
    assert status_of((np.ones(1), array)) is status
