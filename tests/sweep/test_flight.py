"""One point in the farm: calls out, answers in, and the row they make."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
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
from farm.sweep.flight import Flight, numbers_of, row_of, send
from farm.sweep.journal import Status
from tests.patience import scaled
from tests.sweep.samples import BEAM, plan_of


class Open:
    """Takes `room` calls and answers none of them."""

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
    flight = send(farm, plan, 3, NO_HINTS)
    assert flight.point == 3
    assert flight.futures == farm.futures
    assert len(flight.futures) == 3
    assert abs(flight.given - time.time()) < scaled(5)


def test_a_point_that_is_not_taken_whole_is_taken_back() -> None:
    farm = Open(room=2)
    with pytest.raises(Overloaded):
        send(farm, plan_of(gradients=["u[1]"]), 3, NO_HINTS)
    assert all(future.cancelled() for future in farm.futures)


def test_landings_are_noted_and_told() -> None:
    farm, told = Open(), []
    flight = send(farm, plan_of(gradients=["u[1]"]), 3, NO_HINTS)
    flight.when_landed(lambda flight, k: told.append(k))
    farm.futures[1].set_result(gradient(1, 2, 3))
    assert told == [1]
    assert set(flight.landed) == {1}
    farm.futures[0].set_exception(ModelFailed("x"))
    assert told == [1, 0]
    assert flight.results() == []


def test_who_asks_late_is_told_at_once() -> None:
    farm, told = Open(), []
    flight = send(farm, plan_of(), 3, NO_HINTS)
    thread = threading.Thread(target=farm.futures[0].set_result, args=(answer(),))
    thread.start()
    thread.join()
    flight.when_landed(lambda flight, k: told.append(k))
    assert told == [0]


def test_a_row_has_the_numbers_and_times() -> None:
    plan, farm = plan_of(gradients=["u[1]"]), Open()
    flight = send(farm, plan, 3, NO_HINTS)
    farm.futures[0].set_result(answer(7.0, run_time_s=1.0, queue_time_s=0.5))
    farm.futures[1].set_result(gradient(1, 2, 3))
    farm.futures[2].set_result(gradient(4))
    row = row_of(plan, flight, None, attempt=2, worker=5, answered=flight.given + 3)
    assert (row.point, row.status, row.attempt, row.worker) == (3, Status.DONE, 2, 5)
    assert (row.t_run, row.t_queue) == (1.5, 0.5)
    assert row.t_total == pytest.approx(3.0)
    assert row.t_start == pytest.approx(flight.given + 1.5)
    assert row.values is not None
    assert row.values[:5].tolist() == [7, 7, 7, 7, 2]
    by_e, by_load = row.values[5:17].reshape(4, 3), row.values[17:].reshape(4, 1)
    assert by_e[1].tolist() == [1, 2, 3]
    assert by_load[1].tolist() == [4]
    assert np.isnan(row.values).sum() == 12


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelFailed("x", detail="Traceback"), Status.FAILED),
        (TimeLimitExceeded("x"), Status.TIMEOUT),
        (Cancelled("x"), Status.CANCELLED),
    ],
)
def test_an_error_makes_a_row_without_numbers(error: FarmError, status: Status) -> None:
    row = row_of(plan_of(), Flight(1), error, attempt=1, worker=0, answered=5.0)
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
    flight = send(farm, plan, 0, NO_HINTS)
    farm.futures[0].set_result(Result((np.zeros(9), np.zeros(1))))
    row = row_of(plan, flight, None, attempt=1, worker=0, answered=time.time())
    assert row.status is Status.FAILED
    assert "into files of their own" in row.error


def test_taking_back_reaches_every_call() -> None:
    farm = Open()
    flight = send(farm, plan_of(gradients=["u"]), 0, NO_HINTS)
    flight.cancel()
    assert all(future.cancelled() for future in farm.futures)
