"""Designs: reproducible seeds, shapes, balance, sequences that continue, constraints, SALib."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import UnsupportedFeature
from farm.sweep.design.points import (
    Design,
    generator,
    parse_design,
    point_seed,
    repeated,
    sample,
    shuffled,
)
from farm.sweep.errors import SweepError
from farm.sweep.space.grammar import choice
from farm.sweep.space.parameters import (
    Choice,
    Distribution,
    Integer,
    Log,
    Normal,
    Uniform,
    values,
)
from tests.sweep.samples import plan_of

LINES: list[Distribution] = [Uniform(0, 1), Log(1e-3, 1), Integer(1, 5)]
KINDS = ["random", "lhs", "sobol", "halton"]


@pytest.mark.parametrize(
    "text",
    [
        *("grid", "grid:10", "grid:10,5", "random:100", "lhs:7", "lhs:7,lloyd", "sobol:256"),
        *("halton:9", "saltelli:8", "saltelli:8,first", "morris:5", "morris:5,8", "ff"),
    ],
)
def test_design_reads_back(text: str) -> None:
    assert str(parse_design(text)) == text


def test_design_of_a_file_keeps_its_path() -> None:
    assert parse_design("file:a,b:c.csv") == Design("file", option="a,b:c.csv")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *((text, "unknown design") for text in ("", "sobol", "sobol:", "sobol:4,4", "file:")),
        *((text, "unknown design") for text in ("latin:5", "saltelli", "saltelli:8,first,1")),
        *((text, "unknown design") for text in ("morris:5,4,3", "ff:8")),
        *((text, "is not a number of points") for text in ("sobol:x", "sobol:0", "sobol:-4")),
        *((text, "is not a number of points") for text in ("grid:0", "grid:1,,2", "morris:x")),
        *((text, "is not a number of points") for text in ("random:1e3", "random:99999999999999")),
        *(("lhs:4,best", "unknown optimisation"), ("saltelli:8,9", "unknown option '9'")),
        ("morris:5,3", "3 levels; expected an even"),
    ],
)
def test_what_is_no_design_is_refused(text: str, why: str) -> None:
    with pytest.raises(SweepError, match=f"design {text!r}.*{why}|{why} {text!r}"):
        parse_design(text)


@pytest.mark.parametrize("kind", ["sobol", "saltelli"])
def test_points_that_are_not_balanced_are_noted(kind: str) -> None:
    for count in (1, 256):
        assert not parse_design(f"{kind}:{count}").notes
    (note,) = parse_design(f"{kind}:100").notes
    assert note.startswith(f"{kind}:100 is not a power of 2")
    assert "64 or 128" in note


@given(st.sampled_from(KINDS), st.integers(1, 70), st.integers(1, 6), st.integers(0, 2**40))
def test_same_seed_same_bytes(kind: str, count: int, dims: int, seed: int) -> None:
    design = parse_design(f"{kind}:{count}")
    spreads: list[Distribution] = [Uniform(0, 1)] * dims
    unit = sample(design, spreads, seed)
    assert unit.shape == (count, dims)
    assert np.all((unit >= 0) & (unit <= 1))
    assert unit.tobytes() == sample(design, spreads, seed).tobytes()


def test_random_points_are_those_of_the_named_generator() -> None:
    expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence(7))).random((5, 3))
    assert np.array_equal(sample(parse_design("random:5"), LINES, 7), expected)


@pytest.mark.parametrize("option", ["", ",random-cd", ",lloyd"])
def test_lhs_has_one_point_in_each_slice(option: str) -> None:
    unit = sample(parse_design(f"lhs:32{option}"), LINES, 3)
    if option != ",lloyd":  # lloyd moves points within the cube
        assert np.array_equal(np.sort((unit * 32).astype(int), axis=0).T, [np.arange(32)] * 3)
    assert unit.shape == (32, 3)


@pytest.mark.parametrize("power", [1, 4, 8])
def test_sobol_is_balanced_at_powers_of_two(power: int) -> None:
    count = 2**power
    unit = sample(parse_design(f"sobol:{count}"), LINES, 3)
    assert np.array_equal(np.sort((unit * count).astype(int), axis=0).T, [np.arange(count)] * 3)


def test_grid_is_every_combination_the_last_fastest() -> None:
    spreads: list[Distribution] = [Uniform(0, 1), choice(10, 20, 30)]
    table = values(spreads, sample(parse_design("grid:2"), spreads, 0))
    expected = [[0, 10], [0, 20], [0, 30], [1, 10], [1, 20], [1, 30]]
    assert np.allclose(table, expected)
    lists: list[Distribution] = [choice(1, 2), choice(3, 4)]
    assert len(sample(parse_design("grid"), lists, 0)) == 4
    with pytest.raises(SweepError, match="2 numbers of levels for 3"):
        sample(parse_design("grid:2,3"), LINES, 0)
    with pytest.raises(SweepError, match="limit"):
        sample(parse_design("grid:1000"), [Uniform(0, 1)] * 20, 0)


def test_grid_takes_a_number_of_levels_for_each_range() -> None:
    spreads: list[Distribution] = [Uniform(0, 1), choice(1, 2), Uniform(5, 6)]
    table = values(spreads, sample(parse_design("grid:3,4"), spreads, 0))
    assert [len(np.unique(column)) for column in table.T] == [3, 2, 4]
    assert len(table) == 24


def test_without_parameters_there_is_no_design() -> None:
    with pytest.raises(SweepError, match="at least one"):
        sample(parse_design("random:5"), [], 0)


def test_seeds_of_points_differ_and_stay_the_same() -> None:
    seeds = [point_seed(7, point) for point in range(1000)]
    assert len(set(seeds)) == 1000
    assert all(0 <= seed < 2**32 for seed in seeds)
    # Recorded values: a later version must give models the same seeds.
    assert seeds[:3] == [1201125462, 3618983171, 3831650445]


def test_shuffle_is_a_permutation_of_its_own_stream() -> None:
    order = shuffled(100, 7)
    assert sorted(order.tolist()) == list(range(100))
    assert np.array_equal(order, shuffled(100, 7))
    assert not np.array_equal(order, shuffled(100, 8))
    assert generator(7).random() != generator(7, 1).random()


@pytest.mark.parametrize(
    ("text", "parameters", "size", "product"),
    [
        ("saltelli:64", 3, 512, "64 x (2 x 3 + 2)"),
        ("saltelli:64,first", 3, 320, "64 x (3 + 2)"),
        ("morris:20", 3, 80, "20 x (3 + 1)"),
        *(("ff", 1, 2, "2 x 1"), ("ff", 3, 8, "2 x 4"), ("ff", 4, 8, "2 x 4")),
        ("ff", 5, 16, "2 x 8"),
    ],
)
def test_number_of_points(text: str, parameters: int, size: int, product: str) -> None:
    design = parse_design(text)
    unit = sample(design, [Uniform(0, 1)] * parameters, 1)
    assert unit.shape == (size, parameters)
    assert design.product(parameters) == product
    assert parse_design("sobol:8").product(parameters) == ""


def test_too_many_points_are_refused_before_they_are_made() -> None:
    with pytest.raises(SweepError, match="the limit is"):
        sample(parse_design(f"saltelli:{2**30}"), LINES, 1)
    with pytest.raises(SweepError, match="up to 512 parameters, got 513"):
        sample(parse_design("ff"), [Uniform(0, 1)] * 513, 1)


@pytest.mark.parametrize(
    "text",
    [
        *(f"{kind}:16" for kind in KINDS),
        *("saltelli:8", "saltelli:8,first", "morris:5", "morris:5,8", "ff"),
    ],
)
def test_same_seed_same_points_and_other_seed_other_points(text: str) -> None:
    design = parse_design(text)
    first, again = sample(design, LINES, 7), sample(design, LINES, 7)
    assert first.tobytes() == again.tobytes()
    assert (first.tobytes() == sample(design, LINES, 8).tobytes()) is (text == "ff")
    assert first.min() >= 0
    assert first.max() <= 1


@pytest.mark.parametrize(("text", "second"), [("saltelli:4", True), ("saltelli:4,first", False)])
def test_saltelli_is_pairs_of_points(text: str, second: bool) -> None:
    """A block is A, then A with one entry of B each, the reverse of this, and B."""
    size = 8 if second else 5
    unit = sample(parse_design(text), LINES, 3)
    assert len(np.unique(unit[::size], axis=0)) == 4
    assert 0 < unit.min() < unit.max() < 1
    for block in unit.reshape(4, size, 3):
        a, b = block[0], block[-1]
        assert (a != b).all()
        for j in range(3):
            mixed = np.where(np.arange(3) == j, b, a)
            assert np.array_equal(block[1 + j], mixed)
            if second:
                assert np.array_equal(block[4 + j], np.where(np.arange(3) == j, a, b))


@pytest.mark.parametrize(("text", "levels"), [("morris:30", 4), ("morris:30,8", 8)])
def test_morris_changes_one_parameter_after_the_other(text: str, levels: int) -> None:
    unit = sample(parse_design(text), [Uniform(0, 1)] * 3, 3)
    step = levels / 2 / (levels - 1)
    for trajectory in unit.reshape(30, 4, 3):
        changes = np.diff(trajectory, axis=0)
        assert (np.count_nonzero(changes, axis=1) == 1).all()
        assert (np.count_nonzero(changes, axis=0) == 1).all()
        assert np.abs(changes).sum(axis=0) == pytest.approx([step] * 3)
    assert np.unique(unit) == pytest.approx(np.linspace(0, 1, levels))


@pytest.mark.parametrize("text", ["morris:30", "ff"])
def test_levels_of_an_unbounded_distribution_are_those_of_a_grid(text: str) -> None:
    spreads: list[Distribution] = [Normal(5, 2), Uniform(0, 1)]
    levels = 2 if text == "ff" else 4
    theta = values(spreads, sample(parse_design(text), spreads, 3))
    grid = values(spreads, sample(parse_design(f"grid:{levels}"), spreads, 3))
    for j in range(2):
        assert np.unique(theta[:, j]).tolist() == np.unique(grid[:, j]).tolist()


@pytest.mark.parametrize("spread", [Integer(1, 2), Integer(1, 3), choice(5, 1, 9), Integer(1, 50)])
def test_every_step_of_morris_changes_a_discrete_parameter(spread: Distribution) -> None:
    spreads = [spread, Uniform(0, 1)]
    theta = values(spreads, sample(parse_design("morris:20"), spreads, 3)).reshape(20, 3, 2)
    assert (np.count_nonzero(np.diff(theta[:, :, 0], axis=1), axis=1) == 1).all()


def test_factorial_takes_the_ends_of_a_list_of_values() -> None:
    spreads: list[Distribution] = [Choice((3.0, 1.0, 2.0)), Uniform(0, 10)]
    theta = values(spreads, sample(parse_design("ff"), spreads, 1))
    assert set(map(tuple, theta.tolist())) == {(3, 0), (3, 10), (2, 0), (2, 10)}


def test_a_missing_salib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "SALib.sample", None)
    with pytest.raises(UnsupportedFeature, match=r'pip install "modelfarm\[sensitivity\]"'):
        sample(parse_design("saltelli:8"), LINES, 1)


PARAMS = {"E": "1:2", "load": "0:1", "solver": "choice:euler,rk,bdf", "order": "int:1:5"}
WHEN = {"order": 'solver != "euler"'}


def test_equal_points_are_those_of_one_zero_and_one_nan() -> None:
    theta = np.array([[0.0, np.nan], [-0.0, np.nan], [0.0, 1.0], [0.0, 1.0]])
    assert repeated(theta).tolist() == [False, True, False, True]
    assert repeated(theta, np.array([True, False, False, False])).tolist() == [
        False, False, False, True
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["random", "sobol", "halton"])
def test_points_are_drawn_until_enough_satisfy_the_constraints(kind: str) -> None:
    plan = plan_of(f"{kind}:50", PARAMS, where=["load < E[0] - 1", "E[1] + E[2] > 2.5"])
    assert plan.size == 50
    assert np.all(plan.theta[:, 3] < plan.theta[:, 0] - 1)
    assert np.all(plan.theta[:, 1] + plan.theta[:, 2] > 2.5)
    free = plan_of(f"{kind}:1000", PARAMS)
    rows = {row.tobytes() for row in free.theta}
    assert all(row.tobytes() in rows for row in plan.theta)


@given(st.integers(1, 60), st.integers(1, 60))
def test_fewer_points_are_the_first_of_more(few: int, more: int) -> None:
    short, long = sorted((few, more))
    options: dict[str, Any] = {"when": WHEN, "where": ["order > 2"], "seed": 3}
    plan, longer = (plan_of(f"sobol:{n}", PARAMS, **options) for n in (short, long))
    np.testing.assert_array_equal(plan.theta, longer.theta[:short])


def test_a_grid_leaves_out_what_is_refused_or_repeated() -> None:
    params = {"load": "0:1", "solver": "euler,rk", "order": "1,2,3"}
    options: dict[str, Any] = {"fixes": {"E": 1}, "when": {"order": 'solver == "rk"'}}
    plan = plan_of("grid:2", params, **options)
    np.testing.assert_array_equal(
        plan.theta,
        [[0, 0, np.nan], [0, 1, 1], [0, 1, 2], [0, 1, 3],
         [1, 0, np.nan], [1, 1, 1], [1, 1, 2], [1, 1, 3]],
    )  # fmt: skip
    plan = plan_of("grid:2", params, **options, where=["load < order - 1"])
    np.testing.assert_array_equal(
        plan.theta, [[0, 0, np.nan], [0, 1, 2], [0, 1, 3], [1, 0, np.nan], [1, 1, 3]]
    )


@pytest.mark.parametrize(
    ("design", "complaint"),
    [("lhs:8", "each of its slices"), ("grid:2", "none of the 96 combinations of grid:2")],
)
def test_designs_that_a_constraint_would_spoil(design: str, complaint: str) -> None:
    params = {**PARAMS, "order": "1,2"}
    with pytest.raises(SweepError, match=complaint):
        plan_of(design, params, where=["load > 1.5"])
