"""Calls with several answers."""

from __future__ import annotations

import numpy as np
import pytest

from farm.call import Operation, Result
from farm.errors import WorkerLost
from farm.scheduler.state import TaskId
from tests.support.scheduler_recorder import Recorder, call, ended, replied, result, sent

STREAM = call(operation=Operation.STREAM)


def answer(farm: Recorder, worker: str, task: TaskId, run_time_s: float) -> None:
    """Send one of several answers, identified by its run time."""
    farm.finish(worker, task, Result((np.zeros(1),), run_time_s, more=True))


def test_each_answer_is_a_reply_and_the_task_goes_on(farm: Recorder) -> None:
    farm.join("w")
    task = farm.begin("w", STREAM)
    for run_time_s in (1.0, 2.0):
        answer(farm, "w", task, run_time_s)
        farm.expect(replied(task, run_time_s, "w"))
        assert len(farm.scheduler) == 1
    behind = farm.submit()
    farm.expect()
    farm.answer("w", task, result(4.0), sent("w", behind))


def test_a_stream_is_not_begun_anew(farm: Recorder) -> None:
    farm.join("w")
    task, untouched = farm.submit(STREAM), farm.submit(STREAM)
    farm.expect(sent("w", task))
    answer(farm, "w", task, 1.0)
    farm.expect(replied(task, 1.0, "w"))
    farm.leave("w", "signal 9")
    farm.expect(replied(task, WorkerLost, "w"))
    assert farm.last_error() == (
        "worker w was lost (signal 9) after 1 answers of a stream, which cannot be restarted; "
        "what happened: queued 0 s, lost with w after 0 s (signal 9)"
    )
    farm.join("other")
    farm.expect(sent("other", untouched))
    farm.leave("other")
    farm.join("third")
    farm.expect(sent("third", untouched))


def test_only_the_worker_that_has_it_goes_on_with_it(farm: Recorder) -> None:
    farm.join("w")
    task = farm.begin("w", STREAM)
    farm.leave("w", "its connection was lost")
    answer(farm, "w", task, 1.0)
    farm.expect()
    farm.join("other")
    farm.expect(sent("other", task))
    answer(farm, "w", task, 1.0)
    farm.finish("w", task, result(2.0))
    farm.expect()
    answer(farm, "other", task, 3.0)
    farm.expect(replied(task, 3.0, "other"))


@pytest.mark.parametrize("leaves", [False, True])
def test_a_cancelled_stream_is_ended_and_says_no_more(farm: Recorder, leaves: bool) -> None:
    farm.join("w")
    task = farm.begin("w", STREAM)
    answer(farm, "w", task, 1.0)
    farm.expect(replied(task, 1.0, "w"))
    farm.scheduler.cancel(task)
    farm.expect(ended("w", task))
    if leaves:
        farm.leave("w", drained=True)
    answer(farm, "w", task, 1.0)
    farm.finish("w", task, result(2.0))
    farm.expect()
    assert len(farm.scheduler) == 0
