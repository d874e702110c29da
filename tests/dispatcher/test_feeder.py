"""Feeding calls of many rows to a scheduler; the test acts as its workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import RUN_BYTES, RUN_S, Call, Hints, ModelInfo, Operation, Result, TensorInfo
from farm.dispatcher.call_statistics import Chains
from farm.dispatcher.descriptions import Descriptions
from farm.dispatcher.events import Listeners
from farm.dispatcher.feeder import PARTS_A_TURN, Feeder
from farm.dispatcher.partition import RUNS_A_WORKER, Rows, WholeCall, part_rows
from farm.dispatcher.stage import OnDone, StageContext
from farm.dispatcher.turns import LoopTurns
from farm.errors import FarmError, InvalidInput, LossCause, ModelFailed, Overloaded, WorkerLost
from farm.scheduler.actions import Reply, Send
from farm.scheduler.core import Scheduler
from farm.scheduler.queues import Queue
from farm.scheduler.state import TaskId, WorkerId
from tests.support.scheduler_invariants import check

X = (TensorInfo("x", (1,)),)
MODEL = ModelInfo("m", X, X)

Outcome = Result | FarmError
Work = Callable[[Call], Outcome]


class Farm:
    """A scheduler with a feeder as in the dispatcher; each worker does what the test says."""

    def __init__(self, *, model: ModelInfo = MODEL, workers: int = 2, **limits: Any) -> None:
        self.scheduler = Scheduler(**limits)
        listeners = Listeners()
        context = StageContext(
            self.scheduler,
            cast(LoopTurns, self),
            Descriptions(),
            Chains(listeners.ended),
            listeners,
            cast(Iterator[TaskId], count(-1, -1)),
        )
        self.feeder = Feeder(context)
        self.now = 0.0
        self.on_done: dict[TaskId, OnDone] = {}
        self.made: list[int] = []
        self.sent: list[tuple[WorkerId, TaskId, Call]] = []
        self.cancelled = 0
        self.is_asked = False
        for number in range(workers):
            self.scheduler.worker_joined(WorkerId(f"w{number}"), [model], now=0.0)

    def start(
        self, call: Call, hints: Hints, done: OnDone, now: float, lost_on: tuple[str, ...] = ()
    ) -> TaskId:
        task = self.scheduler.submit(
            call, client=hints.client, chain=hints.chain, lost_on=lost_on, now=self.now
        )
        self.made.append(call.rows or 1)
        self.on_done[task] = done
        return task

    def cancel(self, task_id: TaskId) -> bool:
        self.cancelled += 1
        self.scheduler.cancel(task_id)
        return self.on_done.pop(task_id, None) is not None

    def begin(
        self, rows: Rows, operation: Operation = Operation.EVALUATE, client: str = ""
    ) -> TaskId:
        return self.feeder.begin(rows, "m", operation, Hints(client), self.now, self)

    @property
    def queue(self) -> Queue:
        return self.scheduler.queue("m", Operation.EVALUATE)

    def ask(self, count: int, *, client: str = "") -> tuple[TaskId, list[Outcome]]:
        """Submit `count` rows with the numbers from 0 on."""
        outcomes: list[Outcome] = []
        x = np.arange(float(count)).reshape(count, 1)
        call = Call("m", Operation.EVALUATE, (x,), rows=count)
        return self.begin(WholeCall(call, None, outcomes.append), client=client), outcomes

    def later(self, calls: int = 0) -> None:
        self.is_asked = True

    def turn(self) -> None:
        """Run one iteration of the event loop."""
        self.is_asked = False
        self.feeder.turn()
        while actions := self.scheduler.actions(self.now):
            for action in actions:
                if isinstance(action, Send):
                    self.sent += [(action.worker, task.id, task.call) for task in action.tasks]
                elif isinstance(action, Reply) and action.task.id in self.on_done:
                    self.on_done.pop(action.task.id)(action.outcome)
        check(self.scheduler)

    def work(self, work: Work, *, turns: int = 100_000) -> None:
        """Let the workers answer all tasks until nothing changes any more."""
        for _ in range(turns):
            self.turn()
            if not self.sent and not self.is_asked:
                return
            sent, self.sent = self.sent, []
            for worker, task, call in sent:
                self.now += 1e-6
                outcome = work(call)
                self.scheduler.finished(worker, task, outcome, now=self.now)
        raise AssertionError("it never ends")


def doubled(call: Call, rows: int | None = None, *, row_s: float = 1e-3) -> Result:
    x = call.inputs[0][:rows]
    return Result((2.0 * x,), row_s * len(x))


def knowing(row_s: float, workers: int = 2) -> Farm:
    """Return a farm that knows how long a row takes."""
    farm = Farm(workers=workers)
    farm.ask(40)
    farm.work(partial(doubled, row_s=row_s))
    farm.made.clear()
    return farm


def is_doubled(outcomes: list[Outcome], count: int) -> bool:
    (result,) = outcomes
    assert isinstance(result, Result)
    return bool(np.array_equal(result.outputs[0], 2.0 * np.arange(count).reshape(count, 1)))


# How rows become tasks


def test_one_row_until_the_run_time_is_known_and_then_what_takes_a_run_s() -> None:
    farm = Farm(workers=2)
    _, outcomes = farm.ask(10_000)
    farm.turn()
    assert set(farm.made) == {1}, "nothing is known"
    farm.work(partial(doubled, row_s=1e-3))
    assert is_doubled(outcomes, 10_000)
    assert set(farm.made) <= {1, *range(1, int(RUN_S / 1e-3) + 1)}
    assert max(farm.made) >= int(RUN_S / 1e-3) - 1


@pytest.mark.parametrize(
    ("row_s", "workers", "to_come", "rows", "row_bytes", "expected"),
    [
        (1e-5, 5, 0, 400, 8, 400 // (RUNS_A_WORKER * 5)),
        (1e-6, 5, 0, 40, 8, 40),
        (2e-5, 2, 800, 80, 8, 80),
        (2e-5, 2, 800, 160, 8, 800 // (RUNS_A_WORKER * 2)),
        (1e-6, 2, 0, 10**6, RUN_BYTES // 3, 3),
        (1e-6, 2, 0, 10**6, 2 * RUN_BYTES, 1),
    ],
    ids=["a share", "quick", "of all calls", "a share of all", "a message", "large rows"],
)
def test_rows_of_a_run(
    row_s: float, workers: int, to_come: int, rows: int, row_bytes: int, expected: int
) -> None:
    """Each worker gets several runs, but none that is shorter than what it takes to send it."""
    queue = knowing(row_s, workers).queue
    queue.counts.to_come = to_come
    assert part_rows(queue, queue.run_times, rows, rows, row_bytes) == expected


def test_what_must_not_run_twice_runs_row_by_row() -> None:
    farm = Farm(model=ModelInfo("m", X, X, repeatable=False))
    _, outcomes = farm.ask(300)
    farm.work(partial(doubled, row_s=1e-6))
    assert is_doubled(outcomes, 300)
    assert set(farm.made) == {1}


@given(st.integers(2, 300), st.integers(2, 70))
def test_batches_are_full_and_about_equal(count: int, most: int) -> None:
    farm = Farm(model=ModelInfo("m", X, X, max_batch=most))
    _, outcomes = farm.ask(count)
    farm.work(doubled)
    assert is_doubled(outcomes, count)
    assert len(farm.made) == -(-count // most), "no more parts than it takes"
    assert max(farm.made) - min(farm.made) <= 1, "no worker gets much less than another"


# How many at a time


def test_only_what_workers_can_use_is_in_the_scheduler() -> None:
    farm = Farm(workers=2)
    farm.ask(400_000)
    for _ in range(50):
        farm.turn()
    assert len(farm.scheduler) == 4, "one row for each slot and one in reserve"
    (row,) = farm.scheduler.view.snapshot(0.0)["queues"]
    assert row["queued"] + row["in_flight"] == 400_000, "whoever gets the workers sees the rest"
    seen = 0

    def work(call: Call) -> Outcome:
        nonlocal seen
        seen = max(seen, len(farm.scheduler))
        return doubled(call, row_s=1e-5)

    farm.work(work)
    assert seen <= 8
    assert sum(farm.made) == 400_000


def test_parts_made_in_one_turn_are_bounded() -> None:
    farm = Farm(model=ModelInfo("m", X, X, max_batch=2), workers=200)
    farm.ask(100_000)
    for client in "abc":
        farm.ask(100_000, client=client)
    before = len(farm.made)
    farm.turn()
    assert len(farm.made) - before == PARTS_A_TURN
    for _ in range(20):
        farm.turn()
    assert len(farm.made) == 4 * 2 * 200, "of each call, two for each slot"


def test_calls_are_fed_in_turn() -> None:
    farm = Farm(workers=64)
    first, _ = farm.ask(10_000, client="a")
    farm.ask(10_000, client="b")
    farm.turn()
    held = dict.fromkeys("ab", 0)
    for task in farm.scheduler._open.by_id.values():
        held[task.account.client.name] += 1
    assert held["a"] == held["b"]
    farm.feeder.cancel(first)


def test_a_full_queue_refuses_a_call_but_not_its_later_parts() -> None:
    farm = Farm(workers=1, max_queued=2)
    _, outcomes = farm.ask(300)
    farm.turn()
    farm.turn()
    single = Call("m", Operation.EVALUATE, (np.ones(1),))
    farm.scheduler.submit(single, now=0.0)
    with pytest.raises(Overloaded):
        farm.scheduler.submit(single, now=0.0)
    with pytest.raises(Overloaded):
        farm.ask(5)
    farm.work(lambda call: doubled(call) if call.rows else Result((np.ones(1),), 1e-3))
    assert is_doubled(outcomes, 300)
    assert nothing_is_left(farm)


# Outcomes


def test_a_worker_may_answer_fewer_rows() -> None:
    farm = Farm(workers=2)
    _, outcomes = farm.ask(5_000)
    farm.work(lambda call: doubled(call, max(1, (call.rows or 1) // 3), row_s=1e-5))
    assert is_doubled(outcomes, 5_000)


@pytest.mark.parametrize("row", [0, 17, 4_999])
def test_a_row_that_fails_is_named_and_ends_the_call(row: int) -> None:
    farm = Farm(workers=2)
    _, outcomes = farm.ask(5_000)

    def work(call: Call) -> Outcome:
        x = call.inputs[0]
        if row not in x:
            return doubled(call, row_s=1e-5)
        before = int(row - x[0, 0])
        error = ModelFailed("diverged")
        outputs = (2.0 * x[:before],) if before else ()
        return Result(outputs, 1e-5, failed=error) if len(x) > 1 else error

    farm.work(work)
    assert [str(outcome) for outcome in outcomes] == [f"row {row}: diverged"]
    assert len(farm.scheduler) == len(farm.feeder) == 0


def test_the_answer_of_a_worker_that_counts_wrong_is_an_error() -> None:
    for outputs in (np.ones((0, 1)), np.ones((99, 1))):
        farm = Farm(model=ModelInfo("m", X, X, max_batch=4))
        _, outcomes = farm.ask(8)
        farm.work(lambda call, outputs=outputs: Result((outputs,)))  # type: ignore[misc]  # a default is bound
        assert "rows 0 to 3: a worker answered" in str(outcomes[0])


def run_with_loss(
    farm: Farm,
    bad: int,
    *,
    known: bool = True,
    losses: int = 10_000,
    cause: LossCause = LossCause.UNKNOWN,
) -> None:
    """Answer all tasks, but lose the first `losses` workers that reach row `bad`."""
    for number in range(10_000):
        farm.turn()
        if not farm.sent and farm.is_asked:
            continue
        if not farm.sent:
            return
        worker, task, call = farm.sent.pop(0)
        farm.now += 1e-6
        x = call.inputs[0]
        if losses and bad in x and worker in farm.scheduler._workers:
            losses -= 1
            row = int(bad - x[0, 0]) if known else None
            farm.scheduler.worker_left(
                worker, "signal 9", running=[task], row=row, cause=cause, now=farm.now
            )
            farm.sent = [s for s in farm.sent if s[0] != worker]
            farm.scheduler.worker_joined(WorkerId(f"new{number}"), [MODEL], now=farm.now)
        else:
            farm.scheduler.finished(worker, task, doubled(call, row_s=1e-4), now=farm.now)
    raise AssertionError("it never ends")


def nothing_is_left(farm: Farm) -> bool:
    return len(farm.feeder) == len(farm.scheduler) == farm.queue.counts.to_come == 0


@pytest.mark.parametrize("known", [True, False])
def test_only_the_row_that_kills_counts_losses(known: bool) -> None:
    farm = Farm(workers=2, retries=3)
    _, outcomes = farm.ask(2_000)
    run_with_loss(farm, 1234, known=known)
    (error,) = outcomes
    assert isinstance(error, WorkerLost)
    assert error.message.startswith("row 1234: the call was lost 4 times, with w")
    assert nothing_is_left(farm)


def test_rows_of_a_run_that_must_not_run_twice_by_now_are_not_made_again() -> None:
    """Meanwhile a worker has joined whose model has `repeatable = False`."""
    farm = knowing(1e-4)
    _, outcomes = farm.ask(2_000)
    farm.turn()
    runs = [(worker, task) for worker, task, call in farm.sent if call.rows != 1]
    assert runs
    farm.scheduler.worker_joined(WorkerId("new"), [replace(MODEL, repeatable=False)], now=1.0)
    worker, task = runs[0]
    farm.made.clear()
    farm.scheduler.worker_left(worker, "signal 9", running=[task], row=1, now=1.0)
    farm.turn()
    (error,) = outcomes
    assert isinstance(error, WorkerLost)
    assert "may have run this call" in error.message
    assert farm.made == []


def test_rows_beside_the_one_that_kills_are_made_again_as_runs() -> None:
    farm = knowing(1e-4)
    _, outcomes = farm.ask(2_000)
    run_with_loss(farm, 700, losses=1)
    assert is_doubled(outcomes, 2_000)
    assert nothing_is_left(farm)
    assert farm.made.count(1) <= 2, "the suspect runs alone, the rest does not"


# Rows with separate outcomes


class Each:
    """Rows that fail independently; those in `wrong` are invalid."""

    config = "{}"
    row_bytes = 8
    is_one_call = are_callers = False
    rows_a_step = 4

    def __init__(self, count: int, wrong: set[int]) -> None:
        self.most = count
        self.outcomes: dict[int, Any] = {}
        self.ended = 0
        self.wanted = set(range(count))
        self._count = count
        self._wrong = wrong

    def __len__(self) -> int:
        return self._count

    def most_open(self) -> int:
        return self.most

    def part(self, first: int, most: int) -> Call:
        if first in self._wrong:
            raise InvalidInput("no number")
        end = first + 1
        while end < min(first + most, self._count) and end not in self._wrong:
            end += 1
        x = np.arange(float(first), end).reshape(-1, 1)
        return Call("m", Operation.EVALUATE, (x,), rows=end - first)

    def done(self, first: int, end: int, result: Result) -> None:
        assert len(result.outputs[0]) == end - first
        for row in range(first, end):
            assert row not in self.outcomes
            self.outcomes[row] = self.value(result, row - first)

    def value(self, result: Result, row: int) -> Any:
        """Return what is kept of a row's result."""
        return str(result.outputs[0][row, 0])

    def failed(self, first: int, end: int, error: FarmError) -> bool:
        for row in range(first, end):
            assert row not in self.outcomes
            self.outcomes[row] = error.message
        return True

    def is_wanted(self, first: int, end: int) -> bool:
        return not self.wanted.isdisjoint(range(first, end))

    def finished(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("wrong", [set(), {0}, {3, 4, 900}, {999}, set(range(1000))])
def test_each_row_has_one_outcome_of_its_own(wrong: set[int]) -> None:
    farm = Farm(workers=2)
    rows = Each(1000, wrong)

    def work(call: Call) -> Outcome:
        x = call.inputs[0]
        bad = [i for i, value in enumerate(x[:, 0]) if value % 10 == 5]
        if not bad:
            return doubled(call, row_s=1e-5)
        if len(x) == 1:
            return ModelFailed("diverged")
        outputs = (2.0 * x[: bad[0]],) if bad[0] else ()
        return Result(outputs, 1e-5, failed=ModelFailed("diverged"))

    farm.begin(rows)
    farm.work(work)
    assert rows.ended == 1
    assert rows.outcomes == {
        row: "no number" if row in wrong else "diverged" if row % 10 == 5 else str(2.0 * row)
        for row in range(1000)
    }
    assert nothing_is_left(farm)


def test_rows_beside_one_that_is_beyond_the_time_limit_have_their_own_outcomes() -> None:
    farm = knowing(1e-4)
    rows = Each(2_000, set())
    farm.begin(rows)
    run_with_loss(farm, 1234, cause=LossCause.TIME_LIMIT)
    failed = {row for row, text in rows.outcomes.items() if "was killed" in text}
    assert (len(rows.outcomes), failed, rows.ended) == (2_000, {1234}, 1)
    assert max(farm.made) > 1, "some rows ran together"
    assert nothing_is_left(farm)


def test_only_as_many_rows_are_open_as_may_be() -> None:
    farm = knowing(1e-6)
    rows = Each(1000, set())
    rows.most = 7
    call = farm.begin(rows)
    farm.turn()
    assert sum(farm.made) == 7
    rows.most = 9
    farm.feeder.more(call)
    farm.turn()
    assert sum(farm.made) == 9
    rows.most = 1000
    farm.work(partial(doubled, row_s=1e-6))
    assert len(rows.outcomes) == 1000
    farm.feeder.more(call)


def test_rows_that_are_dear_to_make_are_fewer_in_a_turn() -> None:
    farm = knowing(1e-6, workers=200)
    rows = Each(100_000, set())
    farm.begin(rows)
    farm.turn()
    assert sum(farm.made) <= rows.rows_a_step * PARTS_A_TURN + max(farm.made)


def test_a_stream_whose_answers_are_of_no_use_is_ended() -> None:
    class Refuses(Each):
        def part(self, first: int, most: int) -> Call:
            return Call("m", Operation.STREAM, (np.ones(1),))

        def done(self, first: int, end: int, result: Result) -> None:
            if first == 1:
                raise Overloaded("too many bytes")
            self.outcomes[first] = "done"

    farm = Farm(model=ModelInfo("m", X, X, frozenset({Operation.STREAM})))
    rows = Refuses(3, set())

    farm.begin(rows, Operation.STREAM)
    farm.work(lambda call: Result((np.ones(1),), 1e-3, more=True), turns=50)
    assert rows.outcomes == {0: "done", 1: "too many bytes"}
    assert farm.cancelled == 1
    assert rows.ended == 0, "the other goes on"


def test_the_parts_of_a_call_are_one_caller_of_their_client() -> None:
    """Two calls of many rows weigh as much as two calls of one row, not as much as their parts."""
    farm = Farm()
    for _ in range(2):
        farm.ask(1000, client="a")
    for _ in range(50):
        farm.turn()
    usage = farm.scheduler._models["m"].accounts.entering("a").usage
    assert usage.waiting > 2
    assert usage.weight == 2


def test_workers_that_join_get_rows_while_the_first_ones_still_run() -> None:
    farm = Farm(workers=1)
    farm.ask(100)
    farm.turn()
    assert len(farm.sent) == 1
    for number in range(1, 20):
        farm.scheduler.worker_joined(WorkerId(f"w{number}"), [MODEL], now=0.0)
        farm.feeder._joined()
    farm.turn()
    assert len(farm.sent) == 20


def test_parts_without_a_wanted_row_are_cancelled_and_the_others_go_on() -> None:
    farm = Farm(workers=1)
    rows = Each(10, set())
    call = farm.begin(rows)
    farm.turn()
    alive = len(farm.scheduler)
    rows.wanted.remove(1)
    farm.feeder.drop(call)
    assert (farm.cancelled, len(farm.scheduler)) == (1, alive - 1)
    rows.wanted.clear()
    farm.feeder.drop(call)
    assert nothing_is_left(farm) or len(farm.scheduler) == 1, "one runs to its end"
    farm.feeder.drop(call)
    farm.work(doubled)
    assert nothing_is_left(farm)
    assert rows.outcomes == {}


def test_rows_that_fail_together_each_get_the_error() -> None:
    farm = Farm()
    rows = Each(1000, wrong=set())
    farm.begin(rows)
    farm.turn()
    farm.feeder.fail_all(Overloaded("later"))
    assert (set(rows.outcomes.values()), len(rows.outcomes), rows.ended) == ({"later"}, 1000, 1)
    assert farm.cancelled == len(farm.made)
    farm.work(doubled)
    assert nothing_is_left(farm)
