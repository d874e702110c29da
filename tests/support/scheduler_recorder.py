"""A scheduler with a manual clock; its actions must equal the expected ones exactly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from farm.call import Call, Derivative, ModelInfo, Operation, Result, TensorInfo
from farm.errors import FarmError
from farm.scheduler.accounts import Account
from farm.scheduler.actions import Action, EndSequence, EndStream, Reply, Send
from farm.scheduler.core import Scheduler
from farm.scheduler.placement import Pool
from farm.scheduler.queues import Queue
from farm.scheduler.run_times import RunTimes
from farm.scheduler.state import Task, TaskId, WorkerId
from farm.scheduler.workers import Worker
from farm.sequences import SequenceId, SequenceLimits, SequenceStep
from tests.support.scheduler_invariants import check

ROUND_TRIP_S = 1e-3
"""Round trip of the recorder's workers: time from sending a call to its end, without the run."""

SHORT_S = 1.5e-3
"""A run time at which one call waits at a worker behind the running one."""

Expected = tuple[object, ...]


def model(
    name: str = "m",
    *,
    max_batch: int = 1,
    repeatable: bool = True,
    keeps_point: bool = False,
    copies: bool = True,
    sequences: SequenceLimits | None = None,
) -> ModelInfo:
    return ModelInfo(
        name,
        (TensorInfo("x", (3,)),),
        (TensorInfo("y", (1,)),),
        frozenset(Operation),
        max_batch=max_batch,
        repeatable=repeatable,
        keeps_point=keeps_point,
        copies=copies,
        sequences=sequences,
    )


def stateful(name: str = "s", *, most: int = 2, idle_s: float = 10.0) -> ModelInfo:
    """Return a model whose workers keep `most` sequences each."""
    return model(name, repeatable=False, copies=False, sequences=SequenceLimits(most, idle_s))


def step(sequence: SequenceId, flags: str = "", *, name: str = "s") -> Call:
    """Return a call of a sequence. flags: "s" for its start, "e" for its end, "se" for both."""
    where = SequenceStep(sequence, "s" in flags, "e" in flags)
    return replace(call(name), step=where)


def call(
    name: str = "m",
    operation: Operation = Operation.EVALUATE,
    *,
    rows: int | None = None,
    config: str = "{}",
    dtype: str = "float64",
    size: int = 3,
) -> Call:
    shape = (size,) if rows is None else (rows, size)
    derivative = None
    if operation not in (Operation.EVALUATE, Operation.DESCRIBE):
        derivative = Derivative(0, 0, sens=np.ones(1), vec=np.ones(size))
    return Call(name, operation, (np.ones(shape, dtype),), config, derivative, rows)


def result(run_time_s: float = 1.0, *, idle_s: float = -1.0) -> Result:
    return Result((np.zeros(1),), run_time_s, idle_s=idle_s)


def sent(worker: str, *tasks: TaskId) -> Expected:
    return "send", worker, tasks


def replied(task: TaskId, outcome: type[FarmError] | float, worker: str | None) -> Expected:
    """Return the expected reply. outcome: run time that marks the result, or error class."""
    return "reply", task, outcome, worker


def asked_back(worker: str, *tasks: TaskId) -> Expected:
    return "take back", worker, tasks


def ended(worker: str, task: TaskId) -> Expected:
    return "end stream", worker, task


def forgotten(worker: str, sequence: SequenceId) -> Expected:
    return "end sequence", worker, sequence


def _mark(outcome: FarmError | Result) -> type[FarmError] | float:
    return outcome.run_time_s if isinstance(outcome, Result) else type(outcome)


def _plain(action: Action) -> Expected:
    if isinstance(action, Send):
        return sent(action.worker, *(task.id for task in action.tasks))
    if isinstance(action, Reply):
        return replied(action.task.id, _mark(action.outcome), action.worker)
    if isinstance(action, EndStream):
        return ended(action.worker, action.task)
    if isinstance(action, EndSequence):
        return forgotten(action.worker, action.id)
    return asked_back(action.worker, *action.tasks)


class Recorder:
    """Passes facts to a scheduler and checks, after each, its state and all of its actions."""

    def __init__(self, **settings: Any) -> None:
        """settings: those of Scheduler, by name; so are the other ones below."""
        self.scheduler = Scheduler(**settings)
        self.now = 0.0
        self.replies: list[Reply] = []
        self.sends: list[Send] = []

    # Facts

    def submit(self, asked: Call | str = "m", **how: Any) -> TaskId:
        asked = call(asked) if isinstance(asked, str) else asked
        return self.scheduler.submit(asked, now=self.now, **how)

    def submit_many(self, count: int, asked: Call | str = "m", **how: Any) -> list[TaskId]:
        return [self.submit(asked, **how) for _ in range(count)]

    def join(
        self, name: str, *models: ModelInfo | str, ends_runs: bool = True, **how: Any
    ) -> WorkerId:
        infos = [model(each) if isinstance(each, str) else each for each in models or ("m",)]
        worker = WorkerId(name)
        self.scheduler.worker_joined(worker, infos, ends_runs=ends_runs, now=self.now, **how)
        return worker

    def leave(self, name: str, reason: str = "killed", **how: Any) -> None:
        self.scheduler.worker_left(WorkerId(name), reason, now=self.now, **how)

    def resize(self, name: str, slots: int, last_slots: int = 0) -> None:
        self.scheduler.worker_resized(WorkerId(name), slots, last_slots)

    def fill(self, name: str, full: bool) -> None:
        self.scheduler.worker_full(WorkerId(name), full)

    def finish(self, name: str, task: TaskId, outcome: FarmError | Result | float = 1.0) -> None:
        answer = result(outcome) if isinstance(outcome, float) else outcome
        self.scheduler.finished(WorkerId(name), task, answer, now=self.now)

    def hand_back(self, name: str, *tasks: TaskId) -> None:
        self.scheduler.recalled(WorkerId(name), tasks, now=self.now)

    def miss(self, name: str, *tasks: TaskId) -> None:
        self.scheduler.went_missing(WorkerId(name), tasks, now=self.now)

    # Resulting actions

    def act(self) -> list[Action]:
        """Carry out all actions that the scheduler requests now; return them."""
        check(self.scheduler)
        actions = self.scheduler.actions(self.now)
        self.replies += [a for a in actions if isinstance(a, Reply)]
        self.sends += [a for a in actions if isinstance(a, Send)]
        check(self.scheduler)
        return actions

    def expect(self, *expected: Expected) -> None:
        """Assert that the scheduler requests exactly these actions now, in this order."""
        actions = self.act()
        assert not self.scheduler.actions(self.now), "one look yields all actions"
        assert [_plain(action) for action in actions] == list(expected)

    def begin(self, worker: str, asked: Call | str = "m", **how: Any) -> TaskId:
        """Submit a call; it must be sent to `worker` at once, and nothing else be requested."""
        task = self.submit(asked, **how)
        self.expect(sent(worker, task))
        return task

    def begin_many(
        self, worker: str, count: int, asked: Call | str = "m", **how: Any
    ) -> list[TaskId]:
        """Submit calls; they must be sent to `worker` at once, together."""
        tasks = self.submit_many(count, asked, **how)
        self.expect(sent(worker, *tasks))
        return tasks

    def answer(
        self,
        worker: str,
        task: TaskId,
        outcome: FarmError | Result | float = 1.0,
        *then: Expected,
    ) -> None:
        """Let a worker answer; the answer must be replied, and `then` be requested."""
        self.finish(worker, task, outcome)
        answer = result(outcome) if isinstance(outcome, float) else outcome
        self.expect(replied(task, _mark(answer), worker), *then)

    def answer_all(
        self, worker: str, tasks: Iterable[TaskId], run_time_s: float, *then: Expected
    ) -> None:
        """Let a worker answer all calls of a batch, after which `then` must be requested."""
        tasks = list(tasks)
        for task in tasks:
            self.finish(worker, task, run_time_s)
        self.expect(*(replied(task, run_time_s, worker) for task in tasks), *then)

    def take_back(self, worker: str, tasks: Iterable[TaskId], *then: Expected) -> None:
        """Let `worker` be asked for calls and return them, after which `then` must be requested."""
        tasks = list(tasks)
        self.expect(asked_back(worker, *tasks))
        self.hand_back(worker, *tasks)
        self.expect(*then)

    def run(self, worker: str, asked: Call | str = "m", seconds: float = 1.0, **how: Any) -> None:
        """Let a worker that is free run a call for `seconds`."""
        task = self.begin(worker, asked, **how)
        self.after(seconds).answer(worker, task, seconds)

    def after(self, seconds: float) -> Recorder:
        """Advance the clock by `seconds`; return self."""
        self.now += seconds
        return self

    def forget_actions(self) -> None:
        """Carry out all actions, whatever they are, to set up a scene."""
        while self.act():
            pass

    def last_error(self) -> str:
        outcome = self.replies[-1].outcome
        assert isinstance(outcome, FarmError)
        return outcome.message

    def learn(self, run_time_s: float, *, count: int = 20, worker: str = "teacher") -> None:
        """Run `count` calls of model "m" on a separate worker, so that run times are known."""
        self.join(worker)
        for _ in range(count):
            task = self.submit()
            self.scheduler.actions(self.now)
            self.after(run_time_s + ROUND_TRIP_S).finish(worker, task, run_time_s)
            self.scheduler.actions(self.now)
        self.leave(worker, drained=True)
        self.expect()

    # Inspection of internals, for rules that are not visible from outside

    def task(self, task: TaskId) -> Task:
        return self.scheduler._open.by_id[task]

    def worker(self, name: str) -> Worker:
        return self.scheduler._workers[WorkerId(name)]

    def pool(self, *models: str) -> Pool:
        return self.scheduler._pools[frozenset(models or ("m",))]

    def queue(self, name: str = "m", operation: Operation = Operation.EVALUATE) -> Queue:
        return self.scheduler._models[name].by_operation[operation]

    def run_times(self, name: str = "m") -> RunTimes:
        return self.queue(name).run_times

    def account(self, client: str, name: str = "m") -> Account:
        return self.scheduler._models[name].accounts._by_name[client]


def prefetched(farm: Recorder, count: int = 2, **how: Any) -> list[TaskId]:
    """Return calls on a new worker "w", where one call waits behind each that runs."""
    farm.learn(SHORT_S)
    farm.join("w", **how)
    return farm.begin_many("w", count)


def straggler(farm: Recorder, *, count: int = 20, client: str = "") -> TaskId:
    """Return a call that has run for 2 s on "w1"; "w2" idles, and `count` runs of 1 s are known."""
    farm.learn(1.0, count=count)
    farm.join("w1", host="one")
    task = farm.begin("w1", client=client)
    farm.join("w2", host="two")
    farm.after(2.0).expect()
    return task


def copied(farm: Recorder, *, count: int = 20, client: str = "") -> TaskId:
    """Return a call that runs on "w1" since 4 s, and its copy on "w2" since 1 s."""
    task = straggler(farm, count=count, client=client)
    farm.after(1.0).expect(sent("w2", task))
    farm.after(1.0).expect()
    return task
