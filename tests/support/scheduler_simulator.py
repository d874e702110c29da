"""A farm in simulated time: the real scheduler, workers with given run times, slow messages.

Tests and `benchmarks/scheduling.py` use it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import pytest

from farm.call import Call, Result
from farm.policies import ModelPolicy
from farm.scheduler.accounts import BULK, Chain
from farm.scheduler.actions import Recall, Reply, Send
from farm.scheduler.core import Scheduler
from farm.scheduler.run_times import RunTimes
from farm.scheduler.state import TaskId, WorkerId
from tests.support.scheduler_invariants import check
from tests.support.scheduler_recorder import call, model, result


class SimulatedWorker:
    """Runs the calls sent to it in order, one at a time."""

    def __init__(self, name: WorkerId) -> None:
        self.name = name
        self.waiting: OrderedDict[TaskId, None] = OrderedDict()
        self.running: TaskId | None = None
        self.idle_since = 0.0
        self.config = ""
        self.runs: list[tuple[float, float, TaskId]] = []  # each from its sending to its end


class Simulation:
    """`workers` workers; a message takes `one_way_s`, a call the time its caller sets.

    Callers are notified of each answer as it arrives and may submit more calls then. models: those
    of every worker; warm_up_s: a run after another config takes so much longer.
    """

    def __init__(
        self,
        *,
        workers: int,
        one_way_s: float,
        models: Sequence[str] = ("m",),
        warm_up_s: float = 0.0,
        copies: bool = True,
        keeps_point: bool = False,
        policies: Mapping[str, ModelPolicy] | None = None,
    ) -> None:
        self.scheduler = Scheduler(policies=policies)
        self.now = 0.0
        self.one_way_s = one_way_s
        self.work_s = 0.0
        self.last_end = 0.0
        self.last_reply = 0.0
        self.replies: list[Reply] = []
        self.asked_at: dict[TaskId, float] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._run_time_s: dict[TaskId, float] = {}
        self._on_first_worker: dict[TaskId, float] = {}
        self._told: dict[TaskId, Callable[[Reply], None]] = {}
        self._timer_at: float | None = None
        self._workers: dict[WorkerId, SimulatedWorker] = {}
        for i in range(workers):
            name = WorkerId(f"w{i}")
            self._workers[name] = SimulatedWorker(name)
            infos = [model(each, copies=copies, keeps_point=keeps_point) for each in models]
            self.scheduler.worker_joined(name, infos, ends_runs=True, now=0.0)
        self._warm_up_s = warm_up_s
        self._config: dict[TaskId, str] = {}
        self._calls: dict[tuple[str, str], Call] = {}

    def submit(
        self,
        run_time_s: float,
        *,
        model: str = "m",
        config: str = "{}",
        client: str = "",
        slow_s: float | None = None,
        chain: Chain = BULK,
        told: Callable[[Reply], None] = lambda reply: None,
        asked: Call | None = None,
    ) -> None:
        """Submit a call. slow_s: the run time on its first worker, if that is slow.

        asked: the call itself, if its model and config do not say enough.
        """
        asked = asked or self._calls.get((model, config))
        if asked is None:
            asked = self._calls[model, config] = call(model, config=config)
        task = self.scheduler.submit(asked, client=client, chain=chain, now=self.now)
        self.asked_at[task] = self.now
        self._run_time_s[task] = run_time_s
        self._config[task] = config
        if slow_s is not None:
            self._on_first_worker[task] = slow_s
        self._told[task] = told

    def is_free(self, name: WorkerId, since: float, until: float, task: TaskId) -> bool:
        """Whether a worker had nothing but `task`, running or sent to it, at a moment of a span."""
        at = since
        for begin, end, other in self._workers[name].runs:
            if other != task and begin <= at < end:
                at = end
        return at <= until

    def cost_of_copies(self) -> tuple[float, float]:
        """Return the seconds that calls waited while workers ran copies, and those that were saved.

        A call would have found the worker of a copy idle.
        """
        runs: dict[TaskId, list[tuple[float, float]]] = {}
        for worker in self._workers.values():
            for begin, end, task in worker.runs:
                runs.setdefault(task, []).append((begin, end))
        saved_s = 0.0
        changes: list[tuple[float, int, int]] = []  # of the numbers of copies, and of those waiting
        for task, attempts in runs.items():
            first, *copies = sorted(attempts)
            changes += [(self.asked_at[task], 0, 1), (first[0], 0, -1)]
            for copy in copies:
                saved_s += max(0.0, first[1] - copy[1])
                changes += [(copy[0], 1, 0), (copy[1], -1, 0)]
        waited_s, last, running, waiting = 0.0, 0.0, 0, 0
        for at, begun, asked in sorted(changes):
            waited_s += min(running, waiting) * (at - last)
            last, running, waiting = at, running + begun, waiting + asked
        return waited_s, saved_s

    def at(self, time: float, happen: Callable[[], None]) -> None:
        """Let something happen at a time, such as a call after its caller has thought."""

        def act() -> None:
            happen()
            self._act()

        self._at(time, act)

    def run(self, until: float = math.inf) -> None:
        """Run until no event is left; then every call must be answered. Or run up to a time."""
        self._act()
        while self._events and self._events[0][0] <= until:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
        if self._events:
            return
        assert len(self.scheduler) == 0
        check(self.scheduler)

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), happen))

    def _act(self) -> None:
        while actions := self.scheduler.actions(self.now):
            for action in actions:
                if isinstance(action, Reply):
                    self.replies.append(action)
                    self.last_reply = self.now
                    self._told.pop(action.task.id)(action)
                    continue
                worker = self._workers[action.worker]
                arrival = self.now + self.one_way_s
                if isinstance(action, Send):
                    ids = [task.id for task in action.tasks]
                    self._at(arrival, partial(self._arrive, worker, ids))
                elif isinstance(action, Recall):
                    self._at(arrival, partial(self._give_back, worker, action.tasks))
        at = self.scheduler.wakeup()
        if at is not None and at != self._timer_at:
            self._timer_at = at
            self._at(max(at, self.now), self._act)

    # Events at a worker

    def _arrive(self, worker: SimulatedWorker, ids: list[TaskId]) -> None:
        worker.waiting.update(dict.fromkeys(ids))
        if worker.running is None:
            self._begin_next(worker)

    def _begin_next(self, worker: SimulatedWorker) -> None:
        worker.running = None
        if worker.waiting:
            task, _ = worker.waiting.popitem(last=False)
            worker.running = task
            run_time_s = self._on_first_worker.pop(task, self._run_time_s[task])
            if self._config[task] != worker.config:
                worker.config = self._config[task]
                run_time_s += self._warm_up_s
            self.work_s += run_time_s
            worker.runs.append((self.now - self.one_way_s, self.now + run_time_s, task))
            answer = result(run_time_s, idle_s=self.now - worker.idle_since)
            self._at(self.now + run_time_s, partial(self._end, worker, task, answer))

    def _end(self, worker: SimulatedWorker, task: TaskId, outcome: Result) -> None:
        self.last_end = worker.idle_since = self.now

        def answer() -> None:
            self.scheduler.finished(worker.name, task, outcome, now=self.now)
            self._act()

        self._at(self.now + self.one_way_s, answer)
        self._begin_next(worker)

    def _give_back(self, worker: SimulatedWorker, asked: list[TaskId]) -> None:
        back = [t for t in asked if t in worker.waiting]
        for task in back:
            del worker.waiting[task]

        def answer() -> None:
            self.scheduler.recalled(worker.name, back, now=self.now)
            self._act()

        self._at(self.now + self.one_way_s, answer)


def fixed_prefetch(patch: pytest.MonkeyPatch, waiting: int) -> None:
    """Make `waiting` calls wait at every worker, regardless of their run times."""
    learn, begin = RunTimes.add, RunTimes.__init__

    def add(self: RunTimes, seconds: float) -> None:
        learn(self, seconds)
        self.prefetch = waiting

    def init(self: RunTimes) -> None:
        begin(self)
        self.prefetch = waiting

    patch.setattr(RunTimes, "add", add)
    patch.setattr(RunTimes, "__init__", init)


def seeds(count: int) -> Iterator[int]:
    """Yield the seeds of every simulation here, which are recorded to make numbers reproducible."""
    yield from range(1000, 1000 + count)


FIRST, *OTHERS = seeds(3)
SEED = pytest.mark.parametrize(
    "seed", [FIRST, *[pytest.param(seed, marks=pytest.mark.slow) for seed in OTHERS]]
)
"""For tests of a case with a few seeds, of which the usual run has one."""
