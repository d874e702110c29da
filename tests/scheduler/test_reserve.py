"""Reserves and priorities of models: which workers long calls leave free."""

from __future__ import annotations

import pytest

from farm.call import Operation
from farm.policies import ModelPolicy
from farm.scheduler.explanation import explain
from farm.scheduler.state import TaskId
from tests.support.scheduler_recorder import Recorder, call, ended, model, sent
from tests.support.scheduler_scenarios import in_lock_step
from tests.support.scheduler_simulator import SEED


def farm_with(long_s: float = 20.0, short_s: float = 1.0, **policy: float) -> Recorder:
    """Return a farm with a policy for "short"; the mean runs are known, no worker has joined."""
    farm = Recorder(policies={"short": ModelPolicy(**policy)})  # type: ignore[arg-type]
    farm.scheduler.expect([model("short"), model("long"), model("more")])
    for name, seconds in (("short", short_s), ("long", long_s), ("more", long_s)):
        if seconds:
            for _ in range(20):
                farm.run_times(name).add(seconds)
    return farm


def joined(farm: Recorder, *models: str, count: int = 4) -> None:
    for i in range(count):
        farm.join(f"w{i}", *models)


def running(farm: Recorder, name: str) -> int:
    """Carry out the actions, and return how many calls of a model are at workers."""
    farm.forget_actions()
    return farm.queue(name).counts.in_flight


@pytest.mark.parametrize(
    ("policy", "runs_s", "long"),
    [
        ({}, (1.0, 20.0), 4),
        ({"reserve": 1}, (1.0, 20.0), 3),
        ({"reserve": 3}, (1.0, 20.0), 1),
        ({"reserve": 9}, (1.0, 20.0), 1),
        ({"reserve_percent": 25}, (1.0, 20.0), 3),
        ({"reserve_percent": 26}, (1.0, 20.0), 2),
        ({"reserve_percent": 100}, (1.0, 20.0), 1),
        ({"reserve": 2, "reserve_percent": 25}, (1.0, 20.0), 2),
        ({"reserve": 1}, (1.0, 10.1), 3),
        ({"reserve": 1}, (1.0, 10.0), 4),  # calls are long if they run ten times longer
        ({"reserve": 1}, (0.0, 20.0), 4),  # and both run times are known
        ({"reserve": 1}, (1.0, 0.0), 4),
    ],
)
def test_long_calls_leave_the_reserve_free_and_take_one_worker_at_least(
    policy: dict[str, float], runs_s: tuple[float, float], long: int
) -> None:
    short_s, long_s = runs_s
    farm = farm_with(long_s, short_s, **policy)
    joined(farm, "short", "long")
    farm.submit_many(8, "long")
    assert running(farm, "long") == long
    farm.submit_many(8, "short")
    assert running(farm, "short") == 4 - long


def test_each_operation_counts_by_itself_and_the_model_itself_is_free() -> None:
    farm = farm_with(reserve=2)
    for name, seconds in (("short", 50.0), ("long", 2.0)):
        farm.queue(name, Operation.GRADIENT).run_times.add(seconds)
    farm.queue("long", Operation.DESCRIBE).run_times.add(100.0)
    joined(farm, "short", "long")
    farm.submit_many(8, "long")
    assert running(farm, "long") == 2
    for name in ("long", "short"):
        farm.submit(call(name, Operation.GRADIENT))
    farm.submit_many(3, call("long", Operation.DESCRIBE))
    farm.forget_actions()
    for name in ("long", "short"):
        assert farm.queue(name, Operation.GRADIENT).counts.in_flight == 1
    assert farm.queue("long", Operation.DESCRIBE).counts.in_flight == 3, "they need no slot"


def test_a_blocked_class_neither_blocks_others_nor_its_own_workers() -> None:
    farm = farm_with(reserve=1)
    farm.join("both", "short", "long")
    farm.join("both too", "short", "long", "more")
    farm.join("alone", "long")
    farm.submit_many(8, "long")
    assert running(farm, "long") == 2
    assert farm.worker("alone").lots == 1
    farm.submit_many(3, "short")
    assert running(farm, "short") == 1


def test_a_slot_freed_in_one_pool_is_used_in_another() -> None:
    """The long call on "a" ends; the spare slot that this leaves is on "b"."""
    farm = farm_with(reserve=1)
    farm.join("a", "short", "long")
    farm.join("b", "short", "more")
    first = farm.begin("a", "long")
    blocked = farm.submit("more")
    farm.expect()
    assert explain(farm.task(first), farm.now) == []
    (reason,) = explain(farm.task(blocked), farm.now)
    assert reason.rule == "reserve"
    assert reason.text == "its free workers are reserved for shorter calls of 'short'"
    farm.after(20.0).answer("a", first, 20.0, sent("b", blocked))


def test_a_worker_that_leaves_with_a_cancelled_call_frees_a_share() -> None:
    """Five workers keep two of them, four keep one."""
    farm = farm_with(reserve_percent=25)
    for name in "abcde":
        farm.join(name, "short", "long")
    calls = farm.submit_many(3, "long")
    farm.forget_actions()
    blocked = farm.submit("long")
    farm.expect()
    farm.scheduler.cancel(calls[0])
    place = farm.task(calls[0]).attempt.worker.id
    farm.leave(place)
    farm.forget_actions()
    assert farm.task(blocked).phase.name == "SENT"


def test_a_worker_that_drains_counts_neither_its_slot_nor_its_call() -> None:
    farm = farm_with(reserve=1)
    joined(farm, "short", "long", count=3)
    farm.submit_many(4, "long")
    assert running(farm, "long") == 2
    busy = next(f"w{i}" for i in range(3) if farm.worker(f"w{i}").lots)
    farm.resize(busy, 0)
    assert running(farm, "long") == 2
    farm.join("new", "short", "long")
    assert running(farm, "long") == 3


def test_a_long_class_is_not_prefetched_beside_a_reserve() -> None:
    farm = farm_with(long_s=1.5e-3, short_s=1e-4, reserve=1)
    assert farm.run_times("long").prefetch == 1
    joined(farm, "short", "long", count=3)
    farm.submit_many(2, "short")
    assert running(farm, "short") == 2
    farm.submit_many(8, "long")
    assert running(farm, "long") == 1, "the second one could wait at a worker only"


def test_a_blocked_class_lets_short_calls_wait_at_the_reserved_worker() -> None:
    farm = farm_with(long_s=20.0, short_s=1e-4, reserve=1)
    joined(farm, "short", "long", count=2)
    for _ in range(2):
        farm.submit("long", priority=1)
    assert running(farm, "long") == 1
    farm.submit_many(8, "short")
    assert running(farm, "short") == 8


def test_copies_leave_the_reserve_free() -> None:
    for reserve, copies in ((0, 1), (1, 0)):
        farm = farm_with(reserve=reserve)
        farm.queue("long").counts.done = 1000
        farm.join("w0", "short", "long")
        slow: TaskId = farm.submit("long")
        farm.expect(sent("w0", slow))
        farm.join("w1", "short", "long")
        farm.forget_actions()
        farm.after(100.0).forget_actions()
        assert farm.queue("long").counts.copies == copies
        farm.answer("w0", slow, 20.0, *([ended("w1", slow)] if copies else []))


def test_a_models_priority_is_added_to_that_of_its_calls() -> None:
    farm = farm_with(priority=-5)
    joined(farm, "short", "long", count=1)
    first = farm.begin("w0", "long")
    short, long = farm.submit("short"), farm.submit("long")
    farm.after(20.0).answer("w0", first, 20.0, sent("w0", long))
    assert (farm.task(short).priority, farm.task(long).priority) == (-5, 0)


@SEED
def test_a_cheap_caller_in_lock_step_waits_for_its_own_run_only(seed: int) -> None:
    without, _ = in_lock_step(seed, reserve=0)
    assert without > 0.2, "otherwise the case shows nothing"
    took, work = in_lock_step(seed, reserve=1)
    assert took <= 0.03
    assert work >= 0.7, "three of four workers serve the long calls"
