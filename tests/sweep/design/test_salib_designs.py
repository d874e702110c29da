"""Designs of SALib: sizes, structure, levels, seeds, and how they continue."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from farm.errors import UnsupportedFeature
from farm.sweep.design.extension import longer_plan
from farm.sweep.design.points import parse_design, sample
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
TEXTS = ["saltelli:8", "saltelli:8,first", "morris:5", "morris:5,8", "ff"]


@pytest.mark.parametrize("text", TEXTS)
def test_design_reads_back(text: str) -> None:
    assert str(parse_design(text)) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *(("saltelli", "unknown design"), ("saltelli:8,9", "unknown option '9'")),
        *(("saltelli:8,first,1", "unknown design"), ("morris:5,3", "3 levels; expected an even")),
        *(("morris:5,4,3", "unknown design"), ("ff:8", "unknown design"), ("morris:x", "'x'")),
    ],
)
def test_what_is_no_design_is_refused(text: str, why: str) -> None:
    with pytest.raises(SweepError, match=why):
        parse_design(text)


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


def test_other_designs_are_no_product() -> None:
    assert parse_design("sobol:8").product(3) == ""


def test_too_many_points_are_refused_before_they_are_made() -> None:
    with pytest.raises(SweepError, match="the limit is"):
        sample(parse_design(f"saltelli:{2**30}"), LINES, 1)


def test_too_many_parameters_for_a_factorial_design() -> None:
    with pytest.raises(SweepError, match="up to 512 parameters, got 513"):
        sample(parse_design("ff"), [Uniform(0, 1)] * 513, 1)


def test_no_balance_is_noted() -> None:
    (note,) = parse_design("saltelli:100").notes
    assert note.startswith("saltelli:100 is not a power of 2")
    assert parse_design("saltelli:128").notes == ()


@pytest.mark.parametrize("text", TEXTS)
def test_same_seed_same_points(text: str) -> None:
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
    for block in sample(parse_design(text), LINES, 3).reshape(4, size, 3):
        a, b = block[0], block[-1]
        assert (a != b).all()
        for j in range(3):
            mixed = np.where(np.arange(3) == j, b, a)
            assert np.array_equal(block[1 + j], mixed)
            if second:
                assert np.array_equal(block[4 + j], np.where(np.arange(3) == j, a, b))


def test_saltelli_has_distinct_base_points_inside_the_cube() -> None:
    unit = sample(parse_design("saltelli:64"), LINES, 3)
    assert len(np.unique(unit[::8], axis=0)) == 64
    assert unit.min() > 0
    assert unit.max() < 1


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


@pytest.mark.parametrize(
    ("text", "size", "longer"),
    [
        ("saltelli:8", 64, "saltelli:32"),
        ("saltelli:8,first", 40, "saltelli:32,first"),
        ("morris:5", 20, "morris:20"),
        ("morris:5,8", 20, "morris:20,8"),
    ],
)
def test_blocks_continue(text: str, size: int, longer: str) -> None:
    plan = plan_of(
        text, {"E[0]": "1:2", "E[1]": "normal:0:1", "load": "int:1:9"}, fixes={"E[2]": 1}
    )
    more = longer_plan(plan, 4 * size)
    assert str(more.design) == longer
    assert more.unit is not None
    assert plan.unit is not None
    assert np.array_equal(more.unit[:size], plan.unit)
    fresh = replace(plan, design=parse_design(longer))
    assert np.array_equal(
        more.unit, sample(fresh.design, [p.spread for p in plan.parameters if p.spread], 7)
    )


@pytest.mark.parametrize(
    ("text", "count", "why"),
    [
        ("saltelli:8", 83, "10 points for each base point, so 83 points do not fit; 80 or 90 do"),
        ("morris:5", 28, "5 points for each trajectory, so 28 points do not fit; 25 or 30 do"),
        ("morris:5", 25, "the sweep has 25 points; expected more, got 25"),
        ("ff", 16, "ff cannot be continued: a two-level design has a fixed number of points"),
    ],
)
def test_what_cannot_be_extended_says_why(text: str, count: int, why: str) -> None:
    with pytest.raises(SweepError, match=why):
        longer_plan(plan_of(text), count)


def test_a_missing_salib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "SALib.sample", None)
    with pytest.raises(UnsupportedFeature, match=r'pip install "modelfarm\[sensitivity\]"'):
        sample(parse_design("saltelli:8"), LINES, 1)
