"""The space: conversion of message values to coordinates and to the unit cube, and back."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from farm.call import Array
from farm.errors import InvalidInput
from farm.experiment.config.definition import Parameter, ParameterKind
from farm.experiment.space import Space, coordinate

X = Parameter("x", lower=-2.0, upper=6.0)
LOG = Parameter("l", lower=0.001, upper=10.0, log_scale=True)
N = Parameter("n", ParameterKind.INTEGER, 1.0, 5.0)
FLAG = Parameter("flag", ParameterKind.BINARY)
K = Parameter("k", ParameterKind.FIXED, value=4.5)
COLOUR = Parameter("colour", ParameterKind.CATEGORICAL, 0.0, 2.0, choices=("red", "green", "blue"))
ALL = (X, LOG, N, FLAG, K, COLOUR)

NUMBERS = st.floats(-1e6, 1e6)


@st.composite
def parameters(draw: st.DrawFn, name: str) -> Parameter:
    kind = draw(st.sampled_from([k for k in ParameterKind if k is not ParameterKind.FIXED]))
    if kind is ParameterKind.BINARY:
        return Parameter(name, kind)
    if kind is ParameterKind.CATEGORICAL:
        choices = draw(st.lists(st.text("abc", min_size=1), min_size=2, max_size=5, unique=True))
        return Parameter(name, kind, upper=len(choices) - 1.0, choices=tuple(choices))
    log_scale = draw(st.booleans())
    if kind is ParameterKind.INTEGER:
        lower = float(draw(st.integers(-1000, 1000)))
        return Parameter(name, kind, lower, lower + draw(st.integers(1, 500)), log_scale)
    lower = draw(NUMBERS)
    return Parameter(name, kind, lower, lower + draw(st.floats(1e-3, 1e6)), log_scale)


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    count = draw(st.integers(1, 4))
    found = [draw(parameters(f"p{i}")) for i in range(count)]
    if draw(st.booleans()):
        found.insert(draw(st.integers(0, count)), K)
    return Space(found, draw(st.integers(1, 2)))


@st.composite
def spaces_with_units(draw: st.DrawFn) -> tuple[Space, Array]:
    space = draw(spaces())
    shape = (draw(st.integers(0, 4)), space.stimuli, space.dimensions)
    return space, draw(hnp.arrays(np.float64, shape, elements=st.floats(-0.5, 1.5)))


@given(spaces_with_units())
def test_points_are_within_bounds_whole_where_they_should_and_never_minus_zero(
    case: tuple[Space, Array],
) -> None:
    space, unit = case
    points = space.from_unit(unit)
    assert points.shape == unit.shape
    assert np.all((points >= space.lower) & (points <= space.upper))
    assert np.all((points == np.floor(points)) | ~space.whole)
    assert not np.any(np.signbit(points) & (points == 0.0))


@given(spaces_with_units())
def test_a_point_comes_back_from_the_unit_cube(case: tuple[Space, Array]) -> None:
    space, unit = case
    points = space.from_unit(unit)
    there = space.to_unit(points)
    assert np.all((there >= -1e-9) & (there <= 1 + 1e-9))
    scale = np.maximum(np.abs(points), space.upper - space.lower)
    assert np.all(np.abs(space.from_unit(there) - points) <= 1e-9 * scale)


@given(spaces_with_units())
def test_what_is_asked_can_be_told(case: tuple[Space, Array]) -> None:
    space, unit = case
    points = space.from_unit(unit)
    values = space.decode(points)
    assert list(values) == [p.name for p in space.parameters]
    told, extra = space.encode(values)
    assert np.array_equal(told, points)
    assert list(extra) == [p.name for p in space.parameters if p.kind is ParameterKind.FIXED]


@given(spaces_with_units())
def test_points_match_themselves_once(case: tuple[Space, Array]) -> None:
    space, unit = case
    points = space.from_unit(unit)
    found = space.matches(points, points)
    assert sorted(found) == list(range(len(points)))
    twice = space.matches(np.concatenate([points, points]), points)
    assert Counter(twice)[-1] == len(points)


def middles(count: int) -> Array:
    return ((np.arange(count) + 0.5) / count).reshape(-1, 1, 1)


@pytest.mark.parametrize("log_scale", [False, True])
@pytest.mark.parametrize("lower", [-3.0, 0.0, 1.0])
def test_every_whole_number_has_a_cell_and_is_found_in_its_middle(
    lower: float, log_scale: bool
) -> None:
    space = Space([Parameter("n", ParameterKind.INTEGER, lower, lower + 4, log_scale)])
    numbers = np.arange(lower, lower + 5).reshape(-1, 1, 1)
    unit = space.to_unit(numbers)
    assert np.all(np.diff(unit[:, 0, 0]) > 0)
    assert 0 < unit.min() < unit.max() < 1
    assert np.array_equal(space.from_unit(unit), numbers)


@pytest.mark.parametrize("parameter", [N, FLAG, COLOUR])
def test_the_ends_are_as_likely_as_the_middle(parameter: Parameter) -> None:
    cells = int(parameter.upper - parameter.lower) + 1
    points = Space([parameter]).from_unit(middles(cells * 100))
    counts = Counter(points.ravel().tolist())
    assert counts == {parameter.lower + i: 100 for i in range(cells)}


def test_a_log_scale_from_a_positive_bound_spreads_evenly_over_the_decades() -> None:
    points = Space([LOG]).from_unit(middles(400)).ravel()
    counts = np.histogram(points, bins=[0.001, 0.01, 0.1, 1.0, 10.0])[0]
    assert counts.tolist() == [100, 100, 100, 100]
    ends = Space([LOG]).from_unit(np.array([[[0.0]], [[1.0]]])).ravel()
    assert ends.tolist() == [0.001, 10.0]


@pytest.mark.parametrize(
    ("lower", "upper", "middle"), [(0.0, 99.0, 9.0), (-9.0, 90.0, 0.0), (1.0, 100.0, 10.0)]
)
def test_a_log_scale_is_shifted_where_bounds_have_no_logarithm(
    lower: float, upper: float, middle: float
) -> None:
    space = Space([Parameter("l", lower=lower, upper=upper, log_scale=True)])
    assert space.from_unit(np.array([[[0.5]]])).item() == pytest.approx(middle)


def test_told_points_may_lie_outside_of_the_bounds() -> None:
    space = Space([X, LOG])
    points, _ = space.encode({"x": 14, "l": -1.0})
    assert points.tolist() == [[[14.0, -1.0]]]
    unit = space.to_unit(points)
    assert unit[0, 0, 0] == 2.0
    assert np.isfinite(unit[0, 0, 1])
    assert unit[0, 0, 1] < 0


ONE, TWO, PAIR = [[[1.0, 2.0]]], [[[1.0, 3.0]], [[2.0, 4.0]]], [[[1.0, 3.0], [2.0, 4.0]]]


@pytest.mark.parametrize(
    ("x", "n", "stimuli", "points"),
    [
        *[(1, 2, 1, ONE), ([1], [2], 1, ONE), ([[1]], [[2]], 1, ONE), ("1", ["2.0"], 1, ONE)],
        *[(True, (2,), 1, ONE), ([1, 2], [3, 4], 1, TWO), ([[1], [2]], ["3", [4]], 1, TWO)],
        *[([[1, 2]], [[3, 4]], 2, PAIR), ([1, 2], [3, 4], 2, PAIR)],
    ],
)
def test_forms_of_trials(x: Any, n: Any, stimuli: int, points: list[Any]) -> None:
    found, extra = Space([X, N], stimuli).encode({"x": x, "n": n})
    assert (found.tolist(), extra) == (points, {})


def test_pairs_go_out_as_they_come_in() -> None:
    space = Space([X, K, COLOUR], 2)
    points = np.array([[[1.0, 0.0], [2.0, 2.0]]])
    assert space.decode(points) == {
        "x": [[1.0, 2.0]],
        "k": [[4.5, 4.5]],
        "colour": [["red", "blue"]],
    }


def test_what_is_no_coordinate_is_kept() -> None:
    space = Space([X, K])
    _, extra = space.encode({"x": [1, 2], "k": [4.5, "4.5"], "mood": ["a", "b"], "who": "me"})
    assert extra == {"k": [4.5, "4.5"], "mood": ["a", "b"], "who": "me"}


def test_one_value_for_every_trial_is_kept_once() -> None:
    # A long text beside many trials is not repeated for each of them.
    assert Space([X, N]).encode({"x": [], "n": []})[0].shape == (0, 1, 2)
    points, extra = Space([X, K]).encode({"x": [0.0] * 1000, "k": 4.5, "notes": "n" * 1000})
    assert len(points) == 1000
    assert extra == {"k": 4.5, "notes": "n" * 1000}


def test_choices_are_texts_in_messages() -> None:
    space = Space([COLOUR, Parameter("c", ParameterKind.CATEGORICAL, 0, 1, choices=("1", "2.5"))])
    points, _ = space.encode({"colour": "blue", "c": 2.5})
    assert points.tolist() == [[[2.0, 1.0]]]
    assert space.decode(points) == {"colour": ["blue"], "c": ["2.5"]}


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"x": 1}, "parameter 'n' is missing in config"),
        ({"x": [1, 2], "n": 1}, "parameter 'n' has 1 trials in config, but 'x' has 2"),
        ({"x": "red", "n": 1}, "parameter 'x' is 'red'; expected a finite number"),
        ({"x": float("nan"), "n": 1}, "parameter 'x' is nan; expected a finite number"),
        ({"x": 10**400, "n": 1}, "expected a finite number"),
        ({"x": None, "n": 1}, "parameter 'x' is None; expected a finite number"),
        ({"x": [1.5, float("inf")], "n": [1, 1]}, "parameter 'x' is inf; expected a finite number"),
        ({"x": [1, 10**400], "n": [1, 1]}, "; expected a finite number"),
        ({"x": [[1, 2]], "n": 1}, "has [1, 2] for a trial in config; expected one value"),
        ({"x": [[[1]]], "n": 1}, "for a trial in config; expected one value"),
        ({"x": {"a": 1}, "n": 1}, "for a trial in config; expected one value"),
        ([1, 2], "config is [1, 2]; expected an object of parameters"),
    ],
)
def test_refusals(config: Any, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Space([X, N]).encode(config)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (None, {}),
        ({}, {}),
        ({"0": 1}, {"x": 1.0}),
        ({0: [1]}, {"x": 1.0}),
        ({"5": "blue"}, {"colour": 2.0}),
        ({"n": "3", "k": 4.5}, {"n": 3.0}),
        ({"4": [4.5]}, {}),
        ({"n": "4.0", "flag": True}, {"n": 4.0, "flag": 1.0}),
        ({"x": [2], "colour": ["green"]}, {"x": 2.0, "colour": 1.0}),
    ],
)
def test_held_coordinates(held: Any, expected: dict[str, float]) -> None:
    assert Space(ALL).held(held, "constraints") == expected


@pytest.mark.parametrize(
    ("held", "text"),
    [
        ({"y": 1}, "constraints names 'y'; expected a parameter, x, l, n, flag, k, colour, or"),
        ({"6": 1}, "its position from 0 to 5"),
        ({"-1": 1}, "constraints names '-1'"),
        ({"x": [1, 2]}, "parameter 'x' is [1, 2]; expected a finite number"),
        ({"k": 5}, "constraints holds 'k' at 5, but it is fixed at 4.5"),
        ({"x": 10.5}, "constraints holds 'x' at 10.5; expected a value from -2 to 6"),
        ({"colour": "pink"}, "'colour' is 'pink'; expected one of red, green, blue"),
        ({"n": 2.5}, "constraints holds 'n' at 2.5; expected a whole number from 1 to 5"),
        ({"n": 6}, "constraints holds 'n' at 6; expected a whole number from 1 to 5"),
        ({"flag": 0.5}, "constraints holds 'flag' at 0.5; expected a whole number from 0 to 1"),
        ([1], "constraints is [1]; expected an object of parameters"),
    ],
)
def test_held_coordinates_that_are_refused(held: Any, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Space(ALL).held(held, "constraints")
    assert text in str(caught.value)


def test_holding_leaves_the_points_given_alone() -> None:
    space = Space([X, K, N])
    points = np.array([[[1.0, 2.0]]])
    assert space.hold(points, {"n": 5.0}).tolist() == [[[1.0, 5.0]]]
    assert points.tolist() == [[[1.0, 2.0]]]


def test_numbers_of_single_precision_match() -> None:
    space = Space([X, LOG])
    rng = np.random.default_rng(1)
    pending = space.from_unit(rng.random((50, 1, 2)))
    told = pending.astype(np.float32).astype(np.float64)
    assert space.matches(told[::-1], pending) == list(range(50))[::-1]


def test_the_nearest_matches() -> None:
    space = Space([X])
    pending = np.array([[[1.0]], [[1.0 + 2e-6]]])
    assert space.matches(np.array([[[1.0 + 1.9e-6]]]), pending) == [1]
    assert space.matches(np.array([[[1.1]]]), pending) == [-1]
    assert space.matches(np.array([[[1.0]]]), space.empty()) == [-1]


@pytest.mark.parametrize("at_once", [1, 7, 10**6])
def test_many_match_many(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.experiment.space.COMPARED_AT_ONCE", at_once)
    space = Space([X, N], 2)
    rng = np.random.default_rng(1)
    pending = space.from_unit(rng.random((30, 2, 2)))
    order = rng.permutation(30)
    points = np.concatenate([space.from_unit(rng.random((5, 2, 2))), pending[order]])
    assert space.matches(points, pending) == [-1] * 5 + order.tolist()


@given(st.lists(st.one_of(st.integers(), st.floats(-1e300, 1e300)), min_size=1))
def test_numbers_are_the_same_one_by_one_and_together(numbers: list[float]) -> None:
    space = Space([X])
    together, _ = space.encode({"x": numbers})
    assert together.ravel().tolist() == [coordinate(X, number) for number in numbers]
    assert np.array_equal(space.encode({"x": [[n] for n in numbers]})[0], together)


def test_numbers_of_a_wide_range_are_not_confused() -> None:
    space = Space([Parameter("n", ParameterKind.INTEGER, 0.0, 1e9)])
    assert space.matches(np.array([[[7.0]]]), np.array([[[8.0]], [[7.0]]])) == [1]
    assert space.matches(np.array([[[7.0]]]), np.array([[[8.0]]])) == [-1]
    space = Space([Parameter("l", lower=1e-9, upper=1.0, log_scale=True)])
    assert space.matches(np.array([[[1e-9]]]), np.array([[[2e-9]]])) == [-1]


def test_points_of_any_number_have_a_position() -> None:
    space = Space([X, LOG, N])
    points = np.array([[1e308, 1e308, -1e308]])[:, None]
    unit = space.to_unit(points)
    assert np.all(np.isfinite(unit))
    assert np.all(np.isfinite(space.from_unit(unit)))
    assert space.matches(points, space.from_unit(unit)) == [-1]


def test_halves_are_rounded_up_all_of_them() -> None:
    space = Space([N])
    points = np.array([0.5, 1.5, 2.5, -0.5, -0.2]).reshape(-1, 1, 1)
    assert space.rounded(points).ravel().tolist() == [1.0, 2.0, 3.0, 0.0, 0.0]


def test_positions_far_outside_of_the_cube_are_at_the_bounds() -> None:
    unit = np.array([[-1e9, -1e9, -1e9], [1e9, 1e9, 1e9]])[:, None]
    points = Space([X, LOG, N]).from_unit(unit)
    assert points[:, 0].tolist() == [[-2.0, 0.001, 1.0], [6.0, 10.0, 5.0]]


def test_which_points_have_a_logarithm_where_one_is_taken() -> None:
    shifted = Parameter("s", lower=-1.0, upper=1.0, log_scale=True)
    space = Space((X, LOG, shifted))
    points = np.array(
        [
            [0.0, 1e-9, -1.5],
            [0.0, 0.0, 0.0],
            [-9.0, 99.0, -2.0],
            [np.nan, 1.0, 0.0],
            [-9.0, 1.0, 9.0],
        ]
    )
    assert space.defined(points[:, None]).tolist() == [True, False, False, False, True]
