"""One point in flight: its calls, their answers, and the resulting row."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from farm.call import NO_HINTS, Call, Hints, ModelInfo, Result
from farm.errors import (
    Cancelled,
    FarmError,
    InvalidOutput,
    ModelFailed,
    Overloaded,
    TimeLimitExceeded,
)
from farm.sweep.design.plan import Plan
from farm.sweep.file.journal import PointStatus
from farm.sweep.file.progress import Progress
from farm.sweep.run import in_flight as module
from farm.sweep.run.in_flight import (
    CallEvaluator,
    FarmUse,
    PointInFlight,
    PointsInFlight,
    numbers_of,
    report,
    row_of,
    use_of,
)
from tests.support.time_limits import scaled
from tests.sweep.samples import BEAM, plan_of


def submit_point(
    evaluator: CallEvaluator, plan: Plan, point: int, hints: Hints = NO_HINTS
) -> PointInFlight:
    return PointsInFlight(evaluator, plan, hints).submit(point)


class Open:
    """Accepts `room` calls and answers none of them."""

    def __init__(self, room: int = 100) -> None:
        self.room = room
        self.futures: list[Future[Result]] = []

    def describe(self, model: str, config: Mapping[str, Any] | None = None) -> ModelInfo:
        return BEAM

    def submit(self, call: Call, hints: Hints = NO_HINTS) -> Future[Result]:
        if len(self.futures) == self.room:
            raise Overloaded("full")
        self.futures.append(Future())
        return self.futures[-1]


def answer(u: float = 1.0, **more: Any) -> Result:
    return Result((np.full(4, u), np.array([2.0])), **more)


def gradient(*numbers: float) -> Result:
    return Result((np.array(numbers),), run_time_s=0.25)


def test_a_point_goes_out_with_all_its_calls() -> None:
    plan, farm = plan_of(gradients=["u[1]"]), Open()
    sent = submit_point(farm, plan, 3, NO_HINTS)
    assert sent.point == 3
    assert sent.futures == farm.futures
    assert len(sent.futures) == 3
    assert abs(sent.submitted_at - time.time()) < scaled(5)


def test_a_point_that_is_not_accepted_whole_is_cancelled() -> None:
    farm = Open(room=2)
    with pytest.raises(Overloaded):
        submit_point(farm, plan_of(gradients=["u[1]"]), 3, NO_HINTS)
    assert all(future.cancelled() for future in farm.futures)


def test_answers_are_queued_with_their_times() -> None:
    farm = Open()
    flying = PointsInFlight(farm, plan_of(gradients=["u[1]"]), NO_HINTS)
    sent = flying.submit(3)
    assert flying.points == {3: sent}
    farm.futures[1].set_result(gradient(1, 2, 3))
    assert flying.answers.get_nowait() == (sent, 1)
    assert set(sent.answered_at) == {1}
    farm.futures[0].set_exception(ModelFailed("x"))
    assert flying.answers.get_nowait() == (sent, 0)
    assert flying.answers.empty()
    assert sent.results() == []


def test_the_newest_points_without_an_answer_are_cancelled() -> None:
    farm = Open()
    flying = PointsInFlight(farm, plan_of(), NO_HINTS)
    for point in (3, 1, 4, 2):
        flying.submit(point)
    farm.futures[1].set_result(answer())
    assert flying.cancel(keep=1) == [2, 4]
    assert list(flying.points) == [3, 1]
    assert [future.cancelled() for future in farm.futures] == [False, False, True, True]
    assert flying.cancel_all() == [3, 1]
    assert not flying.points


def test_a_row_has_the_numbers_and_times() -> None:
    plan, farm = plan_of(gradients=["u[1]"]), Open()
    sent = submit_point(farm, plan, 3, NO_HINTS)
    farm.futures[0].set_result(answer(7.0, run_time_s=1.0, queue_time_s=0.5))
    farm.futures[1].set_result(gradient(1, 2, 3))
    farm.futures[2].set_result(gradient(4))
    row = row_of(plan, sent, None, attempt=2, worker=5, answered=sent.submitted_at + 3)
    assert (row.point, row.status, row.attempt, row.worker) == (3, PointStatus.DONE, 2, 5)
    assert (row.t_run, row.t_queue) == (1.5, 0.5)
    assert row.t_total == pytest.approx(3.0)
    assert row.t_start == pytest.approx(sent.submitted_at + 1.5)
    assert row.values is not None
    assert row.values[:5].tolist() == [7, 7, 7, 7, 2]
    by_e, by_load = row.values[5:17].reshape(4, 3), row.values[17:].reshape(4, 1)
    assert by_e[1].tolist() == [1, 2, 3]
    assert by_load[1].tolist() == [4]
    assert np.isnan(row.values).sum() == 12
    assert not row.copied


def test_a_point_is_copied_if_one_of_its_calls_was() -> None:
    plan, farm = plan_of(gradients=["u[1]"]), Open()
    sent = submit_point(farm, plan, 3, NO_HINTS)
    farm.futures[0].set_result(answer())
    farm.futures[1].set_result(replace(gradient(1, 2, 3), copied=True))
    farm.futures[2].set_result(gradient(4))
    row = row_of(plan, sent, None, attempt=1, worker=5, answered=sent.submitted_at + 3)
    assert (row.copied, row.reused) == (True, False)


def test_a_point_is_reused_if_one_of_its_calls_was() -> None:
    plan, farm = plan_of(gradients=["u[1]"]), Open()
    sent = submit_point(farm, plan, 3, NO_HINTS)
    farm.futures[0].set_result(replace(answer(), reused=True))
    farm.futures[1].set_result(gradient(1, 2, 3))
    farm.futures[2].set_result(gradient(4))
    row = row_of(plan, sent, None, attempt=1, worker=5, answered=sent.submitted_at + 3)
    assert (row.copied, row.reused) == (False, True)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelFailed("x", detail="Traceback"), PointStatus.FAILED),
        (TimeLimitExceeded("x"), PointStatus.TIMEOUT),
        (Cancelled("x"), PointStatus.CANCELLED),
    ],
)
def test_an_error_makes_a_row_without_numbers(error: FarmError, status: PointStatus) -> None:
    row = row_of(plan_of(), PointInFlight(1), error, attempt=1, worker=0, answered=5.0)
    assert (row.status, row.values, row.t_start) == (status, None, 5.0)
    assert row.error == f"{type(error).__name__}: x"
    assert row.traceback == error.detail
    assert math.isnan(row.t_run)


def test_outputs_of_other_sizes_are_refused() -> None:
    plan = plan_of("random:2")
    assert len(numbers_of(plan, [answer()])) == 5
    with pytest.raises(InvalidOutput, match="'u' has 3 entries, the sweep's file has 4"):
        numbers_of(plan, [Result((np.zeros(3), np.zeros(1)))])
    with pytest.raises(InvalidOutput, match="1 outputs, the sweep's file has 2"):
        numbers_of(plan, [Result((np.zeros(4),))])


def test_a_point_whose_outputs_do_not_fit_has_failed() -> None:
    plan, farm = plan_of(), Open()
    sent = submit_point(farm, plan, 0, NO_HINTS)
    farm.futures[0].set_result(Result((np.zeros(9), np.zeros(1))))
    row = row_of(plan, sent, None, attempt=1, worker=0, answered=time.time())
    assert row.status is PointStatus.FAILED
    assert "use a separate sweep" in row.error


def test_cancelling_reaches_every_call() -> None:
    farm = Open()
    sent = submit_point(farm, plan_of(gradients=["u"]), 0, NO_HINTS)
    sent.cancel()
    assert all(future.cancelled() for future in farm.futures)


class Reporting(Open):
    """A farm that reports these rows of its queues."""

    def __init__(self, status: dict[str, Any] | FarmError) -> None:
        super().__init__()
        self._status = status

    def status(self) -> dict[str, Any]:
        if isinstance(self._status, FarmError):
            raise self._status
        return self._status


def test_the_use_of_a_farm_is_the_model_s_running_calls_and_all_slots() -> None:
    rows = [{"model": m, "in_flight": n} for m, n in (("beam", 3), ("beam", 1), ("plate", 9))]
    workers = [{"slots": 1}, {"slots": 16}]
    assert use_of(Reporting({"queues": rows, "workers": workers}), "beam") == FarmUse(4, 17)
    assert use_of(Reporting({"queues": []}), "beam") == FarmUse(0, 0)


def test_the_use_is_unknown_without_a_farm_s_status() -> None:
    for unknown in (Open(), Reporting({}), Reporting(Overloaded("x"))):
        assert use_of(unknown, "beam") == FarmUse(None, 0)
    for odd in ("many", None, math.inf, math.nan):
        status = {"queues": [], "workers": [{"slots": odd}]}
        assert use_of(Reporting(status), "beam") == FarmUse(None, 0)
    assert use_of(Reporting({"queues": [], "workers": [{}]}), "beam") == FarmUse(0, 0)


def test_the_slots_of_a_farm_that_answers_late_are_known_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ASK_S", 0.0)
    asked, answer = threading.Event(), threading.Event()

    class Late(Reporting):
        def status(self) -> dict[str, Any]:
            asked.set()
            assert answer.wait(20.0)
            return super().status()

    sent = PointsInFlight(
        Late({"queues": [], "workers": [{"slots": 40}]}), plan_of(gradients=["u[1]"]), NO_HINTS
    )
    assert sent.use() == FarmUse(None, 0)
    assert asked.wait(20.0)
    answer.set()
    assert sent._asker is not None
    sent._asker.join(20.0)
    answer.clear()
    assert sent.use() == FarmUse(None, 40)
    answer.set()


class Listening(Open):
    """An evaluator that takes reports."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[dict[str, Any]] = []

    def report_progress(self, kind: str, name: str, **values: Any) -> None:
        self.reports.append({"kind": kind, "name": name, **values})


def test_an_evaluator_that_can_show_progress_is_told_of_it() -> None:
    progress = Progress(
        "running", "beam lhs", 10, done=3, failed=1, timeout=1, rate_per_s=0.5, run_id="r"
    )
    listening = Listening()
    report(listening, progress, "sweep-r")
    report(Open(), progress, "sweep-r")
    assert listening.reports == [
        {
            "kind": "sweep",
            "name": "beam lhs",
            "done": 3,
            "failed": 2,
            "total": 10,
            "per_s": 0.5,
            "ends_in_s": None,
            "state": "running",
            "identity": "r",
            "client": "sweep-r",
        }
    ]
