"""Turns between queues: due time, the band of worker-seconds, and no claim without end."""

from __future__ import annotations

import pytest

from farm.call import Operation
from farm.scheduler.turns import BAND_RUNS, DUE_RUNS, next_turn, turn_of
from tests.scheduler.test_queues import order_of
from tests.support.scheduler_recorder import Recorder, call, sent
from tests.support.scheduler_scenarios import (
    NAMINGS,
    after_a_slow_moment,
    beside_a_sweep,
    mlda,
    strangers,
    two_sweeps,
)
from tests.support.scheduler_simulator import SEED


@pytest.fixture
def shared(farm: Recorder) -> Recorder:
    """A worker of two models whose run times are known: 1 s and 100 s."""
    farm.join("w", "short", "long")
    for name, seconds in (("short", 1.0), ("long", 100.0)):
        farm.run("w", name, seconds, client="teacher")
    return farm


def test_a_short_call_passes_long_ones_that_came_before(shared: Recorder) -> None:
    running = shared.begin("w", "long", client="a")
    long, short = shared.submit("long", client="b"), shared.submit("short", client="c")
    shared.after(100.0).answer("w", running, 100.0, sent("w", short))
    shared.after(1.0).answer("w", short, 1.0, sent("w", long))


def test_a_long_call_is_passed_only_for_ten_of_its_runs(shared: Recorder) -> None:
    """Short calls of ever new clients do not starve it."""
    first = shared.begin("w", "short", client="0")
    long = shared.submit("long", client="a")
    running, passed = first, 0
    while True:
        following = shared.submit("short", client=f"{passed + 1}")
        shared.after(1.0).finish("w", running, 1.0)
        actions = shared.scheduler.actions(shared.now)
        if long in shared.worker("w").held:
            break
        assert actions
        running, passed = following, passed + 1
    mean = shared.run_times("short").mean
    assert passed == pytest.approx(DUE_RUNS * 100.0 - DUE_RUNS * mean, abs=2)


def test_short_calls_of_a_client_pass_its_own_long_ones_but_not_for_ever(
    shared: Recorder,
) -> None:
    long = shared.submit_many(2, "long", client="a")
    short = shared.submit_many(3, "short", client="a")
    order = order_of(shared, "w", dict.fromkeys(long, 100.0))
    assert order[:3] == short
    shared.after(DUE_RUNS * 100.0)
    running = shared.begin("w", "short", client="b")
    old = shared.submit("long", client="a")
    shared.after(DUE_RUNS * 100.0)
    late = shared.submit("short", client="a")
    shared.answer("w", running, 1.0, sent("w", old))
    shared.scheduler.cancel(late)


def test_a_client_too_far_ahead_waits_for_the_one_behind(shared: Recorder) -> None:
    """A sweep of short calls beside one of long calls: equal seconds, give or take the band."""
    shared.submit_many(30, "long", client="long")
    shared.submit_many(4500, "short", client="short")
    used = {"short": 0.0, "long": 0.0}
    while used["short"] < 4000.0:
        for action in shared.scheduler.actions(shared.now):
            for task in getattr(action, "tasks", []):
                name = task.call.model
                seconds = 1.0 if name == "short" else 100.0
                used[name] += seconds
                shared.after(seconds).finish("w", task.id, seconds)
    shared.forget_actions()
    ahead = used["short"] - used["long"]
    assert abs(ahead - BAND_RUNS * 100.0) <= 200.0


def test_a_claim_is_worth_the_band_at_most(shared: Recorder) -> None:
    """A client that got little for hours does not lock the others out for hours."""
    running = shared.begin("w", "short", client="busy")
    modest = shared.submit("long", client="modest", priority=-1)
    for _ in range(60):
        following = shared.submit("short", client="busy")
        shared.after(100.0).answer("w", running, 100.0, sent("w", following))
        running = following
    shared.scheduler.cancel(modest)
    many = shared.submit_many(40, "long", client="modest")
    shared.submit("short", client="busy")
    shared.after(100.0).finish("w", running, 100.0)
    order = order_of(shared, "w", dict.fromkeys(many, 100.0))
    first = order.index(next(task for task in order if task not in many))
    assert first <= BAND_RUNS


def test_a_class_of_unknown_length_goes_first_once(shared: Recorder) -> None:
    running = shared.begin("w", "short")
    short = shared.submit("short", client="a")
    unknown = shared.submit(call("long", Operation.GRADIENT), client="b")
    shared.answer("w", running, 1.0, sent("w", unknown))
    assert turn_of(shared.queue("short")).task_id == short


def test_priority_comes_before_all(shared: Recorder) -> None:
    running = shared.begin("w", "short")
    shared.submit("short", client="a")
    urgent = shared.submit("long", client="b", priority=1)
    queues = [shared.queue("short"), shared.queue("long")]
    assert next_turn(queues) is queues[1]
    shared.answer("w", running, 1.0, sent("w", urgent))


# Fairness in simulated time


@pytest.mark.slow
@SEED
def test_cheap_calls_of_strangers_are_hardly_slowed_by_long_ones(seed: int) -> None:
    assert strangers(seed) <= 3.0


@SEED
def test_one_slow_moment_of_the_link_is_forgotten(seed: int) -> None:
    """Long calls are not prefetched for ever after, so a cheap call waits for a worker only."""
    assert after_a_slow_moment(seed) <= 0.15


@SEED
def test_two_sweeps_of_unlike_models_share_a_worker(seed: int) -> None:
    assert 0.4 <= two_sweeps(seed) <= 0.6


@pytest.mark.slow
@pytest.mark.parametrize("chains", [16, 32])
@SEED
def test_coarse_calls_of_multilevel_chains_pass_the_fine_ones(seed: int, chains: int) -> None:
    slowed, total = mlda(seed, chains, fine=10)
    assert slowed <= 3.5
    assert total <= 1.1


@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("chains", [16, pytest.param(64, marks=pytest.mark.slow)])
@SEED
def test_chains_beside_a_sweep_get_a_caller_s_share_each(
    seed: int, chains: int, naming: str
) -> None:
    rate, longest_wait = beside_a_sweep(seed, chains, naming, workers=16, lasts_s=100.0)
    assert 0.95 <= rate <= 1.1
    assert longest_wait <= 8.0


@pytest.mark.parametrize("model", ["m", "n"])
@SEED
def test_a_chain_beside_a_sweep_keeps_its_turn_on_one_worker(seed: int, model: str) -> None:
    """Every second run is its own, whether or not the sweep is of the same model."""
    rate, _ = beside_a_sweep(seed, 1, workers=1, model=model, lasts_s=1500.0)
    assert 0.95 <= rate <= 1.1
