"""What becomes of tasks that come back or end; the tests of the scheduler's facts have the rest."""

from __future__ import annotations

from farm.errors import Cancelled, WorkerLost
from farm.scheduler.phases import ENDED, QUEUED
from tests.scheduler.recorder import Recorder, replied, sent, stateful, step


def test_a_task_that_comes_back_goes_before_younger_ones(farm: Recorder) -> None:
    farm.join("w")
    first = farm.submit()
    farm.expect(sent("w", first))
    second = farm.submit()
    farm.hand_back("w", first)
    assert farm.task(first).phase is QUEUED
    farm.expect(sent("w", first))
    farm.finish("w", first)
    farm.expect(replied(first, 1.0, "w"), sent("w", second))
    farm.finish("w", second)
    farm.expect(replied(second, 1.0, "w"))


def test_a_cancelled_task_that_comes_back_ends(farm: Recorder) -> None:
    farm.join("w")
    task = farm.submit()
    farm.expect(sent("w", task))
    record = farm.task(task)
    farm.scheduler.cancel(task)
    farm.hand_back("w", task)
    farm.expect()
    assert record.phase is ENDED


def test_a_cancelled_call_of_a_sequence_that_comes_back_breaks_it_off(farm: Recorder) -> None:
    farm.join("w", stateful())
    first, second = farm.submit(step(7, "s")), farm.submit(step(7))
    farm.expect(sent("w", first))
    farm.scheduler.cancel(first)
    farm.hand_back("w", first)
    farm.expect(replied(second, Cancelled, None), ("end sequence", "w", 7))


def test_errors_of_broken_sequences_name_them(farm: Recorder) -> None:
    farm.join("w", stateful())
    first, second = farm.submit(step("x", "s")), farm.submit(step("x"))
    farm.expect(sent("w", first))
    farm.leave("w", "it crashed")
    farm.expect(replied(first, WorkerLost, "w"), replied(second, WorkerLost, None))
    assert "sequence x of model 's' was lost with worker w (it crashed)" in farm.last_error()
