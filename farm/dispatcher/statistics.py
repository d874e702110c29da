"""Counts and times of each model's calls since the farm started.

The fields are those of the KServe protocol's statistics extension, as in Triton.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from farm.call import QUESTIONS, Call, Hints, Result
from farm.dispatcher.chains import Chains, counted
from farm.dispatcher.clients import Clients
from farm.errors import FarmError
from farm.scheduler.actions import Outcome
from farm.scheduler.state import Task
from farm.scheduler.view import View


class Counted:
    """A receiver of a task's outcome that knows how many calls the task counts as."""

    __slots__ = ()

    def calls(self, rows: int) -> int:
        """Return how many calls a task of `rows` rows counts as; 0: its call is counted later."""
        raise NotImplementedError

    def fails(self, outcome: Outcome) -> int:
        """Return how many calls fail for good with this outcome."""
        raise NotImplementedError


def calls_of(on_done: object, rows: int) -> int:
    """Return how many calls a task of `rows` rows with this receiver counts as; mostly one."""
    return on_done.calls(rows) if isinstance(on_done, Counted) else 1


def ended_calls(on_done: object, rows: int, outcome: Outcome, fails: int) -> int:
    """Return how many calls a task of `rows` rows counts as with this outcome.

    These are its calls, without those that fail but run again, as the rows of a lost run do.
    fails: how many fail for good.
    """
    calls = calls_of(on_done, rows)
    return min(calls, fails) if isinstance(outcome, FarmError) else calls


def fails_of(on_done: object, outcome: Outcome) -> int:
    """Return how many calls fail for good when this receiver gets an outcome; None: cancelled."""
    if on_done is None or (isinstance(outcome, Result) and outcome.failed is None):
        return 0
    return on_done.fails(outcome) if isinstance(on_done, Counted) else 1


@dataclass(slots=True)
class Duration:
    """A count of events and their total time in seconds."""

    count: float = 0
    seconds: float = 0.0

    def add(self, seconds: float, count: float = 1) -> None:
        """Record `count` events that took `seconds` in total."""
        self.count += count
        self.seconds += seconds


@dataclass(slots=True)
class ModelStatistics:
    """Counts and times of one model.

    success, fail: time from accepting a call to its outcome; queue: time until its run, or the run
    of its last part, starts; compute: each call's share of the runs, by rows. rows: rows that ran;
    executions: runs of the model, so that rows / executions is the mean batch size; by_batch: runs
    by number of rows. last: Unix time of the last success, 0 before the first. reused: rows whose
    answer came from an evaluation for another call. missed: rows that could have been answered so,
    but no evaluation of them was known.
    """

    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute: Duration = field(default_factory=Duration)
    rows: int = 0
    executions: float = 0.0
    by_batch: dict[int, Duration] = field(default_factory=dict)
    last: float = 0.0
    reused: int = 0
    missed: int = 0

    def add_run(self, rows: int, result: Result, *, one_by_one: bool = False) -> float:
        """Record the run of a task's rows and return its worker-seconds.

        one_by_one: they ran one after another, not together.
        """
        run_time_s = result.run_time_s
        if one_by_one:
            rows = result.rows_done(rows)
            batch_rows, share = 1, float(rows)
        else:  # every task of a run reports the whole run: count its share
            batch_rows = max(result.batch_rows, rows)
            share = rows / batch_rows
            run_time_s *= share
        self.compute.seconds += run_time_s
        self.rows += rows
        self.executions += share
        of_size = self.by_batch.get(batch_rows)
        if of_size is None:
            of_size = self.by_batch[batch_rows] = Duration()
        of_size.add(run_time_s, share)
        return run_time_s

    def add_outcome(
        self, outcome: Result | FarmError, waited_s: float, today: float, calls: int = 1
    ) -> None:
        """Record the outcome of `calls` calls, which took `waited_s` seconds each.

        today: Unix time.
        """
        if isinstance(outcome, FarmError):
            self.fail.add(calls * waited_s, calls)
            return
        done = outcome.rows_done(calls)
        if outcome.failed is not None:
            self.fail.add(waited_s)
        if done:
            self.success.add(done * waited_s, done)
            self.queue.add(done * outcome.queue_time_s, done)
            self.compute.count += done
            self.last = today


class Statistics:
    """Statistics of models, chains and clients of one dispatcher, without questions."""

    def __init__(self) -> None:
        self.models: dict[str, ModelStatistics] = {}
        self.chains = Chains()
        self.clients = Clients()

    def add_answer(
        self, task: Task, outcome: Result | FarmError, calls: int, now: float, today: float
    ) -> None:
        """Record an answer to a task, which counts as `calls` calls. today: Unix time."""
        worker_s = self.add_run(task, outcome)
        if calls:
            self.add_outcome(task.call, outcome, now - task.submitted_at, today, calls)
        if task.call.operation not in QUESTIONS:
            client = task.account.client.name
            self.clients.answered(client, *counted(outcome, calls), worker_s, now)
        if task.id in self.chains.open:
            self.chains.task_answered(task.id, outcome, calls, worker_s, now)

    def add_whole(
        self,
        call: Call,
        outcome: Result | FarmError,
        hints: Hints,
        began: float,
        now: float,
        today: float,
    ) -> None:
        """Record the outcome of a call whose tasks counted as none."""
        self.add_outcome(call, outcome, now - began, today)
        failed = isinstance(outcome, FarmError)
        self._add_caller(hints, int(not failed), int(failed), now)

    def _add_caller(self, hints: Hints, done: int, failed: int, now: float) -> None:
        self.clients.answered(hints.client, done, failed, 0.0, now)
        if hints.shown_as is not None:
            self.chains.answered(hints.shown_as, done, failed, now)

    def add_run(self, task: Task, outcome: Result | FarmError) -> float:
        """Record the run of a task, a call or a part of one, and return its worker-seconds."""
        if not isinstance(outcome, Result) or task.call.operation in QUESTIONS:
            return 0.0
        worker_s = self._of(task.call).add_run(task.rows, outcome, one_by_one=task.is_run)
        self.chains.of_all_s += worker_s
        return worker_s

    def add_outcome(
        self,
        call: Call,
        outcome: Result | FarmError,
        waited_s: float,
        today: float,
        calls: int = 1,
    ) -> None:
        """Record the outcome of a call, or of `calls` calls that ran as its rows."""
        if call.operation not in QUESTIONS:
            self._of(call).add_outcome(outcome, waited_s, today, calls)

    def count_reused(self, call: Call, calls: int, rows: int, hints: Hints, now: float) -> None:
        """Record calls that were answered without a run of their own.

        call: one of them; calls, rows: how many these are.
        """
        of_model = self._of(call)
        of_model.success.add(0.0, calls)
        of_model.reused += rows
        if calls:
            self._add_caller(hints, calls, 0, now)

    def count_missed(self, call: Call, rows: int) -> None:
        """Record rows of a call that run because no evaluation of them is known."""
        self._of(call).missed += rows

    def snapshot(self, view: View, now: float) -> dict[str, Any]:
        """Return the rows of chains and of clients."""
        return {
            "chains": self.chains.snapshot(view.sent(), now),
            "clients": self.clients.snapshot(view.clients(now), now),
        }

    def _of(self, call: Call) -> ModelStatistics:
        known = self.models.get(call.model)
        if known is None:
            known = self.models[call.model] = ModelStatistics()
        return known
