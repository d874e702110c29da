"""Recalls of calls that have not begun: for idle workers, and of calls better placed elsewhere."""

from __future__ import annotations

import pytest

from farm.call import Operation
from farm.scheduler.recall import LOOK
from farm.scheduler.state import TaskId
from tests.support.scheduler_recorder import (
    ROUND_TRIP_S,
    SHORT_S,
    Recorder,
    asked_back,
    call,
    prefetched,
    replied,
    sent,
)

TINY_S = ROUND_TRIP_S / 5.9
"""A run time at which eight calls wait at a worker."""


@pytest.fixture
def nine(farm: Recorder) -> list[TaskId]:
    """Calls on worker "w": one runs, and eight wait behind it."""
    farm.learn(TINY_S)
    farm.join("w")
    return farm.begin_many("w", 9)


# For idle workers


def test_idle_worker_gets_half_of_what_waits_at_the_fullest(
    farm: Recorder, nine: list[TaskId]
) -> None:
    farm.after(1.0).join("busy", slots=0)
    farm.expect()
    farm.join("idle")
    farm.take_back("w", nine[5:], sent("idle", *nine[5:]))


def test_what_has_begun_is_never_asked_for_nor_a_description(farm: Recorder) -> None:
    tasks = prefetched(farm, 3, slots=2)
    farm.begin("w", call(operation=Operation.DESCRIBE))
    farm.after(1.0).join("idle")
    farm.take_back("w", [tasks[2]], sent("idle", tasks[2]))
    farm.join("idle too")
    farm.expect()


def test_nothing_is_asked_for_that_the_worker_likely_gets_to_first(
    farm: Recorder, nine: list[TaskId]
) -> None:
    """Eight tiny calls end before a message can return, unless the worker stalls."""
    began = farm.now
    farm.join("idle")
    farm.expect()
    stalled_at = farm.scheduler.wakeup()
    assert stalled_at is not None
    assert stalled_at == pytest.approx(began + 2 * ROUND_TRIP_S, rel=1e-6)
    farm.answer("w", nine[0], TINY_S)
    farm.after(ROUND_TRIP_S).answer("w", nine[1], TINY_S)  # it makes progress
    farm.now = stalled_at
    farm.expect()
    patience_s = 2 * farm.run_times().round_trip_s
    answered_at = stalled_at - ROUND_TRIP_S
    assert farm.scheduler.wakeup() == pytest.approx(answered_at + patience_s, rel=1e-6)
    farm.after(1.1 * ROUND_TRIP_S).expect(asked_back("w", *nine[6:]))
    assert farm.scheduler.wakeup() == farm.scheduler._copies.look_at, "to search for slow calls"
    farm.hand_back("w", *nine[6:])
    farm.expect(sent("idle", *nine[6:]))


def test_worker_that_keeps_what_it_was_asked_for_is_not_asked_again(
    farm: Recorder, nine: list[TaskId]
) -> None:
    """Otherwise a worker that has begun more than is known would be asked for it endlessly."""
    farm.after(1.0).join("idle")
    farm.expect(asked_back("w", *nine[5:]))
    farm.hand_back("w")
    farm.expect(asked_back("w", *nine[3:5]))
    farm.hand_back("w", nine[4])
    farm.expect(sent("idle", nine[4]))
    for task in nine[:4]:
        farm.finish("w", task, TINY_S)
    farm.finish("idle", nine[4], TINY_S)
    farm.expect(*(replied(t, TINY_S, "w") for t in nine[:4]), replied(nine[4], TINY_S, "idle"))
    farm.after(1.0).expect()


def test_donor_that_has_nothing_for_the_idle_worker_is_passed_over(farm: Recorder) -> None:
    farm.learn(SHORT_S)
    farm.join("first", "m", "n")
    farm.run_times("n").add(SHORT_S)
    n = farm.begin_many("first", 2, "n")
    farm.join("second", "m", "n")
    farm.begin_many("second", 2, "m")
    farm.after(1.0).join("idle", "n")
    farm.take_back("first", [n[1]], sent("idle", n[1]))
    farm.join("idle too", "n")
    farm.expect()


def test_call_is_not_asked_back_for_a_worker_that_ends_too_soon(farm: Recorder) -> None:
    prefetched(farm)
    farm.now = 100.0
    farm.join("ends", ends_at=100.0)
    farm.after(1e-3).expect()


def test_look_for_a_donor_is_bounded(farm: Recorder) -> None:
    """Of a thousand workers that were just asked, only some are examined per call."""
    farm.learn(SHORT_S)
    names = [f"w{i}" for i in range(LOOK + 1)]
    for name in names:
        farm.join(name)
    farm.submit_many(2 * len(names))
    farm.forget_actions()
    in_turn = [worker.id for worker in farm.pool().fullest_first()]
    for name in in_turn[:LOOK]:
        farm.worker(name).recall_pending = True
    farm.after(1.0).join("idle")
    farm.expect()
    farm.worker(in_turn[LOOK - 1]).recall_pending = False
    farm.worker(in_turn[LOOK - 2]).recall_pending = False
    farm.leave("idle")
    farm.join("idle")
    waiting = list(farm.worker(in_turn[LOOK - 2]).held)[1]
    farm.expect(asked_back(in_turn[LOOK - 2], waiting))


def test_handed_back_calls_keep_their_place_but_pass_no_other_client(
    farm: Recorder, nine: list[TaskId]
) -> None:
    """They have not had their turn; their charge is refunded."""
    mine = farm.submit()
    other = farm.submit(client="other")
    farm.resize("w", 0)
    farm.expect(asked_back("w", *nine))
    farm.hand_back("w", *reversed(nine[3:]))
    farm.hand_back("w", nine[1])
    farm.hand_back("w", nine[2])
    farm.scheduler.cancel(nine[1])
    farm.scheduler.cancel(nine[5])
    farm.expect()
    farm.run_times().prefetch = 0
    farm.join("idle", slots=20)
    farm.expect(sent("idle", nine[2], other, nine[3], nine[4], nine[6], nine[7], nine[8], mine))


# Recalls of cancelled and surplus calls


def test_cancelled_call_that_waits_at_a_worker_is_asked_back(
    farm: Recorder, nine: list[TaskId]
) -> None:
    for task in nine[3:6]:
        farm.scheduler.cancel(task)
    farm.expect(asked_back("w", *nine[3:6]))
    farm.scheduler.cancel(nine[7])
    farm.expect()  # one recall at a time
    farm.hand_back("w", *nine[3:6])
    farm.expect(asked_back("w", nine[7]))
    farm.hand_back("w")
    farm.finish("w", nine[7], TINY_S)
    farm.expect()
    assert len(farm.scheduler) == 5


def test_calls_that_turn_out_long_do_not_stay_bound_to_a_worker(
    farm: Recorder, nine: list[TaskId]
) -> None:
    """Their class had short runs when they were sent; now other calls may precede them."""
    farm.after(60.0).answer("w", nine[0], 60.0, asked_back("w", *nine[2:]))
    farm.hand_back("w", *nine[2:])
    farm.expect()
    urgent = farm.submit(priority=1)
    farm.answer("w", nine[1], 60.0, sent("w", urgent))


def test_small_change_of_run_times_moves_nothing(farm: Recorder) -> None:
    tasks = prefetched(farm)
    farm.after(30 * ROUND_TRIP_S)
    farm.run_times().add(1600 * ROUND_TRIP_S)
    assert farm.run_times().prefetch == 0
    farm.answer("w", tasks[0], SHORT_S)
