"""Counts and times of each model's calls."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from farm.call import CallerName, Hints, Operation, Result
from farm.dispatcher.call_statistics import (
    BUCKETS,
    CHAINS_KEPT,
    KEPT,
    OTHERS,
    SAMPLES,
    SHARE_OVER_S,
    Chains,
    Clients,
    Measures,
    Statistics,
    Tally,
)
from farm.dispatcher.ended import NO_TASK, EndedCall, EndedCalls
from farm.errors import ModelFailed, Overloaded
from farm.scheduler.actions import Reply
from farm.scheduler.state import TaskId
from farm.scheduler.view import ClientCalls
from tests.dispatcher.ended_calls import AtOnce, answer, task
from tests.support.scheduler_recorder import call

A = ("me", "a")


def counting() -> tuple[AtOnce, Statistics]:
    stream = AtOnce()
    return stream, Statistics(stream)


def result(batch_rows: int, run_time_s: float = 0.5, queue_time_s: float = 0.25) -> Result:
    return Result((np.zeros(1),), run_time_s, queue_time_s=queue_time_s, batch_rows=batch_rows)


def test_calls_of_one_batch_are_one_execution() -> None:
    stream, statistics = counting()
    for rows in (None, 3, 2, 2):
        stream.end(task(rows=rows, max_batch=8), result(8), 1.0)
    stream.end(task(), result(1, run_time_s=0.25), 3.0)
    model = statistics.models["m"]
    assert model.rows == 9
    assert model.executions == pytest.approx(2)
    assert (model.success.count, model.success.seconds) == (5, 7.0)
    assert (model.queue.count, model.queue.seconds) == (5, 1.25)
    assert model.compute.count == 5
    assert model.compute.seconds == pytest.approx(0.75)
    assert sorted(model.by_batch) == [1, 8]
    assert [model.by_batch[8].count, model.by_batch[8].seconds] == pytest.approx([1, 0.5])
    assert [model.by_batch[1].count, model.by_batch[1].seconds] == [1, 0.25]
    assert model.last == pytest.approx(time.time() - time.monotonic() + 3.0, abs=1.0)


def test_of_a_run_the_rows_are_executions_and_the_row_that_failed_is_one_call() -> None:
    stream, statistics = counting()
    ran = Result((np.zeros((6, 1)),), 0.5, failed=ModelFailed("diverged"))
    stream.end(task(rows=9), ran, 4.0, calls=9, fails=1)
    stream.end(task(rows=9), ran, 4.0, calls=0)  # rows of a call that fails later
    model = statistics.models["m"]
    assert (model.success.count, model.fail.count, model.fail.seconds) == (6, 1, 4.0)
    assert (model.rows, model.executions, model.compute.seconds) == (12, 12.0, 1.0)
    assert {size: (ran.count, ran.seconds) for size, ran in model.by_batch.items()} == {
        1: (12, 1.0)
    }
    (row,) = statistics.clients.snapshot({}, 1000.0)
    assert (row["done"], row["failed"]) == (6, 1)


@pytest.mark.parametrize("operation", [Operation.DESCRIBE, Operation.COST])
def test_questions_do_not_count(operation: Operation) -> None:
    stream, statistics = counting()
    statistics.chains.opened(TaskId(1), call(operation=operation), A, 0.0)
    stream.end(task(operation=operation), Result(()), 1.0)
    assert statistics.models == {}
    assert statistics.clients.snapshot({}, 1000.0) == []
    assert statistics.chains.snapshot((), 1000.0) == []


def test_each_client_is_counted_by_its_calls_however_they_ran() -> None:
    stream, statistics = counting()
    stream.end(task(), result(1), 1000.0)
    stream.end(task(), ModelFailed("diverged"), 1000.0)
    stream.end(task(operation=Operation.COST), Result(()), 1000.0)
    stream.end(task(rows=4, max_batch=8), result(4), 1000.0, calls=0)  # a part of a call
    hints = Hints("me", shown_as=("me", "a"))
    stream.whole(call(), ModelFailed("diverged"), hints, 0.0)
    stream.reused(call(), hints, calls=3, rows=5)
    stream.reused(call(), hints, calls=0, rows=5)
    stream.reused(call(), hints, calls=0, rows=0, missed=2)
    stream.refused(call(), hints, Overloaded("full"))
    (row,) = statistics.clients.snapshot({}, 1000.0)
    assert (row["client"], row["done"], row["failed"], row["worker_s"]) == ("me", 4, 2, 1.0)
    (chain,) = statistics.chains.snapshot((), 1000.0)
    assert (chain["done"], chain["failed"]) == (3, 1)
    model = statistics.models["m"]
    assert (model.reused, model.missed, model.success.count, model.fail.count) == (10, 2, 4, 2)


def of_chain(*, more: bool = False) -> EndedCall:
    return answer(1, 0, 1001.0, 1.0, rows=1, done=1, task=TaskId(2), ran=True, more=more)


def test_a_chain_begins_after_the_calls_that_have_ended() -> None:
    stream = EndedCalls()
    statistics = Statistics(stream)
    stream.answered(Reply(task(), result(1, run_time_s=9.0), 0.0, None), result(1, 9.0), 1, 0, 1.0)
    statistics.chains.opened(TaskId(2), call(), ("me", "a"), 1000.0)
    stream.add(of_chain())
    (row,) = statistics.chains.snapshot((), 1001.0)
    assert (row["done"], row["queued"], row["share"]) == (1, 0, 1.0)


def test_a_chain_that_began_with_an_answer_from_a_record_keeps_it() -> None:
    stream = EndedCalls()
    statistics = Statistics(stream)
    stream.reused(call(), Hints("me", shown_as=("me", "a")), calls=1, rows=1)
    statistics.chains.opened(TaskId(2), call(), ("me", "a"), 1000.0)
    (row,) = statistics.chains.snapshot((), 1001.0)
    assert (row["done"], row["queued"]) == (1, 1)


def test_of_a_cancelled_task_the_rows_that_were_answered_count() -> None:
    stream = EndedCalls()
    statistics = Statistics(stream)
    statistics.chains.opened(TaskId(2), call(), ("me", "a"), 1000.0)
    stream.add(of_chain(more=True))
    statistics.chains.cancelled(TaskId(2))
    (row,) = statistics.chains.snapshot((), 1001.0)
    assert (row["done"], row["queued"]) == (1, 0)


def measuring() -> tuple[AtOnce, Measures]:
    stream = AtOnce()
    return stream, Measures(stream)


def test_calls_are_counted_and_timed() -> None:
    stream, measures = measuring()
    assert measures.snapshot(1.0) == {
        "done": 0,
        "failed": 0,
        "run_time_s": 0.0,
        "calls_per_s": 0.0,
        "overhead_s": None,
        "idle_gap_s": None,
    }
    stream.end(task(), Result((), 2.0), 10.0)
    stream.end(task(), Result((), 3.0), 11.0)
    stream.end(task(), ModelFailed("it raised"), 12.0, fails=1)
    state = measures.snapshot(12.0)
    assert (state["done"], state["failed"], state["run_time_s"]) == (2, 1, 5.0)
    assert state["calls_per_s"] == pytest.approx(0.3)
    assert measures.snapshot(21.5)["calls_per_s"] == pytest.approx(0.1)
    assert measures.snapshot(100.0)["calls_per_s"] == 0.0


def test_rate_of_more_calls_than_are_kept_is_over_the_time_they_span() -> None:
    stream, measures = measuring()
    one = task()
    for i in range(2 * SAMPLES):
        stream.end(one, Result((), 0.0), i * 1e-3)
    now = (2 * SAMPLES - 1) * 1e-3
    assert measures.snapshot(now)["calls_per_s"] == pytest.approx(1000.0, rel=1e-3)


@pytest.mark.parametrize("alone", [True, False])
def test_overhead_is_of_calls_that_found_a_worker_idle_and_a_gap_of_those_that_waited(
    alone: bool,
) -> None:
    """They waited for the worker here, or there."""
    stream, measures = measuring()
    for idle_s in (0.1, 0.2, 0.3, -1.0):  # below 0: the worker does not report it
        waited = task(alone=alone, refill=alone)
        stream.end(waited, Result((), 2.0, idle_s=idle_s), 9.0)
    stream.end(task(began=1.0), Result((), 2.0, idle_s=5.0), 3.5)
    stream.end(task(began=1.0), Result((), 2.0, copied=True), 99.0)
    state = measures.snapshot(100.0)
    overhead = {"p50": 0.5, "p95": 0.5, "p99": 0.5, "samples": 1}
    assert state["overhead_s"] == pytest.approx(overhead)
    gap = {"p50": 0.2, "p95": 0.29, "p99": 0.298, "samples": 3}
    assert state["idle_gap_s"] == pytest.approx(gap)


def test_each_row_of_a_run_counts() -> None:
    run = task(rows=6)
    stream, measures = measuring()
    stream.end(run, Result((np.ones((4, 1)),), 2.0), 1.0)
    stream.end(run, Result((), 0.0, failed=ModelFailed("row 4")), 1.0, fails=1)
    state = measures.snapshot(1.0)
    assert (state["done"], state["failed"]) == (4, 1)
    assert state["calls_per_s"] == pytest.approx(0.4)
    assert run.ended(Result((np.ones((4, 1)),))) == 4
    assert run.ended(ModelFailed("all")) == 0


# Clients


def test_the_row_of_a_client_joins_what_is_open_and_what_was_answered() -> None:
    clients = Clients()
    clients.fold([answer(1, 0, 1000.0, 2.0, client="a"), answer(2, 1, 1001.0, 1.0, client="a")])
    opened = ClientCalls(callers=2, queued=5, running=1, busy_s=3.0)
    (row,) = clients.snapshot({"a": opened}, 1003.0)
    assert row == {
        "client": "a",
        "others": 0,
        "callers": 2,
        "queued": 5,
        "running": 1,
        "done": 3,
        "failed": 1,
        "share": 1.0,
        "worker_s": 6.0,
        "calls_per_s": pytest.approx(4 / 3),
        "last_s": 2.0,
    }


def test_shares_are_of_the_last_minutes_and_count_what_runs() -> None:
    clients = Clients()
    clients.fold([answer(1, 0, 1000.0, 500.0, client="early")])
    now = 1000.0 + 2 * SHARE_OVER_S
    clients.fold([answer(1, 0, now, 60.0, client="short")])
    long = ClientCalls(callers=1, running=1, busy_s=3600.0)  # of which the last minutes count
    new = ClientCalls(callers=1, queued=1)
    rows = clients.snapshot({"long": long, "new": new}, now)
    assert [row["client"] for row in rows] == ["long", "short", "new", "early"]
    shares = {row["client"]: row["share"] for row in rows}
    assert shares == pytest.approx({"long": 0.75, "short": 0.25, "new": 0.0, "early": 0.0})
    assert rows[0]["last_s"] is None


def test_many_clients_share_one_row() -> None:
    clients = Clients()
    for number in range(KEPT + 3):
        clients.fold([answer(1, 0, 1000.0, 1.0, client=f"c{number}")])
        clients.fold([answer(0, 1, 1000.0, client="c0")])  # the one that calls all the time stays
    open_calls = {f"new{number}": ClientCalls(1, 1) for number in range(5)}
    rows = clients.snapshot(open_calls, 1000.0)
    assert len(rows) == KEPT + 1
    last = rows[-1]
    assert (last["client"], last["others"], last["done"], last["queued"]) == (OTHERS, 8, 3, 5)
    assert "c0" in {row["client"] for row in rows}
    assert sum(row["done"] for row in rows) == KEPT + 3
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)


def test_seconds_of_old_steps_no_longer_count() -> None:
    tally = Tally(1000.0, 10.0)
    tally.fold([answer(1, 0, 1000.0, 4.0), answer(0, 2, 1009.0, 1.0), answer(1, 0, 1010.0, 2.0)])
    assert (tally.done, tally.failed, tally.worker_s, tally.last_at) == (2, 2, 7.0, 1010.0)
    assert tally.lately(1010.0)[1] == 7.0
    assert tally.lately(1000.0 + 10.0 * BUCKETS)[1] == 2.0
    assert tally.lately(1010.0 + 10.0 * BUCKETS)[1] == 0.0
    assert tally.lately(1010.0)[0] == pytest.approx(0.4)
    tally.fold([answer(1, 0, 5000.0, 3600.0)])
    assert tally.lately(5000.0)[1] == 10.0 * BUCKETS, "a longer run counts as all steps"
    assert tally.worker_s == 3607.0


def test_the_sum_of_two_tallies() -> None:
    one, two = Tally(0.0, 10.0), Tally(0.0, 10.0)
    one.fold([answer(1, 0, 100.0, 1.0), answer(1, 0, 120.0, 2.0)])
    two.fold([answer(0, 1, 110.0, 4.0), answer(0, 1, 121.0, 8.0)])
    one.add(two)
    one.add(Tally(0.0, 10.0))
    assert (one.done, one.failed, one.worker_s, one.last_at) == (2, 2, 15.0, 121.0)
    assert list(one.recent) == [[10, 1, 1.0], [11, 1, 4.0], [12, 2, 10.0]]
    one.fold([answer(1, 0, 129.0)])
    assert one.recent[-1] == [12, 3, 10.0]


# Chains


class Farm:
    """Chains with a clock that is set by hand."""

    def __init__(self) -> None:
        self.chains = Chains(EndedCalls())
        self.now = 1000.0
        self._ids = iter(range(1, 10**9))

    def open(self, name: CallerName) -> TaskId:
        task_id = TaskId(next(self._ids))
        self.chains.opened(task_id, call(), name, self.now)
        return task_id

    def close(self, task: TaskId = NO_TASK, *, done: int = 1, failed: int = 0, **more: Any) -> None:
        """Let a task of a chain, or other calls, end now."""
        self.chains.fold([replace(answer(done, failed, self.now, task=task), **more)])

    def rows(self, sent: Iterable[TaskId] = ()) -> list[dict[str, Any]]:
        return self.chains.snapshot(sent, self.now)

    def row(self, sent: Iterable[TaskId] = ()) -> dict[str, Any]:
        (row,) = self.rows(sent)
        return row


def test_a_chain_counts_its_calls() -> None:
    farm = Farm()
    one, two, three, four = [farm.open(A) for _ in range(4)]
    assert farm.row([two, TaskId(-1)]) == {
        "client": "me",
        "chain": "a",
        "queued": 3,
        "in_flight": 1,
        "began_s": 0.0,
        "done": 0,
        "failed": 0,
        "calls_per_s": 0.0,
        "share": 0.0,
        "run_time_s": 0.0,
        "last_answer_s": None,
    }
    farm.now += 2.0
    farm.close(one, worker_s=1.5)
    farm.close(two, done=0, failed=1)
    farm.chains.cancelled(three)
    farm.chains.cancelled(TaskId(99))
    farm.now += 1.0
    row = farm.row([four])
    assert (row["queued"], row["in_flight"], row["done"], row["failed"]) == (0, 1, 1, 1)
    assert (row["run_time_s"], row["last_answer_s"]) == (1.5, 1.0)


def test_rows_and_parts_count_as_the_calls_that_they_are() -> None:
    farm = Farm()
    task = farm.open(A)
    farm.close(task, done=2, more=True)
    assert (farm.row()["queued"], farm.row()["done"]) == (1, 2)
    farm.close(task, failed=1)
    assert farm.row()["queued"] == 0
    farm.close(farm.open(A), done=0, worker_s=1.0)
    assert (farm.row()["done"], farm.row()["failed"]) == (3, 1)
    farm.close(chain=A, failed=2)
    assert (farm.row()["done"], farm.row()["failed"], farm.row()["run_time_s"]) == (4, 3, 1.0)
    farm.close(chain=("me", "new"))
    assert [row["done"] for row in farm.rows()] == [4, 1]


@pytest.mark.parametrize(
    ("age_s", "calls_per_s"), [(0.001, 1.0), (30.0, 1 / 30), (59.0, 1 / 59), (61.0, 0.0)]
)
def test_the_rate_is_over_the_last_minute_and_a_second_or_more(
    age_s: float, calls_per_s: float
) -> None:
    farm = Farm()
    farm.close(farm.open(A))
    farm.now += age_s
    assert farm.row()["calls_per_s"] == pytest.approx(calls_per_s)


def test_the_share_is_of_the_worker_time_since_the_first_call() -> None:
    farm = Farm()
    farm.close(worker_s=100.0)  # before its first call
    farm.close(farm.open(A), worker_s=1.0)
    assert farm.row()["share"] == 1.0
    farm.close(worker_s=3.0)  # calls without a name
    farm.close(farm.open(("me", "b")), worker_s=4.0)
    a, b = farm.rows()
    assert (a["share"], b["share"]) == (0.125, 1.0)


def test_the_latest_chains_come_first_and_names_order_those_of_a_minute() -> None:
    farm = Farm()
    farm.close(farm.open(("old", None)))
    waiting = farm.open(("waits", "since long"))
    farm.now += 120.0
    for i in (10, 9, 2):
        farm.close(farm.open(("me", f"chain {i}")))
    farm.now += 61.0
    farm.close(farm.open(("me", "last")))
    assert [(row["client"], row["chain"]) for row in farm.rows()] == [
        ("me", "last"),
        ("waits", "since long"),
        ("me", "chain 2"),
        ("me", "chain 9"),
        ("me", "chain 10"),
        ("old", None),
    ]
    farm.chains.cancelled(waiting)
    assert [row["client"] for row in farm.rows()][-2:] == ["old", "waits"]


@pytest.mark.slow
def test_many_names_do_not_fill_the_memory() -> None:
    farm = Farm()
    first = farm.open(A)
    for i in range(100_000):
        farm.close(farm.open(("me", f"{i}")))
        if not i % (CHAINS_KEPT // 2):
            farm.open(("me", "kept"))
    rows = farm.rows()
    assert len(rows) == CHAINS_KEPT
    names = {row["chain"] for row in rows}
    assert names == {"kept", *(f"{i}" for i in range(100_001 - CHAINS_KEPT, 100_000))}
    (kept,) = (row for row in rows if row["chain"] == "kept")
    assert kept["queued"] == 100_000 // (CHAINS_KEPT // 2), "counted since its first call"
    farm.close(first)  # its chain is forgotten
    assert len(farm.rows()) == CHAINS_KEPT


def test_digits_of_any_script_and_length_are_sorted() -> None:
    farm = Farm()
    for name in ("1" * 100, "\u0665", "\u00b2", "x"):
        farm.open((name, name))
    assert len(farm.rows()) == 4
