"""Every stage starts calls, and cancels those that it has started: a contract of all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest

from farm.call import Call, Derivative, Hints, ModelInfo, Operation, Result
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.stage import tell
from farm.errors import ModelFailed, Unavailable
from farm.scheduler.actions import Outcome
from farm.scheduler.state import TaskId
from tests.dispatcher.test_dispatcher import CUBE, cube, turns
from tests.dispatcher.test_reuse import BATCHES, Memory, Worker, rows
from tests.dispatcher.test_reuse import up as up_with
from tests.support.scheduler_invariants import check

PAIR = ModelInfo(
    "cube", CUBE.inputs, CUBE.outputs, frozenset({Operation.EVALUATE, Operation.GRADIENT})
)
BOTH = Call(
    "cube",
    Operation.VALUE_AND_GRADIENT,
    (np.ones(1),),
    derivative=Derivative(0, 0, sens=np.ones(1)),
)


class Forgetful(Memory):
    """Looks calls up, but knows none."""

    reuses = False


class Kind(NamedTuple):
    """Calls that a stage keeps; one of them, by default the last, is cancelled."""

    calls: list[Call]
    memory: Callable[[], Memory] = Forgetful
    model: ModelInfo = CUBE
    cancelled: int = -1


KINDS = {
    "a task": Kind([cube(1.0)]),
    "a call of many rows": Kind([rows(*range(1, 9))]),
    "a pair": Kind([BOTH], model=PAIR),
    "a task for which others may wait": Kind([cube(1.0)], Memory),
    "a call that waits for another": Kind([cube(1.0), cube(1.0)], Memory),
    "a task for which another waits": Kind([cube(1.0), cube(1.0)], Memory, cancelled=0),
    "a known call": Kind([cube(2.0)], partial(Memory, x2=8.0)),
    "rows that are in flight elsewhere": Kind([cube(1.0), rows(1.0, 2.0)], Memory, PAIR),
    "rows that others wait for": Kind(
        [rows(1.0, 2.0), cube(2.0), rows(2.0, 1.0)], Memory, BATCHES, cancelled=0
    ),
    "a pair with a memory": Kind([BOTH], Memory, PAIR),
}


def begun(kind: Kind) -> tuple[Dispatcher, Worker, list[TaskId], list[list[Outcome]]]:
    """Start the calls of a kind; return their ids and what becomes of each."""
    dispatcher, worker = up_with(kind.memory(), kind.model)
    outcomes: list[list[Outcome]] = [[] for _ in kind.calls]
    ids = [
        dispatcher.start_call(call, Hints(), found.append)
        for call, found in zip(kind.calls, outcomes, strict=True)
    ]
    return dispatcher, worker, ids, outcomes


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
async def test_a_cancelled_call_leaves_nothing_and_is_cancelled_once(kind: Kind) -> None:
    dispatcher, worker, ids, outcomes = begun(kind)
    task_id, of_cancelled = ids.pop(kind.cancelled), outcomes.pop(kind.cancelled)
    assert dispatcher.stages.cancel(task_id)
    assert not dispatcher.stages.cancel(task_id), "it is not open any more"
    while not all(outcomes):
        await worker.evaluate()
        await turns()
    assert of_cancelled == []
    assert not any(map(dispatcher.stages.cancel, ids)), "they have their outcomes"
    others = [call for call in kind.calls if call is not kind.calls[kind.cancelled]]
    for call, (outcome,) in zip(others, outcomes, strict=True):
        assert isinstance(outcome, Result)
        assert outcome.outputs[0].tolist() == (call.inputs[0] ** 3).tolist()
    assert dispatcher.stages.are_over()
    check(dispatcher._scheduler)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
async def test_of_calls_that_are_all_cancelled_none_is_left_for_later_ones(kind: Kind) -> None:
    dispatcher, worker, ids, outcomes = begun(kind)
    await turns()
    before = list(map(len, outcomes))  # a known call has its answer
    for task_id in ids:
        dispatcher.cancel(task_id)
        await turns()
    assert dispatcher.stages.are_over()
    late: list[Outcome] = []
    dispatcher.start_call(kind.calls[0], Hints(), late.append)
    while not late:
        await turns()
        if worker.sent:
            await worker.evaluate()
    assert isinstance(late[0], Result)
    assert list(map(len, outcomes)) == before


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
async def test_a_farm_that_gives_up_answers_each_call_once(kind: Kind) -> None:
    dispatcher, _, ids, outcomes = begun(kind)
    await turns()
    dispatcher.give_up()
    await turns()
    is_known = kind is KINDS["a known call"]
    assert [[type(each) for each in found] for found in outcomes] == [
        [Result if is_known else Unavailable] for _ in ids
    ]
    assert dispatcher.stages.are_over()


def test_a_receiver_says_how_many_calls_end_and_fail_or_is_one_call() -> None:
    done, stopped = Result(()), Result((), failed=ModelFailed("diverged"))
    outcomes: list[Outcome] = [done, stopped, ModelFailed("diverged")]
    assert [tell(lambda outcome: None, each, 4) for each in outcomes] == [(1, 0), (1, 1), (1, 1)]
    assert [tell(lambda outcome: (8, 2), each, 4) for each in outcomes] == [(4, 2)] * 3
    assert [tell(lambda outcome: (0, 1), each, 4) for each in outcomes] == [(0, 1)] * 3
    assert [tell(None, each, 4) for each in outcomes] == [(1, 0), (1, 0), (0, 0)]
