"""Growing arrays: returned arrays never change, and rows are seldom copied."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from farm.experiment.state.buffers import GrowableRows, PointPool


@given(st.lists(st.integers(0, 40), max_size=12))
def test_rows_are_those_that_were_added(counts: list[int]) -> None:
    rows, expected, views = GrowableRows((2, 3)), np.empty((0, 2, 3)), []
    for k, count in enumerate(counts):
        more = np.full((count, 2, 3), float(k))
        rows.extend(more)
        expected = np.concatenate([expected, more])
        views.append((rows.all(), expected))
    assert len(rows) == len(expected)
    assert (rows.all() == expected).all()
    for view, then in views:
        assert not view.flags.writeable
        assert np.array_equal(view, then)


def test_rows_are_copied_as_often_as_their_number_doubles() -> None:
    rows = GrowableRows((1,))
    places = set()
    for _ in range(10_000):
        rows.extend(np.zeros((1, 1)))
        places.add(rows.all().__array_interface__["data"][0])
    assert len(places) <= 11


@given(st.data())
def test_a_pool_keeps_what_is_not_removed(data: st.DataObject) -> None:
    pool, first = PointPool((2,)), 0
    expected: dict[int, tuple[list[float], float]] = {}
    for time in range(data.draw(st.integers(0, 5))):
        count = data.draw(st.integers(0, 4))
        ids = range(first, first + count)
        pool.add(ids, np.array([[id, time] for id in ids], dtype=float).reshape(-1, 2), float(time))
        expected |= {id: ([id, time], time) for id in ids}
        first += count
        for id in data.draw(st.lists(st.integers(0, 20), max_size=3)):
            pool.remove([id, id])
            expected.pop(id, None)
    keep = data.draw(st.integers(0, 20))
    pool.keep_last(keep)
    left = list(expected)[max(len(expected) - keep, 0) :]
    assert pool.ids.tolist() == left
    assert pool.points.tolist() == [expected[id][0] for id in left]
    assert pool.times.tolist() == [expected[id][1] for id in left]
    assert len(pool) == len(left)


def test_what_equals_is_found_once_and_the_oldest_first() -> None:
    pool = PointPool((1, 1))
    pool.add([3, 5, 7, 8], np.array([[[1.0]], [[2.0]], [[1.0]], [[4.0]]]), 0.0)
    points = np.array([[[1.0]], [[4.0]], [[1.0]], [[1.0]], [[2.5]]])
    every = np.arange(len(pool))
    assert pool.find(points, every).tolist() == [0, 3, 2, -1, -1]
    assert pool.find(points, every[1:]).tolist() == [2, 3, -1, -1, -1]
    assert PointPool((1, 1)).find(points, np.arange(0)).tolist() == [-1] * 5
    assert pool.find(points[:0], every).tolist() == []
