"""Designs: reproducible seeds, shapes, balance, and sequences that continue."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.sweep.design.points import (
    Design,
    generator,
    parse_design,
    point_seed,
    sample,
    sequence,
    shuffled,
)
from farm.sweep.errors import SweepError
from farm.sweep.space.grammar import choice
from farm.sweep.space.parameters import Distribution, Integer, Log, Uniform, values

LINES: list[Distribution] = [Uniform(0, 1), Log(1e-3, 1), Integer(1, 5)]
KINDS = ["random", "lhs", "sobol", "halton"]


@pytest.mark.parametrize(
    "text",
    ["grid", "grid:10", "grid:10,5", "random:100", "lhs:7", "lhs:7,lloyd", "sobol:256", "halton:9"],
)
def test_design_reads_back(text: str) -> None:
    assert str(parse_design(text)) == text


def test_design_of_a_file_keeps_its_path() -> None:
    assert parse_design("file:a,b:c.csv") == Design("file", option="a,b:c.csv")


@pytest.mark.parametrize(
    "text",
    [
        *("", "sobol", "sobol:", "sobol:x", "sobol:0", "sobol:-4", "sobol:4,4", "file:"),
        *("lhs:4,best", "grid:0", "grid:1,,2", "latin:5", "random:1e3", "random:99999999999999"),
    ],
)
def test_what_is_no_design_is_refused(text: str) -> None:
    with pytest.raises(SweepError, match=f"design {text!r}"):
        parse_design(text)


@pytest.mark.parametrize(("count", "noted"), [(256, False), (1, False), (100, True), (3, True)])
def test_sobol_notes_what_is_no_power_of_two(count: int, noted: bool) -> None:
    assert bool(parse_design(f"sobol:{count}").notes) is noted


def test_note_names_the_powers_beside() -> None:
    (note,) = parse_design("sobol:100").notes
    assert "64 or 128" in note


@given(st.sampled_from(KINDS), st.integers(1, 70), st.integers(1, 6), st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_same_seed_same_bytes(kind: str, count: int, dims: int, seed: int) -> None:
    design = parse_design(f"{kind}:{count}")
    spreads: list[Distribution] = [Uniform(0, 1)] * dims
    unit = sample(design, spreads, seed)
    assert unit.shape == (count, dims)
    assert np.all((unit >= 0) & (unit <= 1))
    assert unit.tobytes() == sample(design, spreads, seed).tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_other_seed_other_points(kind: str) -> None:
    design = parse_design(f"{kind}:16")
    assert not np.array_equal(sample(design, LINES, 1), sample(design, LINES, 2))


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
    unit = sample(parse_design(f"sobol:{2**power}"), LINES, 3)
    assert np.array_equal(
        np.sort((unit * 2**power).astype(int), axis=0).T, [np.arange(2**power)] * 3
    )


@given(
    st.sampled_from(["sobol", "halton", "random"]),
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(0, 2**32),
)
@settings(max_examples=40, deadline=None)
def test_sequences_continue(kind: str, first: int, more: int, seed: int) -> None:
    unit = sample(parse_design(f"{kind}:{first}"), LINES, seed)
    longer = sample(parse_design(f"{kind}:{first + more}"), LINES, seed)
    draw = sequence(parse_design(f"{kind}:1"), len(LINES), seed)
    assert np.array_equal(np.concatenate([draw(first), draw(more)]), longer)
    assert np.array_equal(longer[:first], unit)
    assert len(np.unique(longer, axis=0)) == first + more


def test_grid_is_every_combination_the_last_fastest() -> None:
    spreads: list[Distribution] = [Uniform(0, 1), choice(10, 20, 30)]
    table = values(spreads, sample(parse_design("grid:2"), spreads, 0))
    expected = [[0, 10], [0, 20], [0, 30], [1, 10], [1, 20], [1, 30]]
    assert np.allclose(table, expected)


def test_grid_takes_a_number_of_levels_for_each_range() -> None:
    spreads: list[Distribution] = [Uniform(0, 1), choice(1, 2), Uniform(5, 6)]
    table = values(spreads, sample(parse_design("grid:3,4"), spreads, 0))
    assert [len(np.unique(column)) for column in table.T] == [3, 2, 4]
    assert len(table) == 24


def test_grid_of_value_lists_needs_no_numbers() -> None:
    spreads: list[Distribution] = [choice(1, 2), choice(3, 4)]
    assert len(sample(parse_design("grid"), spreads, 0)) == 4


def test_grid_with_too_many_numbers_is_refused() -> None:
    with pytest.raises(SweepError, match="2 numbers of levels for 3"):
        sample(parse_design("grid:2,3"), LINES, 0)


def test_grid_beyond_reason_is_refused_before_it_is_made() -> None:
    with pytest.raises(SweepError, match="limit"):
        sample(parse_design("grid:1000"), [Uniform(0, 1)] * 20, 0)


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
