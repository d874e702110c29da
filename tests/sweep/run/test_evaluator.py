"""What evaluators report, and how those that take calls one by one are a line."""

from __future__ import annotations

import math
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest

from farm.call import NO_HINTS, Call, Operation, Result
from farm.errors import FarmError, ModelFailed, Overloaded
from farm.sweep.file.progress import Progress
from farm.sweep.run.evaluator import FarmUse, Outcome, line_of, report, use_of
from tests.sweep.samples import Open


class Inbox:
    """Keeps the outcomes of calls by key."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self.flushed = 0

    def put(self, key: int, outcome: Outcome) -> None:
        self.outcomes[key] = outcome

    def flush(self) -> None:
        self.flushed += 1


CALLS = [(k, Call("beam", Operation.EVALUATE, (np.full(1, k),))) for k in range(3)]


def test_calls_that_are_taken_one_by_one_are_answered_by_key() -> None:
    farm, inbox = Open(), Inbox()
    line = line_of(farm)
    ids = line.send(CALLS, NO_HINTS, inbox)
    assert ids == farm.futures
    farm.futures[1].set_result(result := Result(()))
    assert (inbox.outcomes, inbox.flushed) == ({1: result}, 1)
    farm.futures[0].set_exception(error := ModelFailed("x"))
    assert inbox.outcomes[0] is error
    assert line.cancel(ids)
    assert isinstance(inbox.outcomes[2], CancelledError)
    assert not line.cancel(ids[:2])


def test_calls_that_are_not_all_taken_are_cancelled() -> None:
    farm, inbox = Open(room=2), Inbox()
    with pytest.raises(Overloaded):
        line_of(farm).send(CALLS, NO_HINTS, inbox)
    assert [future.cancelled() for future in farm.futures] == [True, True]
    assert not inbox.outcomes


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
