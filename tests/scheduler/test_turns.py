"""Turns between queues: due time, the band of worker-seconds, and no claim without end."""

from __future__ import annotations

import pytest

from farm.call import Operation
from farm.scheduler.turns import BAND_RUNS, DUE_RUNS, next_turn, turn_of
from tests.scheduler.recorder import Recorder, call, replied, sent
from tests.scheduler.test_queues import order_of


@pytest.fixture
def shared(farm: Recorder) -> Recorder:
    """A worker of two models whose run times are known: 1 s and 100 s."""
    farm.join("w", "short", "long")
    for name, seconds in (("short", 1.0), ("long", 100.0)):
        task = farm.submit(name, client="teacher")
        farm.expect(sent("w", task))
        farm.after(seconds).finish("w", task, seconds)
        farm.expect(replied(task, seconds, "w"))
    return farm


def test_a_short_call_passes_long_ones_that_came_before(shared: Recorder) -> None:
    running = shared.submit("long", client="a")
    shared.expect(sent("w", running))
    long, short = shared.submit("long", client="b"), shared.submit("short", client="c")
    shared.after(100.0).finish("w", running, 100.0)
    shared.expect(replied(running, 100.0, "w"), sent("w", short))
    shared.after(1.0).finish("w", short, 1.0)
    shared.expect(replied(short, 1.0, "w"), sent("w", long))


def test_a_long_call_is_passed_only_for_ten_of_its_runs(shared: Recorder) -> None:
    """Short calls of ever new clients do not starve it."""
    first = shared.submit("short", client="0")
    shared.expect(sent("w", first))
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
    long = [shared.submit("long", client="a") for _ in range(2)]
    short = [shared.submit("short", client="a") for _ in range(3)]
    order = order_of(shared, "w", dict.fromkeys(long, 100.0))
    assert order[:3] == short
    shared.after(DUE_RUNS * 100.0)
    running = shared.submit("short", client="b")
    shared.expect(sent("w", running))
    old = shared.submit("long", client="a")
    shared.after(DUE_RUNS * 100.0)
    late = shared.submit("short", client="a")
    shared.finish("w", running, 1.0)
    shared.expect(replied(running, 1.0, "w"), sent("w", old))
    shared.scheduler.cancel(late)


def test_a_client_too_far_ahead_waits_for_the_one_behind(shared: Recorder) -> None:
    """A sweep of short calls beside one of long calls: equal seconds, give or take the band."""
    for _ in range(60):
        shared.submit("long", client="long")
    for _ in range(6000):
        shared.submit("short", client="short")
    used = {"short": 0.0, "long": 0.0}
    while used["short"] < 5500.0:
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
    running = shared.submit("short", client="busy")
    shared.expect(sent("w", running))
    modest = shared.submit("long", client="modest", priority=-1)
    for _ in range(200):
        following = shared.submit("short", client="busy")
        shared.after(100.0).finish("w", running, 100.0)
        shared.expect(replied(running, 100.0, "w"), sent("w", following))
        running = following
    shared.scheduler.cancel(modest)
    many = [shared.submit("long", client="modest") for _ in range(200)]
    for _ in range(200):
        shared.submit("short", client="busy")
    shared.after(100.0).finish("w", running, 100.0)
    order = order_of(shared, "w", dict.fromkeys(many, 100.0))
    first = order.index(next(task for task in order if task not in many))
    assert first <= BAND_RUNS


def test_a_newcomer_starts_level_and_has_no_claim(farm: Recorder) -> None:
    """A new sweep takes turns at once with an equal one of another model that has run for long."""
    farm.join("w", "x", "y")
    for name in "xy":
        task = farm.submit(name, client="teacher")
        farm.expect(sent("w", task))
        farm.after(1.0).finish("w", task, 1.0)
        farm.expect(replied(task, 1.0, "w"))
    for _ in range(540):
        farm.submit("x", client="old")
    farm.forget_actions()
    for _ in range(500):
        farm.after(1.0).finish("w", next(iter(farm.worker("w").held)), 1.0)
        farm.forget_actions()
    new = [farm.submit("y", client="new") for _ in range(40)]
    farm.after(1.0).finish("w", next(iter(farm.worker("w").held)), 1.0)
    order = order_of(farm, "w", {})
    turns = [task in new for task in order[:40]]
    assert 16 <= sum(turns) <= 24


def test_a_class_of_unknown_length_goes_first_once(shared: Recorder) -> None:
    running = shared.submit("short")
    shared.expect(sent("w", running))
    short = shared.submit("short", client="a")
    unknown = shared.submit(call("long", Operation.GRADIENT), client="b")
    shared.finish("w", running, 1.0)
    shared.expect(replied(running, 1.0, "w"), sent("w", unknown))
    assert turn_of(shared.queue("short")).task_id == short


def test_priority_comes_before_all(shared: Recorder) -> None:
    running = shared.submit("short")
    shared.expect(sent("w", running))
    shared.submit("short", client="a")
    urgent = shared.submit("long", client="b", priority=1)
    queues = [shared.queue("short"), shared.queue("long")]
    assert next_turn(queues) is queues[1]
    shared.finish("w", running, 1.0)
    shared.expect(replied(running, 1.0, "w"), sent("w", urgent))
