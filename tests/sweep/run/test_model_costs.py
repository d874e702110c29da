"""Workers are asked for the costs of points in few calls, and never for long."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import farm
from farm.call import Array, Call, Hints, ModelInfo, Operation, Result
from farm.errors import FarmError, InvalidOutput, ModelFailed, Unavailable, WorkerLost
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.order.given import MODEL
from farm.sweep.run.model_costs import OPEN_CALLS, ROWS_A_CALL, with_asked_costs
from farm.sweep.run.threads import Threads
from tests.sweep.samples import BEAM, plan_of

ASKED = replace(BEAM, operations=BEAM.operations | {Operation.COST})
HINTS = Hints("sweep-7", 3, chain="")


class Asked:
    """A farm that answers with the load of each row, or with what it was made with."""

    def __init__(self, answer: Array | FarmError | None = None, *, silent_after: int = 10**9):
        self.calls: list[tuple[Call, Hints]] = []
        self.futures: list[Future[Result]] = []
        self._answer = answer
        self._silent_after = silent_after

    def describe(self, model: str, config: Mapping[str, Any] | None = None) -> ModelInfo:
        return ASKED

    def submit(self, call: Call, hints: Hints = HINTS) -> Future[Result]:
        self.calls.append((call, hints))
        future: Future[Result] = Future()
        self.futures.append(future)
        if isinstance(self._answer, FarmError):
            future.set_exception(self._answer)
        elif len(self.calls) <= self._silent_after:
            answer = call.inputs[1] if self._answer is None else self._answer
            future.set_result(Result((answer,)))
        return future


class Refuses(Asked):
    """A farm that accepts no call."""

    def submit(self, call: Call, hints: Hints = HINTS) -> Future[Result]:
        raise Unavailable("gone")


class Costly(farm.Model):
    inputs = {"E": 3, "load": 1}
    outputs = {"u": 4}

    def cost(self, inputs: farm.Inputs, config: farm.Config) -> float:
        return float(inputs["load"][0] * config.get("mesh", 1) + inputs["E"].sum())

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> Array:
        return np.zeros(4)


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads({"beam": Costly()}, workers=2)
    yield made
    made.close()


def plan(points: int, **options: Any) -> Plan:
    return plan_of(f"random:{points}", info=ASKED, **options)


def test_each_point_has_the_cost_that_its_model_says(threads: Threads) -> None:
    """Points of one config share a call; the costs come back to where the points are."""
    params = {"E": "1:2", "load": "1:2", "mesh": "int:1:4"}
    made = plan_of("random:40", params, info=threads.describe("beam"))
    costs = with_asked_costs(made, threads, HINTS)
    expected = made.theta[:, 3] * made.theta[:, 4] + made.theta[:, :3].sum(axis=1)
    assert costs.cost == pytest.approx(expected)
    assert costs.cost_rule == MODEL


def test_one_caller_asks_in_calls_of_many_rows() -> None:
    asked = Asked()
    made = plan(2 * ROWS_A_CALL + 1)
    costs = with_asked_costs(made, asked, HINTS).cost
    assert costs is not None
    assert np.array_equal(costs, made.theta[:, 3])
    assert [call.rows for call, _ in asked.calls] == [ROWS_A_CALL, ROWS_A_CALL, 1]
    assert {hints for _, hints in asked.calls} == {HINTS}
    assert {call.operation for call, _ in asked.calls} == {Operation.COST}
    assert {call.config for call, _ in asked.calls} == {"{}"}


def test_a_call_of_large_points_fits_into_a_message() -> None:
    info = replace(ASKED, inputs=(replace(BEAM.inputs[0], shape=(2**18,)), BEAM.inputs[1]))
    made = plan_of("random:5", {"load": "1:2"}, info=info, fixes={"E": [1.0] * 2**18})
    asked = Asked()
    with_asked_costs(made, asked, HINTS)
    assert [call.rows for call, _ in asked.calls] == [1] * 5


def test_a_model_without_costs_and_other_orders_are_not_asked() -> None:
    asked = Asked()
    for made in (plan_of(info=BEAM), plan(20, order="given"), plan(20, order="shuffled")):
        assert with_asked_costs(made, asked, HINTS) is made
    assert not asked.calls


def test_busy_workers_are_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """Open calls are few, and cancelled."""
    made = plan(5 * OPEN_CALLS, seed_key="seed")
    asked = Asked(silent_after=3)
    with caplog.at_level(logging.WARNING):
        assert with_asked_costs(made, asked, HINTS, silent_s=0.01) is made
    assert len(asked.calls) == OPEN_CALLS + 3
    assert all(future.cancelled() for future in asked.futures[3:])
    (record,) = caplog.records
    assert f"may be busy, have told 3 of {made.size} in time" in record.getMessage()


def test_many_answers_may_not_take_long_together() -> None:
    made = plan(20)
    assert with_asked_costs(made, Asked(), HINTS, patience_s=0.0) is made


@pytest.mark.parametrize("asked", [Asked(WorkerLost("died")), Refuses()])
def test_calls_that_are_lost_leave_the_plan(asked: Asked, caplog: pytest.LogCaptureFixture) -> None:
    made = plan(20)
    assert with_asked_costs(made, asked, HINTS) is made
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (ModelFailed("KeyError: 'mesh'"), "KeyError: 'mesh'; correct it"),
        (InvalidOutput("it is -1"), "it is -1; correct it"),
        (np.zeros(20), r"have the shapes \[\(20,\)\], expected \[\(20, 1\)\]"),
        (np.full((20, 1), -1.0), "point 0 is -1; expected a finite number, 0 or more"),
    ],
)
def test_a_method_that_fails_is_a_mistake(answer: Array | FarmError, complaint: str) -> None:
    with pytest.raises(SweepError, match=complaint):
        with_asked_costs(plan(20), Asked(answer), HINTS)
