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
from farm.errors import FarmError, ModelFailed, Unavailable, WorkerLost
from farm.monitoring import workers
from farm.monitoring.counters import Counters
from farm.monitoring.failures import Failures
from farm.monitoring.history import History
from farm.monitoring.workers import WorkerFacts
from farm.scheduler.actions import Reply
from farm.scheduler.state import TaskId, WorkerId
from tests.dispatcher.ended_calls import task
from tests.scheduler.recorder import call

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


async def test_few_records_wait_until_someone_reads(stream: EndedCalls, seen: Seen) -> None:
    for at in range(BATCH - 1):
        stream.add(record(float(at)))
    await asyncio.sleep(0)
    assert seen.batches == []
    stream.fold()
    assert [each.at for each in seen.batches[0]] == [float(at) for at in range(BATCH - 1)]
    stream.fold()
    assert len(seen.batches) == 1, "nothing is given twice"


async def test_many_records_are_folded_together_in_the_next_turn(
    stream: EndedCalls, seen: Seen
) -> None:
    for _ in range(3 * BATCH):
        stream.add(record())
    assert seen.batches == []
    await asyncio.sleep(0)
    assert seen.sizes() == [3 * BATCH]


async def test_a_full_stream_is_folded_at_once_and_loses_nothing(
    stream: EndedCalls, seen: Seen
) -> None:
    for at in range(3 * FULL + 1):
        stream.add(record(float(at)))
    assert seen.sizes() == [FULL] * 3
    stream.fold()
    ends = [each.at for batch in seen.batches for each in batch]
    assert ends == [float(at) for at in range(3 * FULL + 1)]


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
    result = Result((np.zeros(1),), 2.0, worker="p", queue_time_s=0.5, idle_s=0.1, batch_rows=3)
    stream.answered(reply, result, 1, 0, 12.0)
    stream.fold()
    ((ended,),) = seen.batches
    assert (ended.ending, ended.model, ended.operation) == (ANSWERED, "m", Operation.EVALUATE)
    assert (ended.task, ended.client) == (reply.task.id, reply.task.account.client.name)
    assert (ended.worker, ended.seat) == ("p", "w")
    assert (ended.began, ended.at) == (reply.task.submitted_at, 12.0)
    assert (ended.run_s, ended.row_s, ended.queue_s, ended.idle_s) == (2.0, 2.0, 0.5, 0.1)
    assert (ended.batch_rows, ended.rows, ended.done) == (3, 1, 1)
    assert (ended.error, ended.failure, counted(ended)) == (None, None, (1, 0))
    assert ended.worker_s == pytest.approx(2.0 / 3.0)


def test_of_a_run_of_rows_those_done_and_the_row_that_failed_are_told(
    stream: EndedCalls, seen: Seen
) -> None:
    reply = answered(rows=6)
    assert reply.task.is_run
    result = Result((np.zeros((4, 1)),), 2.0, worker="p", failed=BAD)
    ended = ends(stream, seen, reply, result, calls=6)
    assert (ended.done, ended.row_s, counted(ended)) == (4, 0.5, (4, 1))
    assert (ended.worker_s, ended.batch_rows) == (2.0, 1)
    whole = ends(stream, seen, reply, result, calls=1)
    assert counted(whole) == (0, 1)
    part = ends(stream, seen, reply, result, calls=0)
    assert counted(part) == (0, 0)
    lost = ends(stream, seen, reply, BAD, calls=6)
    assert (lost.ran, lost.done, counted(lost)) == (False, 0, (0, 6))


def ends(
    stream: EndedCalls, seen: Seen, reply: Reply, outcome: Result | ModelFailed, calls: int
) -> EndedCall:
    stream.answered(reply, outcome, calls, 0, 12.0)
    stream.fold()
    (ended,) = seen.batches.pop()
    return ended


async def test_calls_that_fail_for_good_are_in_the_record(stream: EndedCalls, seen: Seen) -> None:
    reply = answered(rows=6)
    stream.answered(reply, BAD, 6, 6, 12.0)
    result = Result((np.zeros((4, 1)),), 2.0, worker="p", failed=BAD)
    stream.answered(reply, result, 6, 1, 12.0)
    stream.fold()
    ((lost, failed),) = seen.batches
    client = reply.task.account.client.name
    assert lost.failure == Failure(BAD, 6, reply.task.call, None, "w", client)
    assert failed.failure == Failure(BAD, 1, reply.task.call, 4, "p", client)


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
OPERATIONS = (*[Operation.EVALUATE] * 4, Operation.GRADIENT, Operation.COST, Operation.DESCRIBE)
WORKERS, SEATS = ("w0", "w1", "process", ""), ("w0", "w1", "gone")
STEPS = 400

Step = EndedCall | tuple[CallerName, TaskId, float] | TaskId
"""A call that ended, a task that a chain opened at some time, or a task that is cancelled."""


def plan(chance: random.Random) -> Iterator[Step]:
    """Yield what happens to a dispatcher."""
    now, client, opened = 1000.0, "c0", list[TaskId]()
    for number in range(STEPS):
        now += chance.expovariate(chance.choice((0.1, 5.0, 100.0)))
        if chance.random() < 0.3:
            client = f"c{chance.randrange(6)}"
        if chance.random() < 0.2:
            opened.append(TaskId(number))
            yield ("me", f"chain {chance.randrange(4)}"), opened[-1], now
        if opened and chance.random() < 0.05:
            yield opened.pop()
        ending = chance.choice((*[ANSWERED] * 9, WHOLE, REUSED, REFUSED))
        if ending is not ANSWERED:
            yield other(chance, ending, client, now)
            continue
        ended = task_ended(chance, client, now)
        if opened and chance.random() < 0.3:
            ended.more = chance.random() < 0.5
            ended.task = opened[-1] if ended.more else opened.pop()
        yield ended


def task_ended(chance: random.Random, client: str, now: float) -> EndedCall:
    """Return the record of a task with a result, or an error, or some rows and an error."""
    rows = done = chance.choice((1, 1, 1, 1, 3, 8))
    ran, is_run = chance.random() < 0.9, rows > 1 and chance.random() < 0.5
    error = None if ran and chance.random() < 0.8 else error_of(chance)
    if error is not None or is_run:
        done = chance.randint(0, rows) if ran and is_run else 0
    run_s, batch_rows = chance.lognormvariate(0.0, 4.0), 1 if is_run else rows
    if not is_run and chance.random() < 0.3:
        batch_rows *= 4
    calls = chance.choice((0, 1, 1, 1, rows))
    failed = 0 if error is None else min(1, calls)
    return EndedCall(
        *(ANSWERED, f"m{chance.randrange(2)}", chance.choice(OPERATIONS), client),
        *(now - run_s - chance.uniform(-1e-3, 0.5), now, calls - failed, failed),
        rows=rows,
        done=done,
        is_run=is_run,
        error=error,
        failure=failure(error, calls, client),
        worker=chance.choice(WORKERS),
        seat=chance.choice(SEATS),
        ran=ran,
        run_s=run_s if ran else 0.0,
        row_s=run_s / max(1, done) if ran else 0.0,
        worker_s=run_s * rows / batch_rows if ran else 0.0,
        queue_s=chance.expovariate(10.0),
        idle_s=chance.uniform(-0.5, 1.0),
        batch_rows=batch_rows,
        waited=ran and chance.random() < 0.5,
        copied=chance.random() < 0.1,
        losses=chance.choice((0, 0, 0, 2)),
    )


def other(chance: random.Random, ending: module.Ending, client: str, now: float) -> EndedCall:
    """Return the record of calls without a task of their own."""
    error = error_of(chance) if ending is REFUSED or chance.random() < 0.3 else None
    calls, rows = chance.randrange(3), chance.randrange(4)
    about = f"m{chance.randrange(2)}", Operation.EVALUATE, client
    chain = chance.choice((None, ("me", f"chain {chance.randrange(6)}")))
    if ending is REUSED:
        return EndedCall(
            *(REUSED, *about, now, now, calls, 0), rows=rows, done=rows // 2, chain=chain
        )
    return EndedCall(
        *(ending, *about, now - chance.random(), now, int(error is None), int(error is not None)),
        error=error,
        failure=failure(error, calls, client) if ending is REFUSED else None,
        queue_s=chance.expovariate(10.0),
        chain=chain,
    )


def error_of(chance: random.Random) -> FarmError:
    return chance.choice((ModelFailed("diverged"), ModelFailed("stiff"), WorkerLost("it died")))


def failure(error: FarmError | None, calls: int, client: str) -> Failure | None:
    return Failure(error, calls, CALL, None, "w0", client) if error is not None and calls else None


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
