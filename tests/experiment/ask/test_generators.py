"""Points without a surrogate are the same however the asks are split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.call import Array
from farm.errors import InvalidInput
from farm.experiment.ask.generators import generate_model_free, length_of
from farm.experiment.config.definition import Config
from farm.experiment.config.reader import read_config
from farm.experiment.space import Space
from farm.experiment.work import Data, Generate

SEQUENCES = {
    "sobol": "generator = SobolGenerator",
    "halton": "generator = HaltonGenerator",
    "latin": "generator = LatinHypercubeGenerator\nmin_asks = 5",
    "random": "generator = RandomGenerator",
}
LISTS = {
    "manual": "generator = ManualGenerator\n[ManualGenerator]\n"
    "points = [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 1], [6, 2], [7, 3]]",
    "around": "generator = SampleAroundPointsGenerator\n[SampleAroundPointsGenerator]\n"
    "points = [[0, 1], [5, 3]]\nwindow = [0.5, 1]\nsamples_per_point = 4",
}
ALL = {**SEQUENCES, **LISTS}


def config(strategy: str, common: str = "", stimuli: int = 1) -> Config:
    types = f"outcome_types = [binary]\nstimuli_per_trial = {stimuli}"
    return read_config(
        f"""
[common]
parnames = [x, n]
strategy_names = [s]
{types}
{common}
[x]
lower_bound = -2
upper_bound = 8
[n]
par_type = integer
lower_bound = 1
upper_bound = 5
[s]
{strategy}
"""
    )


def points(made_by: Config, count: int, asked: int = 0, **work: Any) -> Array:
    nothing = Space.of(made_by).empty()
    data = Data(nothing, np.empty((0, 1)), 0)
    return generate_model_free(
        Generate(made_by, 0, count, asked, data=data, pending=nothing, **work)
    ).points


SPLITS = st.lists(st.integers(0, 7), min_size=1, max_size=6)


@pytest.mark.parametrize("kind", ALL)
@settings(max_examples=15)
@given(SPLITS, st.sampled_from([1, 2]))
def test_points_are_the_same_however_the_asks_are_split(
    kind: str, splits: list[int], stimuli: int
) -> None:
    if kind in LISTS and stimuli == 2:
        return
    made_by = config(ALL[kind], stimuli=stimuli)
    for more in ({"seed": 3}, {"filler": True}):
        parts = [points(made_by, n, sum(splits[:i]), **more) for i, n in enumerate(splits)]
        assert np.array_equal(np.concatenate(parts), points(made_by, sum(splits), **more))


@pytest.mark.parametrize("kind", ALL)
def test_points_are_within_bounds(kind: str) -> None:
    made = points(config(ALL[kind]), 100)
    assert np.all((made[..., 0] >= -2) & (made[..., 0] <= 8))
    assert set(made[..., 1].ravel()) <= {1.0, 2.0, 3.0, 4.0, 5.0}
    assert not np.any(np.signbit(made) & (made == 0))


@pytest.mark.parametrize("kind", SEQUENCES)
def test_pairs_are_made_of_two_points(kind: str) -> None:
    made = points(config(SEQUENCES[kind], stimuli=2), 64)
    assert made.shape == (64, 2, 2)
    assert len(np.unique(made[:, :, 0])) == 128


@pytest.mark.parametrize("kind", ALL)
def test_a_seed_in_the_config_counts_alone_otherwise_the_experiments(kind: str) -> None:
    made_by, five, six = (
        config(ALL[kind]),
        *(config(ALL[kind], common=f"seed = {seed}") for seed in (5, 6)),
    )
    assert not np.array_equal(points(made_by, 8, seed=1), points(made_by, 8, seed=2))
    assert np.array_equal(points(five, 8, seed=1), points(five, 8, seed=2))
    assert not np.array_equal(points(five, 8), points(six, 8))


def test_strategies_differ_and_so_do_points_that_fill_in() -> None:
    made_by = config(SEQUENCES["sobol"])
    text = made_by.text.replace("strategy_names = [s]", "strategy_names = [s, t]")
    two = read_config(f"{text}\n[t]\ngenerator = SobolGenerator")
    nothing = Space.of(two).empty()
    data = Data(nothing, np.empty((0, 1)), 0)
    first, second = (
        generate_model_free(Generate(two, s, 8, 0, data=data, pending=nothing)).points
        for s in (0, 1)
    )
    assert not np.array_equal(first, second)
    assert not np.array_equal(points(made_by, 8), points(made_by, 8, filler=True))


def test_sobol_fills_the_space() -> None:
    made = points(config(SEQUENCES["sobol"]), 64)
    assert np.histogram(made[:, 0, 0], bins=8, range=(-2, 8))[0].tolist() == [8] * 8


def test_a_latin_hypercube_has_one_point_in_each_slice() -> None:
    by_asks = config("generator = LatinHypercubeGenerator\nmin_asks = 20")
    by_size = config("generator = LatinHypercubeGenerator\n[LatinHypercubeGenerator]\nsize = 20")
    for made_by in (by_asks, by_size):
        for block in (points(made_by, 20), points(made_by, 20, 20)):
            slices = np.histogram(block[:, 0, 0], bins=20, range=(-2, 8))[0]
            assert slices.tolist() == [1] * 20


@pytest.mark.parametrize("kind", SEQUENCES)
@pytest.mark.parametrize("filler", [False, True])
def test_coordinates_are_held(kind: str, filler: bool) -> None:
    made_by = config(SEQUENCES[kind])
    free = points(made_by, 5, filler=filler)
    held = points(made_by, 5, fixed={"n": 4.0}, filler=filler)
    assert np.all(held[..., 1] == 4.0)
    assert np.array_equal(held[..., 0], free[..., 0])


@pytest.mark.parametrize("kind", LISTS)
def test_listed_points_cannot_be_held(kind: str) -> None:
    with pytest.raises(InvalidInput, match="fixed_pars cannot be held"):
        points(config(LISTS[kind]), 1, fixed={"n": 4.0})


def test_a_list_runs_out() -> None:
    made_by = config(LISTS["manual"])
    assert len(points(made_by, 5, 6)) == 2
    assert points(made_by, 5, 8).shape == (0, 1, 2)


def test_a_list_is_shuffled_unless_it_is_said() -> None:
    shuffled = points(config(LISTS["manual"]), 8)[:, 0, 0]
    ordered = points(config(LISTS["manual"] + "\nshuffle = False"), 8)[:, 0, 0]
    assert ordered.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert sorted(shuffled.tolist()) == ordered.tolist() != shuffled.tolist()


def test_boxes_around_points() -> None:
    more = LISTS["around"].replace("samples_per_point = 4", "samples_per_point = 300")
    made = points(config(f"{more}\nshuffle = False"), 600)
    first, second = made[:300, 0], made[300:, 0]
    assert np.all(np.abs(first[:, 0]) <= 0.5)
    assert np.all(np.abs(second[:, 0] - 5) <= 0.5)
    assert set(first[:, 1]) == {1.0, 2.0}
    assert set(second[:, 1]) == {2.0, 3.0, 4.0}
    ends = np.unique(second[:, 1], return_counts=True)[1]
    assert ends.min() > 75  # all three are equally likely


def test_boxes_end_at_the_bounds() -> None:
    wide = LISTS["around"].replace("[0.5, 1]", "100")
    made = points(config(wide), 8)[:, 0, 0]
    assert len(np.unique(made)) == 8


@pytest.mark.parametrize(
    ("kind", "length"),
    [("manual", 8), ("around", 8), *((kind, None) for kind in SEQUENCES)],
)
def test_lengths(kind: str, length: int | None) -> None:
    made_by = config(ALL[kind])
    assert length_of(made_by.strategies[0].generator, made_by) == length
    assert points(made_by, 0, 3).shape == (0, 1, 2)
    if length is None:
        assert points(made_by, 2, 1_000_000).shape == (2, 1, 2)
