"""Climbing from several points, and which points it begins from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from farm.call import Array
from farm.experiment.models.search import climbed, spread_by_value

SQUARE = np.array([[0.0, 0.0], [1.0, 1.0]])
TOPS = np.array([[0.25, 0.5], [0.75, 0.125]])


def hills(rows: Array) -> tuple[Array, Array]:
    """Two hills; each row climbs the nearer one."""
    apart = rows[:, None] - TOPS
    squared = (apart**2).sum(-1)
    nearer = squared.argmin(-1)
    each = np.arange(len(rows))
    return -squared[each, nearer], -2 * apart[each, nearer]


def test_each_row_climbs_its_own_hill() -> None:
    rows = np.array([[0.2, 0.55], [0.8, 0.1], [0.3, 0.45]])
    found = climbed(hills, rows, [0, 1], SQUARE)
    assert found == pytest.approx(TOPS[[0, 1, 0]], abs=1e-5)
    assert rows.tolist() == [[0.2, 0.55], [0.8, 0.1], [0.3, 0.45]]


def test_columns_that_are_not_free_stay() -> None:
    rows = np.array([[0.1, 0.9], [0.2, 0.3]])
    found = climbed(hills, rows, [0], SQUARE)
    assert found == pytest.approx(np.array([[0.25, 0.9], [0.25, 0.3]]), abs=1e-5)


def test_bounds_are_kept_at_every_evaluation() -> None:
    seen: list[Array] = []

    def slope(rows: Array) -> tuple[Array, Array]:
        seen.append(rows.copy())
        return rows @ [1.0, -1.0], np.tile([1.0, -1.0], (len(rows), 1))

    found = climbed(slope, np.array([[0.5, 0.5]]), [0, 1], np.array([[0.0, 0.25], [0.75, 1.0]]))
    assert found.tolist() == [[0.75, 0.25]]
    every = np.concatenate(seen)
    assert ((every >= [0.0, 0.25]) & (every <= [0.75, 1.0])).all()


@pytest.mark.parametrize("seed", range(5))
def test_starts_are_different_and_have_the_greatest(seed: int) -> None:
    torch.manual_seed(seed)
    values = torch.randn(200, dtype=torch.float64)
    drawn = spread_by_value(values, 10)
    assert len(set(drawn.tolist())) == 10
    assert values.argmax() in drawn
    assert values[drawn].mean() > values.mean()


@pytest.mark.parametrize("odd", [0.0, torch.inf, 1e308])
def test_starts_are_drawn_from_any_values(odd: float) -> None:
    values = torch.zeros(50, dtype=torch.float64)
    values[:3] = odd
    assert len(set(spread_by_value(values, 8).tolist())) == 8
