"""value_and_gradient of models that lack it: an evaluation and a gradient, answered as one call."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from farm.call import Call, Derivative, Hints, ModelInfo, Operation, Result, TensorInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.stage import OnDone
from farm.dispatcher.stages import Tasks
from farm.errors import FarmError, ModelFailed, Overloaded, UnsupportedFeature
from farm.scheduler.actions import Outcome
from farm.scheduler.state import TaskId, WorkerId
from tests.dispatcher.ended_calls import Failures
from tests.dispatcher.test_dispatcher import W1, W2, Recorder, served, turns, up

BOTH = Operation.VALUE_AND_GRADIENT
SPLIT = ModelInfo(
    "split",
    (TensorInfo("x", (2,)),),
    (TensorInfo("y", (1,)),),
    frozenset({Operation.EVALUATE, Operation.GRADIENT}),
)
KEEPS = replace(SPLIT, name="keeps", keeps_point=True)
WHOLE = replace(SPLIT, name="whole", operations=SPLIT.operations | {BOTH})
MODELS = (SPLIT, KEEPS, WHOLE)

VALUE = Result((np.array([5.0]),), 0.25)
GRADIENT = Result((np.array([2.0, 4.0]),), 0.5)


def asked(model: str = "split", config: str = '{"k":1}') -> Call:
    wrt = Derivative(0, 0, sens=np.ones(1))
    return Call(model, BOTH, (np.array([1.0, 2.0]),), config, wrt)


class Outcomes(list[Result | FarmError]):
    """Collects the outcomes of a call; there must be one."""

    def one(self) -> Result:
        (outcome,) = self
        if isinstance(outcome, FarmError):
            raise outcome
        return outcome


def started(dispatcher: Dispatcher, model: str = "split") -> Outcomes:
    outcomes = Outcomes()
    dispatcher.start_call(asked(model), Hints(), outcomes.append)
    return outcomes


async def both_sent(transport: Recorder) -> tuple[tuple[WorkerId, TaskId], tuple[WorkerId, TaskId]]:
    """Return worker and task of the evaluation, and those of the gradient."""
    found = {}
    for _ in range(2):
        worker, task_id, call = await transport.next()
        assert call.config == '{"k":1}'
        assert (call.derivative is None) == (call.operation is Operation.EVALUATE)
        found[call.operation] = worker, task_id
    return found[Operation.EVALUATE], found[Operation.GRADIENT]


def two_workers(**limits: int) -> tuple[Dispatcher, Recorder]:
    dispatcher, transport = up(**limits)
    transport.join(W1, MODELS)
    transport.join(W2, MODELS)
    return dispatcher, transport


@pytest.mark.parametrize("first", ["value", "gradient"])
async def test_both_run_side_by_side_and_are_one_answer(first: str) -> None:
    dispatcher, transport = two_workers()
    outcomes = started(dispatcher)
    value, gradient = await both_sent(transport)
    assert value[0] != gradient[0]
    answers = [(value, VALUE), (gradient, GRADIENT)]
    for (worker, task_id), answer in answers if first == "value" else answers[::-1]:
        assert outcomes == []
        dispatcher.finished(worker, [(task_id, answer)])
        await turns()
    result = outcomes.one()
    assert [array.tolist() for array in result.outputs] == [[5.0], [2.0, 4.0]]
    assert (result.run_time_s, result.worker) == (0.75, "2 workers")
    assert dispatcher.stages.calls_open() == 0
    counted = dispatcher.statistics()["split"]
    assert (counted.success.count, counted.fail.count, counted.executions) == (1, 0, 2.0)
    assert counted.compute.seconds == 0.75


@pytest.mark.parametrize("model", ["keeps", "whole"])
async def test_one_worker_does_both_if_it_keeps_the_point_or_has_the_method(model: str) -> None:
    dispatcher, transport = two_workers()
    outcomes = started(dispatcher, model=model)
    worker, task_id, call = await transport.next()
    assert call.operation is BOTH
    await turns()
    assert transport.sent == []
    dispatcher.finished(worker, [(task_id, Result(VALUE.outputs + GRADIENT.outputs, 0.5))])
    await turns()
    assert len(outcomes.one().outputs) == 2


@pytest.mark.parametrize("other", [VALUE, ModelFailed("no value")], ids=["a value", "an error"])
async def test_the_first_error_is_the_outcome_of_one_call(other: Outcome) -> None:
    dispatcher, transport = two_workers()
    failures = Failures(dispatcher)
    outcomes = started(dispatcher)
    (v_worker, value), (g_worker, gradient) = await both_sent(transport)
    dispatcher.finished(g_worker, [(gradient, ModelFailed("no slope"))])
    dispatcher.finished(v_worker, [(value, other)])
    await turns()
    with pytest.raises(ModelFailed, match="no slope"):
        outcomes.one()
    assert [each.calls for each in failures()] == [1]
    assert dispatcher.stages.calls_open() == 0


@pytest.fixture
def no_search_for_garbage() -> Iterator[None]:
    """The front door seldom searches for cycles, and not at all among many objects."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_search_for_garbage")
@pytest.mark.parametrize("end", ["answer", "error", "cancelled", "half cancelled", "refused"])
async def test_an_ended_pair_has_at_most_one_outcome_and_leaves_no_cycle(end: str) -> None:
    dispatcher, transport = two_workers(max_queued_per_client=1 + (end != "refused"))
    receiver = Outcomes()
    left = weakref.ref(receiver)
    try:
        call_id = dispatcher.start_call(asked(), Hints(), receiver.append)
    except Overloaded:
        assert end == "refused"
    else:
        outcome = ModelFailed("no value") if end == "error" else VALUE
        (worker, task_id), gradient = await both_sent(transport)
        if end != "cancelled":
            dispatcher.finished(worker, [(task_id, outcome)])
            await turns()
        for _ in range(2 if "cancelled" in end else 0):  # the second time changes nothing
            dispatcher.cancel(call_id)
            assert dispatcher.stages.calls_open() == 0
        for seat, task in ((worker, task_id), gradient):
            dispatcher.finished(seat, [(task, outcome)])
        await turns()
        assert len(receiver) == ("cancelled" not in end)
    del receiver
    await turns()
    assert left() is None


@pytest.mark.parametrize("chain", [None, "", "c"])
def test_hints_hold_for_both_and_a_pair_is_one_caller(
    chain: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[Hints, float]] = []

    def start(_: Tasks, call: Call, hints: Hints, done: OnDone, now: float) -> TaskId:
        given.append((hints, now))
        return TaskId(len(given))

    monkeypatch.setattr(Tasks, "start", start)
    dispatcher, _ = up()
    dispatcher.expect(MODELS)
    hints = Hints("me", 3, 1.0, 2.0, chain)
    dispatcher.start_call(asked(), hints, Outcomes().append)
    of_both = replace(hints, chain="pair -1" if chain is None else chain)
    assert given == [(of_both, given[0][1])] * 2


async def test_if_one_half_is_refused_none_runs() -> None:
    dispatcher, transport = up(max_queued_per_client=1)
    dispatcher.expect(MODELS)
    with pytest.raises(Overloaded):
        started(dispatcher)
    assert dispatcher.stages.calls_open() == 0
    transport.join(W1, MODELS)
    await turns()
    assert transport.sent == []


async def test_a_model_without_both_parts_is_refused() -> None:
    dispatcher, transport = served(replace(SPLIT, operations=frozenset({Operation.EVALUATE})))
    with pytest.raises(UnsupportedFeature, match="does not offer value_and_gradient"):
        await dispatcher.submit(asked(config="{}"))
    # With a config that the farm does not know yet, the worker decides.
    started(dispatcher)
    _, _, call = await transport.next()
    assert call.operation is BOTH
