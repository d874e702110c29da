"""Random histories: callers submit and cancel, workers join, stall, shrink, die and answer late.

The model workers here know nothing of the scheduler's state: each runs the tasks sent to it in
order, as many lots at once as it has slots, and returns only tasks that it has not begun. The
scheduler's own invariants hold after every step, and so do these, seen from outside:

- Every call gets exactly one reply.
- No task is sent twice at a time, but for one copy on another worker that idles, of a slow call,
  while no call waits. No task goes to a worker without its model, nor above the worker's credit.
- A call that must not run twice is never copied, and is sent once, unless the worker returned it
  before it began; it waits behind no other call, and no other waits behind it.
- A task that has begun is never recalled.
- The calls in flight are those that workers have: of a run that was split, one row.
- No worker idles while a call waits that it could take, except while a batch waits for more calls,
  or for a reserve that other long calls leave only just free.
- A long call takes none of the slots that are reserved for another model.
- The calls of a sequence begin in the order of their arrival, one at a time, on the worker that has
  its state, and none that was skipped lies between two of them. A worker has no more states than
  its model allows, and drops those of sequences that have ended.
- In the end every call is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from farm.call import Call, Operation, Result
from farm.errors import (
    Cancelled,
    DeadlineExceeded,
    FarmError,
    InvalidInput,
    LossCause,
    ModelFailed,
    TimeLimitExceeded,
    WorkerLost,
)
from farm.policies import ModelPolicy
from farm.scheduler.accounts import BULK
from farm.scheduler.actions import Action, EndSequence, EndStream, Recall, Reply, Send
from farm.scheduler.affinity import waits_until
from farm.scheduler.batching import LONGEST_LINGER_S
from farm.scheduler.core import Scheduler
from farm.scheduler.phases import OUTRUN
from farm.scheduler.placement import FULL
from farm.scheduler.queues import Queue
from farm.scheduler.state import Lot, Task, TaskId, WorkerId
from farm.sequences import SequenceId
from tests.support.scheduler_invariants import check
from tests.support.scheduler_recorder import call, model, result, stateful, step

MODELS = {
    "plain": model("plain", keeps_point=True),
    "batched": model("batched", max_batch=3),
    "rows": model("rows"),
    "once": model("once", repeatable=False),
    "once batched": model("once batched", max_batch=3, repeatable=False),
    "once kept": stateful("once kept", most=2, idle_s=20.0),
}
SETS = (
    ("plain",),
    ("plain", "batched", "rows"),
    ("plain", "batched", "once", "rows"),
    ("once",),
    ("once", "once batched"),
    ("plain", "once batched"),
    ("plain", "once kept"),
    ("once kept",),
)
OPERATIONS = (Operation.EVALUATE, Operation.EVALUATE, Operation.GRADIENT, Operation.DESCRIBE)
CONFIGS = ("{}", "{}", '{"mesh":1}', '{"mesh":2}')
KNOWN = 200
HOSTS = ("one", "one", "two")
RESERVES: tuple[dict[str, ModelPolicy], ...] = (
    {},
    {"plain": ModelPolicy(reserve=1, priority=1)},
    {"plain": ModelPolicy(reserve=2), "once": ModelPolicy(reserve_percent=50)},
)
SHORT_AND_LONG = (1e-6, 1e-3, 1.0, 50.0)


@dataclass
class ModelWorker:
    """The state of a real worker: its inbox in order, and the recall it has not answered."""

    name: WorkerId
    models: tuple[str, ...]
    slots: int
    most_slots: int
    inbox: list[Task] = field(default_factory=list)
    states: dict[SequenceId, TaskId] = field(default_factory=dict)  # with the last call of each
    lots: dict[TaskId, Lot | None] = field(default_factory=dict)
    rows: dict[TaskId, int] = field(default_factory=dict)  # of each task, as it was sent
    splits: dict[TaskId, int] = field(default_factory=dict)  # the row that each one runs
    questions: list[list[TaskId]] = field(default_factory=list)
    asked: bool = False
    full: bool = False
    host: str = ""
    ends_runs: bool = True

    def free(self) -> int:
        """Return the number of slots without a lot."""
        return self.slots - len({self.lots[task.id] for task in self.inbox} - {None})

    def begun(self) -> set[TaskId]:
        """Return the tasks of the first `slots` lots, and those that need no slot."""
        begun: set[TaskId] = set()
        lots: list[Lot] = []
        for task in self.inbox:
            lot = self.lots[task.id]
            if lot is not None and lot not in lots:
                if len(lots) == self.most_slots:
                    continue
                lots.append(lot)
            begun.add(task.id)
        return begun

    def runs(self) -> list[TaskId]:
        """Return the tasks that have begun and can be split."""
        begun = self.begun() - set(self.splits)
        return sorted(task for task in begun if self.rows[task] > 1)

    def outcome(
        self, task: TaskId, run_time_s: float, rows: int, *, fails: bool
    ) -> Result | FarmError:
        """Return an answer. rows: how many of a run are finished, if it was not split."""
        error = ModelFailed("it raised") if fails else None
        if self.rows[task] == 1:
            return result(run_time_s) if error is None else error
        last = self.splits.pop(task, min(rows, self.rows[task]) - 1)
        return of_rows(last if fails else last + 1, run_time_s, failed=error)

    def remove(self, task_ids: set[TaskId]) -> None:
        for task in task_ids:
            self.splits.pop(task, None)
        self.inbox = [task for task in self.inbox if task.id not in task_ids]


def of_rows(rows: int, run_time_s: float, **fields: Any) -> Result:
    """An answer to `rows` rows of a run."""
    times = (run_time_s / max(1, rows),) * rows
    outputs = (np.zeros((rows, 1)),) if rows else ()
    return Result(outputs, run_time_s, row_times_s=times, **fields)


class Histories(RuleBasedStateMachine):
    """One random history."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = self.farm_with({})
        self.now = 0.0
        self.workers: dict[WorkerId, ModelWorker] = {}
        self.joined = 0
        self.open: set[TaskId] = set()
        self.cancelled: set[TaskId] = set()
        self.answered: set[TaskId] = set()
        self.asked: dict[TaskId, str] = {}
        self.deadlines: dict[TaskId, float] = {}
        self.late: list[tuple[WorkerId, TaskId]] = []
        self.may_have_run: set[TaskId] = set()
        self.copied: set[TaskId] = set()
        self.sent_at: dict[TaskId, float] = {}
        self.steps: dict[SequenceId, list[TaskId]] = {}  # all calls of an id, as they arrived

    @staticmethod
    def farm_with(policies: dict[str, ModelPolicy]) -> Scheduler:
        return Scheduler(max_queued=50, max_queued_per_client=40, retries=2, policies=policies)

    # Facts

    @initialize(known=st.booleans(), reserve=st.sampled_from(RESERVES))
    def start(self, known: bool, reserve: dict[str, ModelPolicy]) -> None:
        self.scheduler = self.farm_with(reserve)
        for names in (*SETS[:3], SETS[4], SETS[6]):
            self.join(names, 1, None)
        # In half of the histories calls are soon slow.
        means = {"plain": 0.01, "batched": 0.01} if known else {}
        if reserve:
            means |= {"plain": 0.01, "batched": 1.0, "once": 1.0}
        for name, seconds in means.items():
            queue = self.scheduler.queue(name, Operation.EVALUATE)
            queue.counts.done = KNOWN if known else 0
            for _ in range(KNOWN):
                queue.run_times.add(seconds)

    @rule(seconds=st.sampled_from((1e-4, 0.01, 1.0, 30.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(
        name=st.sampled_from(("plain", "plain", "batched", "once")),
        seconds=st.sampled_from((0.5, 30.0, 30.0)),
    )
    def one_call_runs_long(self, name: str, seconds: float) -> None:
        """All calls but one are answered as they begin, and then that one goes on."""
        self.submit(name, Operation.EVALUATE, {"client": "a"}, None, "{}", 1)
        straggler: TaskId | None = max(self.asked, default=None)
        for _ in range(20):
            self.act()
            begun = [(w, task) for w in self.workers.values() for task in sorted(w.begun())]
            tasks = {task for _, task in begun}
            if straggler not in tasks:
                straggler = min(tasks, default=None)
            for worker, task in begun:
                if task != straggler:
                    self._answer(worker, task, 1e-3)
            if len(tasks) < 2:
                break
        self.act()
        self.now += seconds
        self.act()

    @rule(
        name=st.sampled_from(sorted(MODELS)),
        operation=st.sampled_from(OPERATIONS),
        how=st.fixed_dictionaries(
            {
                "client": st.sampled_from("abc"),
                "chain": st.sampled_from((BULK, BULK, None, "x", "y")),
                "priority": st.sampled_from((0, 0, 0, 1)),
            }
        ),
        deadline_s=st.sampled_from((None, None, None, 0.5, 20.0)),
        config=st.sampled_from(CONFIGS),
        count=st.sampled_from((1, 1, 3, 8)),
    )
    def submit(
        self,
        name: str,
        operation: Operation,
        how: dict[str, Any],
        deadline_s: float | None,
        config: str,
        count: int,
    ) -> None:
        for _ in range(count):
            if self.scheduler._open.queued < 39:
                self._submit(call(name, operation, config=config), deadline_s, **how)

    def _submit(self, asked: Call, deadline_s: float | None = None, **how: Any) -> TaskId:
        deadline = None if deadline_s is None else self.now + deadline_s
        task = self.scheduler.submit(asked, deadline=deadline, now=self.now, **how)
        assert task not in self.asked
        self.asked[task] = asked.model
        if deadline is not None:
            self.deadlines[task] = deadline
        self.open.add(task)
        return task

    @rule(
        rows=st.sampled_from((2, 3, 5)),
        client=st.sampled_from("abc"),
        gathered=st.booleans(),
        begins=st.booleans(),
    )
    def submit_run(self, rows: int, client: str, gathered: bool, begins: bool) -> None:
        """Submit rows that a worker evaluates one after another, of one caller or of several."""
        if self.scheduler._open.queued >= 39:
            return
        chain = None if gathered else BULK
        self._submit(call("rows", rows=rows), client=client, chain=chain, gathered=gathered)
        if begins:
            self.act()

    @precondition(lambda self: any(worker.runs() for worker in self.workers.values()))
    @rule(data=st.data(), row=st.integers(0, 4), cancels=st.sampled_from((False, False, True)))
    def split(self, data: st.DataObject, row: int, cancels: bool) -> None:
        """Answer the finished rows of a run, and run no more than the next one."""
        worker = self._draw(data, ModelWorker.runs)
        task = data.draw(st.sampled_from(worker.runs()))
        if cancels and task in self.open:
            self._cancel(task)
        row = worker.splits[task] = min(row, worker.rows[task] - 1)
        first = of_rows(row, 0.01 * row, more=True)
        event("a run is split" if task in self.open else "a cancelled run is split")
        self.scheduler.finished(worker.name, task, first, now=self.now)

    @rule(
        sequence=st.sampled_from((1, 2, 3, "x")),
        flags=st.sampled_from(("", "", "", "", "s", "e", "se")),
        client=st.sampled_from("abc"),
        deadline_s=st.sampled_from((None, None, None, 0.5, 20.0)),
        count=st.sampled_from((1, 1, 3)),
    )
    def submit_step(
        self,
        sequence: SequenceId,
        flags: str,
        client: str,
        deadline_s: float | None,
        count: int,
    ) -> None:
        """A call that neither starts a sequence nor belongs to one is refused, and starts one."""
        for _ in range(count):
            if self.scheduler._open.queued >= 39:
                break
            for tried in (flags, "s" + flags):
                asked = step(sequence, tried, name="once kept")
                try:
                    task = self._submit(asked, deadline_s, client=client)
                except InvalidInput:
                    assert "s" not in tried, "a start is never refused"
                    continue
                self.steps.setdefault(sequence, []).append(task)
                break

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self._cancel(data.draw(st.sampled_from(sorted(self.open))))

    def _cancel(self, task: TaskId) -> None:
        self.scheduler.cancel(task)
        if not any(_is_last(reply, task) for reply in self.scheduler._open._replies):
            self.open.remove(task)
            self.cancelled.add(task)

    @precondition(lambda self: len(self.workers) < 6)
    @rule(
        names=st.sampled_from(SETS),
        slots=st.sampled_from((1, 1, 2, 3)),
        lasts_s=st.sampled_from((None, None, 40.0, 1000.0)),
    )
    def join(self, names: tuple[str, ...], slots: int, lasts_s: float | None) -> None:
        self.joined += 1
        self._join(WorkerId(f"w{self.joined}"), names, slots, lasts_s)

    def _join(
        self, name: WorkerId, names: tuple[str, ...], slots: int, lasts_s: float | None
    ) -> None:
        ends_at = None if lasts_s is None else self.now + lasts_s
        where: dict[str, Any] = {"host": HOSTS[self.joined % len(HOSTS)]}
        where["ends_runs"] = self.joined % 4 > 0
        infos = [MODELS[each] for each in names]
        self.scheduler.worker_joined(
            name, infos, slots=slots, ends_at=ends_at, now=self.now, **where
        )
        self.workers[name] = ModelWorker(name, names, slots, slots, **where)

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def join_again(self, data: st.DataObject) -> None:
        worker = self._draw(data)
        self._lose(worker)
        self._join(worker.name, worker.models, worker.slots, None)

    @precondition(lambda self: self.workers)
    @rule(
        data=st.data(),
        how=st.sampled_from(("unknown", "unknown", "drained", "time limit", "reclaimed", "crash")),
        knows=st.sampled_from((None, 0, 0, 1, 2)),
    )
    def leave(self, data: st.DataObject, how: str, knows: int | None) -> None:
        """The report of running tasks may be missing, incomplete, or empty.

        It is empty if a run has just ended and its answer is lost.
        """
        worker = self._draw(data)
        begun = sorted(worker.begun())
        if how == "drained":
            self._say_goodbye(worker)
        self._lose(worker)
        self.scheduler.worker_left(
            worker.name,
            how,
            running=None if knows is None else begun[:knows],
            drained=how == "drained",
            cause=LossCause(how) if how in set(LossCause) else LossCause.UNKNOWN,
            now=self.now,
        )

    def _say_goodbye(self, worker: ModelWorker) -> None:
        """Answer delivered tasks that must not run twice before their worker leaves."""
        for task in list(worker.inbox):
            if _only_once(task):
                if task.id % 2:
                    self._ran(worker, task.id)
                    self.scheduler.finished(worker.name, task.id, result(), now=self.now)
                else:
                    worker.remove({task.id})
                    self.may_have_run.discard(task.id)

    def _lose(self, worker: ModelWorker) -> None:
        del self.workers[worker.name]
        self.late += [(worker.name, task.id) for task in worker.inbox]

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), slots=st.integers(0, 3), drains=st.booleans())
    def resize(self, data: st.DataObject, slots: int, drains: bool) -> None:
        """Offer so many slots, or, to drain, none but to calls of the sequences that are there."""
        worker = self._draw(data)
        worker.slots = 0 if drains else slots
        worker.most_slots = max(worker.most_slots, worker.slots)
        worker.asked = False  # the recall may have been lost with its connection
        last_slots = worker.most_slots if drains else 0
        self.scheduler.worker_resized(worker.name, worker.slots, last_slots)

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def stop_reading_or_go_on(self, data: st.DataObject) -> None:
        worker = self._draw(data)
        worker.full = not worker.full
        self.scheduler.worker_full(worker.name, worker.full)

    @precondition(lambda self: any(worker.inbox for worker in self.workers.values()))
    @rule(
        data=st.data(),
        run_time_s=st.sampled_from(SHORT_AND_LONG),
        fails=st.sampled_from((False, False, False, True)),
        rows=st.sampled_from((1, 3, 5, 5)),
    )
    def answer(self, data: st.DataObject, run_time_s: float, fails: bool, rows: int) -> None:
        """Answer any call that has begun, in any order."""
        worker = self._draw(data, lambda worker: worker.inbox)
        task = data.draw(st.sampled_from(sorted(worker.begun())))
        self.now += run_time_s
        self._answer(worker, task, run_time_s, rows, fails=fails)

    def _answer(
        self,
        worker: ModelWorker,
        task: TaskId,
        run_time_s: float,
        rows: int = 5,
        *,
        fails: bool = False,
    ) -> None:
        outcome = worker.outcome(task, run_time_s, rows, fails=fails)
        self._ran(worker, task)
        self.scheduler.finished(worker.name, task, outcome, now=self.now)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def answer_late(self, data: st.DataObject) -> None:
        """Answer from a worker that was given up; the call may wait, run elsewhere, or be done."""
        name, task = data.draw(st.sampled_from(self.late))
        self.late.remove((name, task))
        holder = self.workers.get(name)
        if holder is not None:  # it joined again and may have been sent the same task
            holder.remove({task})
        self.scheduler.finished(name, task, result(), now=self.now)

    @precondition(lambda self: any(worker.questions for worker in self.workers.values()))
    @rule(data=st.data(), keep=st.integers(0, 2))
    def hand_back(self, data: st.DataObject, keep: int) -> None:
        """Answer a recall late, when some of its tasks may have begun."""
        worker = self._draw(data, lambda worker: worker.questions)
        there = {task.id for task in worker.inbox} - worker.begun()
        back = [task for task in worker.questions.pop(0) if task in there][keep:]
        self._give_back(worker, back)

    @precondition(lambda self: any(worker.inbox for worker in self.workers.values()))
    @rule(data=st.data())
    def hand_back_unasked(self, data: st.DataObject) -> None:
        worker = self._draw(data, lambda worker: worker.inbox)
        back = {task.id for task in worker.inbox} - worker.begun()
        # It has not read these yet.
        back |= {task.id for task in worker.inbox if _only_once(task) and task.id % 2}
        self._give_back(worker, back)

    def _give_back(self, worker: ModelWorker, back: Collection[TaskId]) -> None:
        worker.remove(set(back))
        worker.asked = False
        self.may_have_run.difference_update(back)
        self.scheduler.recalled(worker.name, back, now=self.now)

    @precondition(lambda self: any(worker.inbox for worker in self.workers.values()))
    @rule(data=st.data())
    def go_missing(self, data: st.DataObject) -> None:
        worker = self._draw(data, lambda worker: worker.inbox)
        task = data.draw(st.sampled_from(worker.inbox)).id
        worker.remove({task})
        self.late.append((worker.name, task))
        self.scheduler.went_missing(worker.name, [task], now=self.now)

    def _ran(self, worker: ModelWorker, task_id: TaskId) -> None:
        """Let a worker run a call: of a sequence with the state that the call before it left."""
        (task,) = [each for each in worker.inbox if each.id == task_id]
        worker.remove({task_id})
        if (step := task.call.step) is None:
            return
        event("a call of a sequence runs" if step.start else "a later call of a sequence runs")
        before = worker.states.pop(step.id, None)
        if not step.start:
            assert before is not None, "its worker has no state"
            assert before < task_id, "it runs before an earlier call"
            calls = self.steps[step.id]
            between = calls[calls.index(before) + 1 : calls.index(task_id)]
            assert not between, "a call of its sequence was skipped"
        if not step.end:
            worker.states[step.id] = task_id

    def _draw(
        self, data: st.DataObject, which: Callable[[ModelWorker], object] = lambda worker: True
    ) -> ModelWorker:
        names = sorted(name for name, worker in self.workers.items() if which(worker))
        return self.workers[data.draw(st.sampled_from(names))]

    # Actions

    @rule()
    def act(self) -> None:
        for _ in range(100):
            actions = self.scheduler.actions(self.now)
            assert not self.scheduler.actions(self.now), "one look yields all actions"
            if not actions:
                wakeup = self.scheduler.wakeup()
                assert wakeup is None or wakeup > self.now, "all due actions are carried out"
                self._no_worker_idles_while_a_call_waits_for_it(wakeup)
                self._states_are_few()
                return
            for action in actions:
                if isinstance(action, Reply):
                    self._replied(action)
                elif isinstance(action, Send):
                    self._sent(action)
                elif isinstance(action, EndStream):
                    self._outrun(action)
                elif isinstance(action, EndSequence):
                    if action.worker in self.workers:  # it may have left since
                        self.workers[action.worker].states.pop(action.id, None)
                else:
                    assert isinstance(action, Recall)
                    worker = self.workers[action.worker]
                    assert not worker.asked, "one recall at a time"
                    worker.asked = True
                    if worker.slots == worker.most_slots:
                        assert not worker.begun() & set(action.tasks), (
                            "recalled tasks that have begun"
                        )
                    worker.questions.append(action.tasks)
        raise AssertionError("the scheduler never comes to rest")

    def _outrun(self, action: EndStream) -> None:
        """There are no streams here: another worker has answered. This one may run on."""
        assert action.task in self.copied
        assert action.task not in self.open

    def _replied(self, reply: Reply) -> None:
        task = reply.task
        if not _is_last(reply, task.id):
            return
        assert task.id in self.open, "exactly one reply to each call that was not cancelled"
        assert reply.queue_time_s >= 0
        self.open.remove(task.id)
        self.answered.add(task.id)
        error = reply.outcome
        if isinstance(error, WorkerLost):
            once = self.asked[task.id].startswith("once")
            losses = len(task.past.lost_on)
            crashed = bool(losses) and task.past.lost_on[-1].endswith("(crash)")
            assert once or losses == 3 or (crashed and losses == 2) or task.is_run, (
                "it may be retried"  # of a run, the dispatcher retries each row
            )
        elif isinstance(error, DeadlineExceeded):
            assert self.deadlines[task.id] <= self.now
        elif isinstance(error, Cancelled):
            assert task.call.step is not None
            assert not task.call.step.start, "a start needs nothing before it"
        elif isinstance(error, FarmError):
            assert isinstance(error, ModelFailed | TimeLimitExceeded)

    def _sent(self, send: Send) -> None:
        worker = self.workers[send.worker]
        goes_on = all(task.call.step and not task.call.step.start for task in send.tasks)
        assert worker.slots > 0 or goes_on, "a worker without slots gets nothing"
        questions = all(task.queue.needs_no_slot for task in send.tasks)
        assert questions or not worker.full, "nor does one that does not read"
        for task in send.tasks:
            assert task.id in self.open, "its caller has cancelled it"
            assert task.call.model in worker.models
            if task.past.copied:
                self._copied(task, worker)
            else:
                assert not any(task in w.inbox for w in self.workers.values()), "sent twice"
            if _only_once(task):
                assert task.id not in self.may_have_run, "it may have run before"
                self.may_have_run.add(task.id)
            if not task.past.copied:
                self.sent_at[task.id] = self.now
            lot = task.at(self.scheduler._workers[worker.name]).lot
            if lot not in [worker.lots[each.id] for each in worker.inbox]:
                self._leaves_the_reserve_free(task, worker)
            worker.inbox.append(task)
            worker.lots[task.id] = lot
            worker.rows[task.id] = task.rows
            lots = {worker.lots[each.id] for each in worker.inbox} - {None}
            if lot is not None:
                # One that drains finishes its sequences in the slots it had; nothing waits there.
                slots = worker.slots or worker.most_slots
                times = task.times
                run_s = times.of_rows(task.rows)
                prefetch = times.prefetch_for(run_s) if task.is_run else times.prefetch
                credit = slots * (1 + prefetch) if worker.slots else slots
                assert len(lots) <= credit <= slots * FULL, "above its credit"
                if any(lot is not None and lot.exclusive for lot in lots):
                    assert len(lots) <= slots, "it waits behind a long call"
        for lot in lots:
            rows = [task for task in worker.inbox if worker.lots[task.id] is lot]
            assert len(rows) <= rows[0].queue.max_batch
            if any(map(_only_once, rows)):
                assert len(lots) <= worker.most_slots, "it waits at a worker, or others behind it"
            assert len({task.call.model for task in rows}) == 1

    def _leaves_the_reserve_free(self, task: Task, worker: ModelWorker) -> None:
        """Call it before the worker holds a lot's first task."""
        if not worker.slots:
            return  # it drains, and finishes its sequences: its slots count for no reserve
        for name in self.scheduler.policies:
            if name in worker.models and self._is_long(task.queue, name):
                event("a long call runs beside a reserve")
                assert self._spare(name) > 0, "it takes a reserved slot"
                assert worker.free() > 0, "it waits at a worker"

    def _is_long(self, queue: Queue, name: str) -> bool:
        """Whether the calls of a queue leave the reserve of a model free."""
        if queue.needs_no_slot or queue.model.name == name or name not in self.scheduler._models:
            return False
        if not self.scheduler.policies[name].has_reserve:
            return False
        own_s = self.scheduler.queue(name, Operation.EVALUATE).run_times.mean
        return 0 < 10 * own_s < queue.run_times.mean

    def _spare(self, name: str) -> int:
        """Return how many more slots long calls may take of a model's workers."""
        workers = [w for w in self.workers.values() if name in w.models and w.slots]
        slots = sum(w.slots for w in workers)
        queues = {id(w.lots[t.id]): t.queue for w in workers for t in w.inbox if w.lots[t.id]}
        long = sum(self._is_long(queue, name) for queue in queues.values())
        return max(1, slots - self.scheduler.policies[name].reserved(slots)) - long

    def _copied(self, task: Task, worker: ModelWorker) -> None:
        """A copied task is sent to its second worker, or once more after both were lost."""
        there = [other for other in self.workers.values() if task in other.inbox]
        if not there:
            return
        (first,) = there
        event("a call is copied")
        assert task.id not in self.copied, "copied twice"
        self.copied.add(task.id)
        assert task.id in self.open, "its caller has cancelled it"
        assert first is not worker
        assert self.now - self.sent_at[task.id] >= 1.0, "it is not slow"
        assert task.call.model in ("plain", "batched"), "its model forbids copies"
        assert not task.past.lost_on, "it was lost before"
        assert worker.free() > 0, "its worker is not idle"
        assert worker.ends_runs, "its worker could not end the run"
        assert not worker.states, "its worker has to stay"
        served = [self.scheduler._models[name] for name in worker.models]
        assert not any(model.waiting for model in served), "another call waits"
        known = sum(kind.count for q in task.queue.model.by_operation.values() for kind in q.kinds)
        assert 20 * sum(1 for i in self.copied if self.asked[i] == task.call.model) <= known
        if first.host != worker.host:
            return
        workers = [w for w in self.workers.values() if task.call.model in w.models]
        assert len({w.host for w in workers if w.ends_runs}) == 1, "there is another host"

    # Invariants

    @invariant()
    def state_is_sound(self) -> None:
        check(self.scheduler)

    def _no_worker_idles_while_a_call_waits_for_it(self, due: float | None) -> None:
        for queues in self.scheduler._models.values():
            for queue in queues.waiting:
                asks = queue.operation is Operation.DESCRIBE
                head = queue.head()
                for worker in self.workers.values():
                    if queues.name not in worker.models:
                        continue
                    if not (worker.slots if asks else worker.free() > 0 and not worker.full):
                        continue
                    if head.call.step is not None and self._may_not_begin(head, worker):
                        continue
                    if queue.company and queue.lingers_until > self.now:
                        # After a batch of several calls, the next one waits a moment for more.
                        assert due is not None
                        assert due <= queue.lingers_until <= self.now + LONGEST_LINGER_S
                        continue
                    if queues.keeps_point and queue.operation is Operation.GRADIENT:
                        until = waits_until(queue.head())
                        if self.now < until:  # the worker that evaluated its point is busy
                            assert due is not None
                            assert due <= until
                            continue
                    if any(
                        self._is_long(queue, name) and self._spare(name) <= 0
                        for name in self.scheduler.policies
                        if name in worker.models
                    ):
                        event("a worker idles for a reserve")
                        continue
                    ends_at = self.scheduler._workers[worker.name].ends_at
                    slowest_s = max([kind.quantile(1.0) for kind in queue.kinds], default=0.0)
                    assert ends_at < self.now + 1.2 * slowest_s, (
                        f"{worker.name} idles while a call of {queues.name} waits"
                    )

    @invariant()
    def what_workers_have_is_in_flight(self) -> None:
        for queues in self.scheduler._models.values():
            for queue in queues.by_operation.values():
                rows: dict[TaskId, int] = {}
                for worker in self.workers.values():
                    for task in worker.inbox:
                        if task.queue is queue and task.phase is not OUTRUN:
                            left = 1 if task.id in worker.splits else worker.rows[task.id]
                            rows[task.id] = min(left, rows.get(task.id, left))
                assert queue.counts.in_flight - queue.counts.extra == sum(rows.values())

    def _may_not_begin(self, task: Task, worker: ModelWorker) -> bool:
        """Whether a call of a sequence has to wait although a worker idles."""
        assert task.sequence is not None
        there = self.scheduler._workers[worker.name].sequences
        if task.sequence.worker is not None:
            return task.sequence not in there
        return len(there) >= 2

    def _states_are_few(self) -> None:
        for worker in self.workers.values():
            known = self.scheduler._workers[worker.name].sequences
            assert len(known) <= 2, "a worker has more sequences than its places"
            assert set(worker.states) <= {live.id for live in known}, "a state is left behind"

    def teardown(self) -> None:
        """Check that every call is answered once workers are reliable."""
        for name in list(self.workers):
            worker = self.workers.pop(name)
            self._say_goodbye(worker)
            self.scheduler.worker_left(worker.name, "end", drained=True, now=self.now)
        self._join(WorkerId("last"), tuple(MODELS), 2, None)
        self.act()
        for _ in range(1000):
            self.now += 1.0
            for worker in self.workers.values():
                for question in worker.questions:
                    there = {task.id for task in worker.inbox} - worker.begun()
                    self._give_back(worker, [task for task in question if task in there])
                worker.questions.clear()
                for task in sorted(worker.begun()):
                    self._answer(worker, task, 0.1)
            self.act()
            if not self.open and not len(self.scheduler):
                break
        self.now += 100.0
        self.act()
        assert not any(worker.states for worker in self.workers.values()), "a state is left"
        assert not self.open, "everything is answered"
        assert len(self.scheduler) == 0, "no state is left"
        assert set(self.asked) == self.answered | self.cancelled
        assert not self.answered & self.cancelled
        check(self.scheduler)
        for client in self.scheduler._clients.values():
            assert client.queued == 0
        for queues in self.scheduler._models.values():
            assert all(account.held == 0 for account in queues.accounts)
            assert all(account.usage.weight == 1 for account in queues.accounts)


def _is_last(action: Action, task: TaskId) -> bool:
    """Whether it is the reply to a task, not only to the first rows of a run."""
    if not isinstance(action, Reply) or action.task.id != task:
        return False
    return not (isinstance(action.outcome, Result) and action.outcome.more)


def _only_once(task: Task) -> bool:
    return task.call.model.startswith("once") and not task.queue.needs_no_slot


TestHistories = pytest.mark.timeout(300)(Histories.TestCase)  # minutes on a busy machine
TestHistories.settings = settings(
    max_examples=2 * settings().max_examples,
    stateful_step_count=60,
    suppress_health_check=[HealthCheck.too_slow],
)
