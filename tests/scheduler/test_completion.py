"""What becomes of tasks that come back or end; the tests of the scheduler's facts have the rest."""

from __future__ import annotations

from farm.errors import Cancelled
from farm.scheduler.phases import ENDED
from tests.scheduler.recorder import Recorder, replied, sent, stateful, step


def test_a_cancelled_task_that_comes_back_ends(farm: Recorder) -> None:
    farm.join("w")
    task = farm.begin("w")
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
