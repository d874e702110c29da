"""Copies of stragglers: when they are sent and where, and what becomes of the two attempts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farm.call import ModelInfo, Operation
from farm.scheduler.copies import KNOWN_RUNS, LOOK_AGAIN_S, limit_s
from farm.scheduler.state import TaskId
from tests.support.scheduler_recorder import (
    SHORT_S,
    Recorder,
    call,
    ended,
    model,
    sent,
    stateful,
    step,
    straggler,
)
from tests.support.scheduler_scenarios import levels, stragglers
from tests.support.scheduler_simulator import seeds

# When


def test_a_slow_call_is_copied_to_an_idle_worker_once(farm: Recorder) -> None:
    task = straggler(farm, count=60)
    assert farm.scheduler.wakeup() == pytest.approx(farm.now + 1.0)
    farm.after(0.999).expect()
    farm.after(0.001).expect(sent("w2", task))
    farm.join("w3")
    farm.after(1000.0).expect()


@pytest.mark.parametrize(
    ("run_time_s", "rows", "expected_s"),
    [(1.0, 1, 3.0), (0.1, 1, 1.1), (0.5, 1, 1.5), (10.0, 1, 30.0), (1.0, 5, 15.0)],
)
def test_the_limit_is_three_times_the_p95_and_a_second_more_than_it(
    farm: Recorder, run_time_s: float, rows: int, expected_s: float
) -> None:
    farm.learn(run_time_s)
    assert limit_s(farm.run_times(), rows) == pytest.approx(expected_s)


def slow_call(farm: Recorder, *, count: int = 60, **where: Any) -> TaskId:
    """Return a call that begins on "w1", the only worker; `count` runs of 1 s are known."""
    farm.learn(1.0, count=count)
    farm.join("w1", **where)
    return farm.begin("w1")


def test_twenty_runs_must_be_known(farm: Recorder) -> None:
    slow = slow_call(farm, count=0)
    farm.join("w2")
    for known in range(KNOWN_RUNS):
        farm.after(100.0).expect()
        assert farm.run_times().count == known
        task = farm.begin("w2")
        copies = [sent("w2", slow)] if known == KNOWN_RUNS - 1 else []
        farm.after(1.0).answer("w2", task, 1.0, *copies)


def test_at_most_one_call_in_twenty_is_copied(farm: Recorder) -> None:
    """The call that ends in between leaves its turn to the last one."""
    farm.learn(1.0, count=39)
    farm.join("slow", slots=4)
    slow = farm.begin_many("slow", 4)
    for i in range(3):
        farm.join(f"w{i}")
    farm.after(1.0).expect()
    farm.after(3.0).expect(sent("w2", slow[0]))
    farm.answer("slow", slow[1], 1.0, sent("w1", slow[2]))
    farm.after(100.0).expect()
    assert (farm.queue().counts.copies, farm.queue().counts.done) == (2, 40)


def test_no_copy_while_a_call_waits(farm: Recorder) -> None:
    task = straggler(farm)
    ends = farm.submit_many(2)
    farm.expect(sent("w2", ends[0]))
    farm.after(5.0).answer("w2", ends[0], 1.0, sent("w2", ends[1]))
    farm.after(1.0).answer("w2", ends[1], 1.0, sent("w2", task))


def test_a_call_that_waits_at_a_worker_comes_before_a_copy_and_is_not_slow(
    farm: Recorder,
) -> None:
    farm.learn(SHORT_S, count=200)
    farm.join("w1")
    first, behind = farm.begin_many("w1", 2)
    farm.after(5.0).join("w2")
    farm.take_back("w1", [behind], sent("w2", behind))
    farm.answer("w2", behind, SHORT_S)
    farm.after(LOOK_AGAIN_S).expect(sent("w2", first))
    farm.answer("w2", first, SHORT_S, ended("w1", first))
    farm.finish("w1", first)
    farm.leave("w2")
    first, behind = farm.begin_many("w1", 2)
    farm.after(5.0).answer("w1", first, SHORT_S)
    farm.join("w2")
    farm.after(0.9).expect()
    farm.after(0.2).expect(sent("w2", behind))


def test_the_search_begins_at_once_when_a_worker_becomes_idle(farm: Recorder) -> None:
    """And there is no timer while every worker is busy: such a search would be useless."""
    slow = slow_call(farm, count=20)
    assert farm.scheduler.wakeup() is None
    farm.after(50.0).expect()
    farm.join("w2")
    farm.expect(sent("w2", slow))
    assert farm.scheduler.wakeup() is None
    farm.answer("w2", slow, 1.0, ended("w1", slow))
    farm.finish("w1", slow)
    farm.expect()
    idle_since = farm.now
    while (wakeup := farm.scheduler.wakeup()) is not None:
        farm.after(wakeup - farm.now).expect()
    assert farm.now < idle_since + 10.0, "an idle farm sets no timer"


def test_searches_because_of_idle_workers_are_some_time_apart(farm: Recorder) -> None:
    farm.learn(1.0)
    for name in ("w1", "w2"):
        farm.join(name)
    farm.after(1.0).expect()
    searched_at = farm.now
    farm.after(0.1).begin("w2")
    assert farm.scheduler.wakeup() == pytest.approx(searched_at + LOOK_AGAIN_S)
    farm.after(0.15).expect()
    assert farm.scheduler.wakeup() == pytest.approx(searched_at + 0.1 + 3.0)


# Which


@pytest.mark.parametrize("forbidden", [model(repeatable=False), model(copies=False)])
def test_a_model_may_forbid_copies(forbidden: ModelInfo, farm: Recorder) -> None:
    straggler(farm, count=60)
    assert {kind for kind, queue in farm.queue().model.by_operation.items() if queue.may_copy} == {
        Operation.EVALUATE,
        Operation.GRADIENT,
        Operation.APPLY_JACOBIAN,
        Operation.APPLY_HESSIAN,
        Operation.VALUE_AND_GRADIENT,
    }
    farm.join("strict", forbidden)
    farm.after(100.0).expect()
    farm.join("lenient")
    farm.after(1.0).expect()
    assert not any(queue.may_copy for queue in farm.queue().model.by_operation.values())


def test_a_call_that_was_lost_before_runs_once_at_a_time(farm: Recorder) -> None:
    task = straggler(farm, count=60)
    farm.leave("w1")
    farm.expect(sent("w2", task))
    farm.join("w3")
    farm.after(100.0).expect()


def test_a_cancelled_call_is_not_copied_nor_one_of_which_rows_are_to_come(farm: Recorder) -> None:
    task = straggler(farm)
    farm.queue().counts.to_come = 1
    farm.after(5.0).expect()
    farm.queue().counts.to_come = 0
    farm.scheduler.cancel(task)
    farm.after(100.0).expect()


@pytest.mark.parametrize(("rows", "copies"), [(1, False), (2, True)])
def test_a_batch_of_several_calls_is_not_copied(farm: Recorder, rows: int, copies: bool) -> None:
    """With two rows the call fills the batch, and the other one has its own."""
    farm.learn(1.0, count=60)
    farm.join("w1", model(max_batch=2), slots=2 if copies else 1)
    tasks = farm.begin_many("w1", 2, call(rows=rows))
    farm.join("w2", model(max_batch=2), slots=2)
    farm.after(5.0).expect(*(sent("w2", task) for task in tasks if copies))


def test_a_call_is_slow_beside_others_of_its_config(farm: Recorder) -> None:
    """Its config may choose a level of the model."""
    farm.learn(1e-3, count=60)
    for name in ("w1", "w2"):
        farm.join(name)
    fine = call(config='{"level":1}')
    for _ in range(KNOWN_RUNS):
        farm.run("w2", fine, 5.0)
    task = farm.begin("w2", fine)
    farm.after(14.9).expect()
    farm.after(0.2).expect(sent("w1", task))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
def test_calls_wait_for_copies_for_a_fiftieth_of_what_these_save(workers: int) -> None:
    found = [levels(seed, workers=workers) for seed in seeds(4)]
    waited_s, saved_s = (sum(part) for part in zip(*found, strict=True))
    assert saved_s > 50.0
    assert waited_s <= 0.02 * saved_s


# Where


def test_a_copy_waits_for_another_host(farm: Recorder) -> None:
    task = slow_call(farm, host="one")
    farm.join("w2", host="two")
    farm.now += 2.5
    other = farm.begin("w2")
    farm.join("beside", host="one")
    farm.after(1.0).expect()
    farm.answer("w2", other, 1.0, sent("w2", task))


def test_on_one_host_a_copy_goes_to_another_worker(farm: Recorder) -> None:
    task = slow_call(farm, host="one", slots=2)
    farm.join("other", "n", host="one")
    farm.after(50.0).expect()
    farm.join("w2", host="one")
    farm.expect(sent("w2", task))


def test_a_copy_must_fit_before_its_worker_ends(farm: Recorder) -> None:
    task = slow_call(farm, count=20, host="one")
    farm.join("ends", host="two", ends_at=farm.now + 10.0)
    farm.after(9.5).expect()
    farm.join("w2", host="two", ends_at=farm.now + 1000.0)
    farm.expect(sent("w2", task))


def test_a_copy_goes_to_a_worker_that_can_end_it(farm: Recorder) -> None:
    """A group of MPI ranks, a Dask worker or a thread would be held by a copy that has lost."""
    task = straggler(farm, count=60)
    farm.join("group", host="three", ends_runs=False)
    farm.after(1.0).expect(sent("w2", task))


def test_a_worker_that_has_a_sequence_gets_no_copy(farm: Recorder) -> None:
    """Its process has to stay, because its state is there."""
    task = slow_call(farm, host="one")
    farm.join("w2", "m", stateful("s"), host="two")
    farm.answer("w2", farm.begin("w2", step(7, "s")))
    farm.after(4.0).expect()
    last = farm.begin("w2", step(7, "e"))
    farm.answer("w2", last, 1.0, sent("w2", task))


def test_where_no_worker_can_end_a_copy_none_is_searched_for(farm: Recorder) -> None:
    farm.learn(1.0, count=60)
    for name in ("w1", "w2"):
        farm.join(name, ends_runs=False)
    slow = farm.begin("w2")
    farm.after(100.0).expect()
    assert farm.scheduler.wakeup() is None
    farm.join("w3")
    farm.leave("w3")
    farm.after(100.0).expect()
    assert not farm.scheduler._copies.late
    farm.join("w3")
    farm.leave("w1")
    farm.after(LOOK_AGAIN_S).expect(sent("w3", slow))


# Gain


@pytest.mark.parametrize(
    ("spread", "without", "most"),
    [(0.0, 1.95, 1.4), pytest.param(0.3, 2.2, 1.65, marks=pytest.mark.slow)],
)
def test_copies_shorten_the_end_of_a_sweep(spread: float, without: float, most: float) -> None:
    slow = [stragglers(seed, spread, copies=False) for seed in seeds(10)]
    assert {copies for _, copies in slow} == {0}
    assert np.mean([ratio for ratio, _ in slow]) > without
    fast = [stragglers(seed, spread) for seed in seeds(10)]
    assert np.mean([ratio for ratio, _ in fast]) <= most
    assert all(0 < copies <= 0.05 * 640 for _, copies in fast)
