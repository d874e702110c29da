"""Bars of fairness between callers and models, in simulated time on the real scheduler."""

from __future__ import annotations

import pytest

from tests.scheduler.scenarios import (
    NAMINGS,
    after_a_slow_moment,
    beside_a_sweep,
    mlda,
    strangers,
    two_sweeps,
)
from tests.scheduler.simulator import seeds

FIRST, *OTHERS = seeds(3)

pytestmark = pytest.mark.parametrize(
    "seed", [FIRST, *[pytest.param(seed, marks=pytest.mark.slow) for seed in OTHERS]]
)


@pytest.mark.slow
def test_cheap_calls_of_strangers_are_hardly_slowed_by_long_ones(seed: int) -> None:
    assert strangers(seed) <= 3.0


def test_one_slow_moment_of_the_link_is_forgotten(seed: int) -> None:
    """Long calls are not prefetched for ever after, so a cheap call waits for a worker only."""
    assert after_a_slow_moment(seed) <= 0.15


def test_two_sweeps_of_unlike_models_share_a_worker(seed: int) -> None:
    assert 0.4 <= two_sweeps(seed) <= 0.6


@pytest.mark.parametrize("chains", [16, pytest.param(32, marks=pytest.mark.slow)])
def test_coarse_calls_of_multilevel_chains_pass_the_fine_ones(seed: int, chains: int) -> None:
    slowed, total = mlda(seed, chains, fine=10)
    assert slowed <= 3.5
    assert total <= 1.1


@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("chains", [16, 64])
def test_chains_beside_a_sweep_get_a_caller_s_share_each(
    seed: int, chains: int, naming: str
) -> None:
    rate, longest_wait = beside_a_sweep(seed, chains, naming, workers=16, lasts_s=100.0)
    assert 0.95 <= rate <= 1.1
    assert longest_wait <= 8.0


@pytest.mark.parametrize("model", ["m", "n"])
def test_a_chain_beside_a_sweep_keeps_its_turn_on_one_worker(seed: int, model: str) -> None:
    """Every second run is its own, whether or not the sweep is of the same model."""
    rate, _ = beside_a_sweep(seed, 1, workers=1, model=model, lasts_s=1500.0)
    assert 0.95 <= rate <= 1.1
