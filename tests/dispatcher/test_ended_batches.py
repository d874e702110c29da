"""However many ended calls the windows get at once, they show the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from farm.call import Call, CallerName, Operation, WorkerInfo
from farm.dispatcher import ended as stream
from farm.dispatcher import statistics
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.ended import ANSWERED, REFUSED, REUSED, WHOLE, EndedCall, Failure
from farm.errors import FarmError, ModelFailed, WorkerLost
from farm.monitoring import workers
from farm.monitoring.counters import Counters
from farm.monitoring.failures import Failures
from farm.monitoring.history import History
from farm.monitoring.workers import WorkerFacts
from farm.scheduler.state import TaskId
from tests.support.coroutines import on_loop

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
        ended = answered(chance, client, now)
        if opened and chance.random() < 0.3:
            ended.more = chance.random() < 0.5
            ended.task = opened[-1] if ended.more else opened.pop()
        yield ended


def answered(chance: random.Random, client: str, now: float) -> EndedCall:
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


def other(chance: random.Random, ending: stream.Ending, client: str, now: float) -> EndedCall:
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
            chain, task, now = step
            dispatcher.chains.opened(task, CALL, chain, now)
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


@pytest.mark.parametrize("seed", range(5))
@on_loop
async def test_a_batch_is_counted_as_its_records_one_by_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(time=lambda: 1e6, monotonic=lambda: 0.0)
    monkeypatch.setattr(stream, "time", clock)
    monkeypatch.setattr(statistics, "KEPT", 3)
    monkeypatch.setattr(statistics, "SAMPLES", 50)
    monkeypatch.setattr(workers, "WINDOW", 10)
    chance = random.Random(seed)
    steps = list(plan(chance))
    one_by_one = shown(steps, chance, 1.0)
    for often in (0.5, 0.05, 0.0):
        check_same(one_by_one, shown(steps, chance, often))
