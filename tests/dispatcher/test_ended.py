"""The stream of ended calls: one record for each, and when windows get it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from farm.call import Call, CallerName, Hints, Operation, Result, WorkerInfo
from farm.dispatcher import call_statistics
from farm.dispatcher import ended as module
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.ended import (
    ANSWERED,
    BATCH,
    FULL,
    REFUSED,
    REUSED,
    WHOLE,
    EndedCall,
    EndedCalls,
    Failure,
)
from farm.errors import ModelFailed, Unavailable, WorkerLost
from farm.monitoring import workers
from farm.monitoring.counters import Counters
from farm.monitoring.failures import Failures
from farm.monitoring.history import History
from farm.monitoring.workers import WorkerFacts
from farm.scheduler.actions import Reply
from farm.scheduler.state import TaskId, WorkerId
from tests.dispatcher.ended_calls import task
from tests.support.scheduler_recorder import call

ME = Hints("me", shown_as=("me", "a"))
BAD = ModelFailed("diverged")


class Seen:
    """A window that keeps what it is given, batch by batch."""

    def __init__(self, stream: EndedCalls) -> None:
        self.batches: list[list[EndedCall]] = []
        stream.add_window(self)

    def fold(self, records: Sequence[EndedCall]) -> None:
        self.batches.append(list(records))

    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]


@pytest.fixture
def stream() -> EndedCalls:
    return EndedCalls()


@pytest.fixture
def seen(stream: EndedCalls) -> Seen:
    return Seen(stream)


def record(at: float = 0.0) -> EndedCall:
    return EndedCall(ANSWERED, "m", Operation.EVALUATE, "me", 0.0, at)


@pytest.mark.parametrize(
    ("count", "at_once", "next_turn"),
    [(BATCH - 1, [], []), (3 * BATCH, [], [3 * BATCH]), (3 * FULL + 1, [FULL] * 3, [1])],
    ids=["few", "many", "too many"],
)
async def test_records_are_folded_together(
    stream: EndedCalls, seen: Seen, count: int, at_once: list[int], next_turn: list[int]
) -> None:
    for at in range(count):
        stream.add(record(float(at)))
    assert seen.sizes() == at_once
    await asyncio.sleep(0)
    assert seen.sizes() == at_once + next_turn
    for _ in range(2):  # nothing is given twice
        stream.fold()
    assert [each.at for batch in seen.batches for each in batch] == list(range(count))


async def test_a_failure_is_told_in_the_next_turn(stream: EndedCalls, seen: Seen) -> None:
    stream.refused(call(), ME, BAD)
    assert seen.batches == []
    await asyncio.sleep(0)
    ((ended,),) = seen.batches
    assert ended.ending is REFUSED
    assert ended.failure == Failure(BAD, 1, call_of(ended), None, "", "me")


def call_of(ended: EndedCall) -> Call:
    assert ended.failure is not None
    return ended.failure.call


def counted(ended: EndedCall) -> tuple[int, int]:
    return ended.calls_done, ended.calls_failed


def answered(rows: int | None = None) -> Reply:
    return Reply(task(rows=rows), BAD, 0.0, WorkerId("w"))


def test_a_record_says_what_whose_where_how_long_and_how_it_ended(
    stream: EndedCalls, seen: Seen
) -> None:
    reply = answered()
    reply.task.lose("signal 9", "signal 11")
    result = Result((np.zeros(1),), 2.0, worker="p", queue_time_s=0.5, idle_s=0.1, batch_rows=3)
    stream.answered(reply, result, 1, 0, 12.0)
    stream.fold()
    ((ended,),) = seen.batches
    assert (ended.ending, ended.model, ended.operation) == (ANSWERED, "m", Operation.EVALUATE)
    assert (ended.task, ended.client) == (reply.task.id, reply.task.account.client.name)
    assert (ended.worker, ended.seat) == ("p", "w")
    assert (ended.began, ended.at) == (reply.task.submitted_at, 12.0)
    assert (ended.run_s, ended.row_s, ended.queue_s, ended.idle_s) == (2.0, 2.0, 0.5, 0.1)
    assert (ended.batch_rows, ended.rows, ended.done, ended.losses) == (3, 1, 1, 2)
    assert (ended.error, ended.failure, counted(ended)) == (None, None, (1, 0))
    assert ended.worker_s == pytest.approx(2.0 / 3.0)


@pytest.mark.parametrize(
    ("done", "calls", "counts"),
    [(4, 6, (4, 1)), (4, 1, (0, 1)), (4, 0, (0, 0)), (0, 6, (0, 6))],
    ids=["its rows are calls", "a call in parts", "a part of a call", "a lost run"],
)
async def test_of_a_run_of_rows_those_done_and_those_that_failed_are_told(
    stream: EndedCalls, seen: Seen, done: int, calls: int, counts: tuple[int, int]
) -> None:
    reply = answered(rows=6)
    assert reply.task.is_run
    result = Result((np.zeros((4, 1)),), 2.0, worker="p", failed=BAD)
    fails = counts[1]
    stream.answered(reply, result if done else BAD, calls, fails, 12.0)
    stream.fold()
    ((ended,),) = seen.batches
    assert (ended.ran, ended.done, counted(ended)) == (done > 0, done, counts)
    if done:
        assert (ended.row_s, ended.worker_s, ended.batch_rows) == (0.5, 2.0, 1)
    row, worker = (done, "p") if done else (None, "w")
    client = reply.task.account.client.name
    failure = Failure(BAD, fails, reply.task.call, row, worker, client)
    assert ended.failure == (failure if fails else None)


async def test_other_ends_have_records_of_their_own(stream: EndedCalls, seen: Seen) -> None:
    stream.whole(call(), Result((), 1.0, queue_time_s=0.5), ME, 3.0)
    stream.whole(call(), BAD, ME, 3.0)
    stream.reused(call(), ME, calls=2, rows=5)
    stream.refused(call(), Hints("me", patient=True), Unavailable("later"))
    stream.refused(Call("m", Operation.DESCRIBE), ME, BAD)
    stream.fold()
    ((whole, failed, reused),) = seen.batches
    assert (whole.ending, failed.ending, reused.ending) == (WHOLE, WHOLE, REUSED)
    assert {each.chain for each in (whole, failed, reused)} == {("me", "a")}
    assert (whole.began, whole.queue_s, counted(whole)) == (3.0, 0.5, (1, 0))
    assert (counted(failed), failed.failure) == ((0, 1), None), "its task told the failure"
    assert (counted(reused), reused.rows) == ((2, 0), 5)
    assert reused.task == TaskId(-1)


# However many the windows get at once, they show the same


CALL = Call("m", Operation.EVALUATE, (np.zeros(1),))
FAILURES = [
    Failure(error, calls, CALL, None, "w0", "c0")
    for error in (BAD, ModelFailed("stiff"), WorkerLost("it died"))
    for calls in (1, 3)
]
SECONDS = (0.0, 1e-6, 0.01, 0.5, 3.0, 40.0, 1e3)
VALUES: dict[str, Sequence[Any]] = {
    "ending": (*[ANSWERED] * 9, WHOLE, REUSED, REFUSED),
    "model": ("m0", "m1"),
    "operation": (
        *[Operation.EVALUATE] * 4,
        Operation.GRADIENT,
        Operation.COST,
        Operation.DESCRIBE,
    ),
    "client": [f"c{number}" for number in range(6)],
    "calls_done": (0, 1, 1, 1, 8),
    "calls_failed": (0, 0, 0, 1, 3),
    "rows": (1, 1, 3, 8),
    "done": (0, 1, 1, 3),
    "is_run": (True, False),
    "error": (*[None] * 4, BAD, WorkerLost("it died")),
    "failure": (*[None] * 20, *FAILURES),
    "worker": ("w0", "w1", "process", ""),
    "seat": ("w0", "w1", "gone"),
    "ran": (True, True, True, False),
    **dict.fromkeys(("run_s", "row_s", "worker_s", "queue_s"), SECONDS),
    "idle_s": (-1.0, *SECONDS),
    "batch_rows": (1, 1, 4, 12),
    "waited": (True, False),
    "copied": (*[False] * 9, True),
    "more": (True, False),
    "losses": (0, 0, 0, 2),
    "chain": (*[None] * 4, *[("me", f"chain {number}") for number in range(6)]),
}
"""The values that the fields of a record may have, but for its times."""

Step = EndedCall | tuple[CallerName, TaskId, float] | TaskId
"""A call that ended, a task that a chain opened at some time, or a task that is cancelled."""


def plan(chance: random.Random) -> Iterator[Step]:
    """Yield what happens to a dispatcher."""
    now, opened = 1000.0, list[TaskId]()
    for number in range(400):
        now += chance.expovariate(chance.choice((0.1, 5.0, 100.0)))
        if chance.random() < 0.2:
            opened.append(TaskId(number))
            yield ("me", f"chain {chance.randrange(4)}"), opened[-1], now
        if opened and chance.random() < 0.05:
            yield opened.pop()
        drawn = {name: chance.choice(values) for name, values in VALUES.items()}
        ended = EndedCall(began=now - chance.uniform(0.0, 9.0), at=now, **drawn)
        if opened and chance.random() < 0.3:
            ended.task = opened[-1] if ended.more else opened.pop()
        yield ended


def shown(steps: list[Step], chance: random.Random, often: float) -> dict[str, Any]:
    """Return what all windows show after these steps. often: the share of them with a fold."""
    dispatcher = Dispatcher([])
    counters, facts, failures = Counters(dispatcher), WorkerFacts(dispatcher), Failures(dispatcher)
    history = History(dispatcher)
    history.close()
    for name in ("w0", "w1"):
        facts.joined(WorkerInfo(name, ()), None)
    for step in steps:
        if isinstance(step, EndedCall):
            dispatcher.ended.add(step)
        elif isinstance(step, tuple):
            chain, task_id, now = step
            dispatcher.chains.opened(task_id, CALL, chain, now)
        else:
            dispatcher.chains.cancelled(step)
        if chance.random() < often:
            dispatcher.ended.fold()
    models, clients = dispatcher.statistics(), dispatcher._statistics.clients
    now = max(step.at for step in steps if isinstance(step, EndedCall))
    run_times = [facts._facts[name].run_times for name in ("w0", "w1")]
    return {
        "models": {name: asdict(of) for name, of in models.items()},
        "clients": clients.snapshot({}, now),
        "called last": [*clients._by_name],
        "recent": [list(tally.recent) for tally in clients._by_name.values()],
        "chains": dispatcher.chains.snapshot((), now),
        "measures": dispatcher.measures.snapshot(now),
        "counts": counters.snapshot()["queues"],
        "workers": [(of.count, of.quantiles(0.1, 0.5, 0.9), of.above(1.0)) for of in run_times],
        "runs": list(history._runs),
        "failures": failures.snapshot(details=True),
    }


def check_same(one: Any, other: Any) -> None:
    """Check nested data; sums of floats may be off by the order of their parts."""
    if isinstance(one, dict):
        assert list(one) == list(other)
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list | tuple):
        assert len(one) == len(other)
        for each, its in zip(one, other, strict=True):
            check_same(each, its)
    else:
        assert other == (pytest.approx(one, rel=1e-9) if isinstance(one, float) else one)


@pytest.mark.parametrize("seed", range(2))
async def test_a_batch_is_counted_as_its_records_one_by_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(time=lambda: 1e6, monotonic=lambda: 0.0)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(call_statistics, "KEPT", 3)
    monkeypatch.setattr(call_statistics, "SAMPLES", 50)
    monkeypatch.setattr(workers, "WINDOW", 10)
    chance = random.Random(seed)
    steps = list(plan(chance))
    one_by_one = shown(steps, chance, 1.0)
    for often in (0.5, 0.05, 0.0):
        check_same(one_by_one, shown(steps, chance, often))
