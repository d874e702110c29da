"""Counts, rates and shares of chains, and the bound on their number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from farm.call import Call, CallerName, Operation
from farm.dispatcher.ended import NO_TASK, EndedCalls
from farm.dispatcher.statistics import BUCKETS, CHAIN_BUCKET_S, CHAINS_KEPT, Chains
from farm.scheduler.state import TaskId
from tests.dispatcher.ended_calls import answer

CALL = Call("m", Operation.EVALUATE, (np.zeros(1),))
A = ("me", "a")


class Farm:
    """Chains with a clock that is set by hand."""

    def __init__(self) -> None:
        self.chains = Chains(EndedCalls())
        self.now = 1000.0
        self._ids = iter(range(1, 10**9))

    def open(self, name: CallerName, call: Call = CALL) -> TaskId:
        task_id = TaskId(next(self._ids))
        self.chains.opened(task_id, call, name, self.now)
        return task_id

    def close(
        self,
        task: TaskId = NO_TASK,
        *,
        chain: CallerName | None = None,
        done: int = 1,
        failed: int = 0,
        worker_s: float = 0.0,
        more: bool = False,
    ) -> None:
        ended = answer(done, failed, self.now, worker_s, task=task, chain=chain, more=more)
        self.chains.fold([ended])

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
    farm.close(farm.open(A), done=3, failed=1)
    farm.close(farm.open(A), done=0, worker_s=1.0)
    assert (farm.row()["done"], farm.row()["failed"]) == (3, 1)
    farm.close(chain=A, failed=2)
    assert (farm.row()["done"], farm.row()["failed"], farm.row()["run_time_s"]) == (4, 3, 1.0)
    farm.close(chain=("me", "new"))
    assert [row["done"] for row in farm.rows()] == [4, 1]


def test_a_task_of_which_more_rows_have_no_answer_is_open() -> None:
    farm = Farm()
    task = farm.open(A)
    farm.close(task, more=True)
    assert (farm.row()["queued"], farm.row()["done"]) == (1, 1)
    farm.close(task)
    assert (farm.row()["queued"], farm.row()["done"]) == (0, 2)


@pytest.mark.parametrize("operation", [Operation.DESCRIBE, Operation.COST])
def test_questions_about_a_model_are_not_counted(operation: Operation) -> None:
    farm = Farm()
    farm.open(A, Call("m", operation))
    assert farm.rows() == []


def test_the_rate_is_over_the_last_minute() -> None:
    farm = Farm()
    began = farm.now
    while farm.now < began + 30.0:
        farm.close(farm.open(A))
        farm.now += 0.25
    assert farm.row()["calls_per_s"] == pytest.approx(4.0)
    while farm.now < began + 300.0:
        farm.close(farm.open(A))
        farm.now += 0.5
    assert farm.row()["calls_per_s"] == pytest.approx(2.0)
    farm.now += CHAIN_BUCKET_S * BUCKETS / 2
    assert farm.row()["calls_per_s"] == pytest.approx(1.0, rel=0.2)
    farm.now += CHAIN_BUCKET_S * BUCKETS
    assert farm.row()["calls_per_s"] == 0.0
    farm.close(farm.open(A))
    assert farm.row()["calls_per_s"] == pytest.approx(1 / 60, rel=0.1)


def test_one_quick_answer_is_no_thousand_calls_a_second() -> None:
    farm = Farm()
    task_id = farm.open(A)
    farm.now += 0.001
    farm.close(task_id)
    assert farm.row()["calls_per_s"] == 1.0


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
