"""The search, on criteria with a known maximum."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from farm.call import Array
from farm.experiment.config.definition import Parameter, ParameterKind

if TYPE_CHECKING:
    import torch

    from farm.experiment.models.domain import Domain
    from farm.experiment.models.search import (
        LEAST_DISTANCE,
        Apart,
        climbed,
        search,
        spread_by_value,
    )

NOTHING = np.empty((0, 1, 2))


@cache
def square(**held: float) -> Domain:
    return Domain((Parameter("a"), Parameter("b")), 1, held)


def hill(unit: torch.Tensor) -> torch.Tensor:
    return -((unit[:, 0] - torch.tensor([0.371, 0.842])) ** 2).sum(-1)


def test_the_top_is_found_to_many_digits() -> None:
    best = search(hill, square(), avoid=NOTHING, starts=NOTHING)
    assert best.point == pytest.approx(np.array([[0.371, 0.842]]), abs=1e-5)


def test_a_narrow_top_is_found_from_a_start() -> None:
    def needle(unit: torch.Tensor) -> torch.Tensor:
        return torch.exp(1e6 * hill(unit))

    start = np.array([[[0.3712, 0.8421]]])
    best = search(needle, square(), avoid=NOTHING, starts=start)
    assert best.value > 0.99


def test_a_top_at_the_edge_is_reached() -> None:
    best = search(lambda u: u[:, 0].sum(-1), square(), avoid=NOTHING, starts=NOTHING)
    assert best.point.tolist() == [[1.0, 1.0]]


def test_what_is_in_flight_is_kept_away_from() -> None:
    avoid = np.array([[[0.371, 0.842]]])
    best = search(hill, square(), avoid=avoid, starts=avoid)
    assert np.linalg.norm(best.point - avoid[0]) >= LEAST_DISTANCE
    assert np.linalg.norm(best.point - avoid[0]) < 0.1


@pytest.mark.parametrize("seed", range(4))
def test_worthless_values_are_passed_over(seed: int) -> None:
    def half(unit: torch.Tensor) -> torch.Tensor:
        return torch.where(unit[:, 0, 0] < 0.5, torch.nan, hill(unit))

    torch.manual_seed(seed)
    best = search(half, square(), avoid=NOTHING, starts=NOTHING)
    assert best.point[0] == pytest.approx([0.5, 0.842], abs=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_the_best_point_along_a_slanted_cliff_is_found(seed: int) -> None:
    def beyond(unit: torch.Tensor) -> torch.Tensor:
        return torch.where(unit[:, 0].sum(-1) < 1.4, torch.nan, hill(unit))

    torch.manual_seed(seed)
    best = search(beyond, square(), avoid=NOTHING, starts=NOTHING)
    nearest = np.array([0.371, 0.842]) + (1.4 - 0.371 - 0.842) / 2
    assert best.point[0] == pytest.approx(nearest, abs=0.02)


def test_the_best_of_many_whole_numbers_and_choices() -> None:
    parameters = (
        Parameter("level", ParameterKind.INTEGER, lower=0, upper=1000),
        Parameter("shape", ParameterKind.CATEGORICAL, upper=7, choices=tuple("abcdefgh")),
        Parameter("share"),
    )
    domain = Domain(parameters, 1, {})
    wanted = domain.positions(np.array([[[617.0, 5.0, 0.25]]]))

    def criterion(unit: torch.Tensor) -> torch.Tensor:
        apart = unit[:, 0] - torch.tensor(wanted)[0]
        return -((apart * torch.tensor([10.0, 3.0, 1.0])) ** 2).sum(-1)

    best = search(criterion, domain, avoid=wanted[:0], starts=wanted[:0])
    raw: Array = domain.raw(best.point[None])
    assert raw[0, 0] == pytest.approx([617.0, 5.0, 0.25], abs=1e-4)


def test_one_point_is_all_there_is() -> None:
    domain = square(a=0.25, b=0.5)
    only = np.array([[[0.25, 0.5]]])
    best = search(hill, domain, avoid=NOTHING, starts=NOTHING)
    assert (best.point == only[0]).all()
    assert not best.crowded
    assert search(hill, domain, avoid=only, starts=NOTHING).crowded


def test_what_is_held_is_not_moved_on_the_way() -> None:
    domain = square(a=0.25)

    def criterion(unit: torch.Tensor) -> torch.Tensor:
        assert (unit[:, 0, 0] == 0.25).all()
        return hill(unit)

    best = search(criterion, domain, avoid=NOTHING, starts=NOTHING)
    assert best.point[0] == pytest.approx([0.25, 0.842], abs=1e-5)


@pytest.mark.parametrize("kind", [ParameterKind.CONTINUOUS, ParameterKind.INTEGER])
def test_the_time_limit_ends_the_search(kind: ParameterKind) -> None:
    domain = Domain((Parameter("a", kind, upper=7.0), Parameter("b")), 1, {})
    asked: list[float] = []

    def slow(unit: torch.Tensor) -> torch.Tensor:
        time.sleep(asked[0])
        asked.append(0.0)
        return -((unit[:, 0, 0] - 0.5) ** 2) - 100 * torch.sin(40 * unit[:, 0, 1]) ** 2

    asked[:] = [0.0]
    search(slow, domain, avoid=NOTHING, starts=NOTHING)
    patient = len(asked)
    asked[:] = [0.05]
    best = search(slow, domain, avoid=NOTHING, starts=NOTHING, timeout_s=0.3)
    assert len(asked) < patient
    assert np.isfinite(best.value)
    assert (domain.snapped(best.point[None])[0] == best.point).all()


def test_a_search_without_any_time_gives_the_best_it_has_looked_at() -> None:
    seen: list[float] = []

    def criterion(unit: torch.Tensor) -> torch.Tensor:
        values = hill(unit)
        seen.extend(values.tolist())
        return values

    best = search(criterion, square(), avoid=NOTHING, starts=NOTHING, timeout_s=1e-9)
    assert best.value == max(seen)
    assert float(hill(torch.as_tensor(best.point[None]))[0]) == pytest.approx(best.value)


def test_gradients_with_points_in_flight_are_those_of_autograd() -> None:
    rng = np.random.default_rng(0)
    avoid = rng.random((4, 1, 2))
    apart = Apart(hill, avoid, None)
    near = LEAST_DISTANCE * rng.uniform(-1, 1, (8, 2))
    rows = np.concatenate([avoid[:, 0], rng.random((4, 2))]) + near
    values, gradients = apart.graded(rows)
    tensor = torch.tensor(rows[:, None], requires_grad=True)
    wanted = apart(tensor)
    wanted.sum().backward()
    assert tensor.grad is not None
    assert values == pytest.approx(wanted.detach().numpy())
    assert gradients == pytest.approx(tensor.grad[:, 0].numpy())
    assert values[:4].max() < -1000 < values[4:].min()


BOX = np.array([[0.0, 0.0], [1.0, 1.0]])
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
    found = climbed(hills, rows, [0, 1], BOX)
    assert found == pytest.approx(TOPS[[0, 1, 0]], abs=1e-5)
    assert rows.tolist() == [[0.2, 0.55], [0.8, 0.1], [0.3, 0.45]]


def test_columns_that_are_not_free_stay() -> None:
    rows = np.array([[0.1, 0.9], [0.2, 0.3]])
    found = climbed(hills, rows, [0], BOX)
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


@pytest.mark.parametrize("odd", [0.0, np.inf, 1e308])
def test_starts_are_drawn_from_any_values(odd: float) -> None:
    values = torch.zeros(50, dtype=torch.float64)
    values[:3] = odd
    assert len(set(spread_by_value(values, 8).tolist())) == 8
