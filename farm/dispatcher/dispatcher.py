"""The dispatcher: the scheduler with a real clock and transports, which runs submitted calls.

It has no policy of its own: it reports facts to the scheduler, carries out its actions and sets one
timer. Everything here runs on one asyncio event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from farm.call import EMPTY_CONFIG, NO_HINTS, Call, Hints, ModelInfo, Operation, Result, WorkerInfo
from farm.dispatcher.cancelling import Cancelling
from farm.dispatcher.changes import Changes
from farm.dispatcher.descriptions import Descriptions
from farm.dispatcher.events import Departure, Events
from farm.dispatcher.failing import tell_failed, tell_refused
from farm.dispatcher.feeder import Feeder, Part
from farm.dispatcher.first_worker import FirstWorker
from farm.dispatcher.flush_policy import FlushPolicy
from farm.dispatcher.gathering import CallGathering
from farm.dispatcher.listeners import Listeners
from farm.dispatcher.measures import Measures
from farm.dispatcher.outcome import outcome_of
from farm.dispatcher.partition import Rows, WholeCall
from farm.dispatcher.questions import Questions
from farm.dispatcher.reuse import Memory, Reuse
from farm.dispatcher.statistics import ModelStatistics, Statistics, ended_calls, fails_of
from farm.dispatcher.timer import Timer
from farm.dispatcher.transport import Transport, carry_out
from farm.dispatcher.value_and_gradient import Pairs, runs_as
from farm.errors import FarmError, InvalidInput, LossCause, Overloaded, Unavailable
from farm.model import as_declared, check_call
from farm.scheduler.actions import Action, Outcome, Reply, Send
from farm.scheduler.core import Scheduler
from farm.scheduler.state import TaskId, WorkerId

log = logging.getLogger(__name__)

WORKERS_GRACE_S = 5.0
"""Time in seconds that idle workers get to leave when the dispatcher closes."""

OnDone = Callable[[Outcome], None]


class Dispatcher(Listeners):
    """Accepts calls, runs them on workers and reports outcomes; `farm.scheduler` has the policy."""

    def __init__(
        self, transports: Sequence[Transport], *, memory: Memory | None = None, **limits: Any
    ) -> None:
        """memory: keeps evaluations, and may answer calls. limits: as for Scheduler, by name."""
        super().__init__()
        # Random first id: a late answer to a task of an earlier farm process matches no task.
        self._scheduler = Scheduler(first_task=secrets.randbits(30) << 32, **limits)
        self.policies, self.view = self._scheduler.policies, self._scheduler.view
        self._transports = list(transports)
        self._carrier: dict[WorkerId, Transport] = {}
        self._workers: dict[WorkerId, WorkerInfo] = {}
        self._descriptions = Descriptions()
        self._models = self._descriptions.models
        self._waiting: dict[TaskId, OnDone] = {}
        self._feeder = Feeder(self._start_part, self.cancel, self._act_soon)
        self._timer = Timer(self._act)
        self.calls_taken = 0
        self._flush_policy = FlushPolicy(self)
        self._acts_soon = self.closed = False
        self._changes = Changes()  # a worker joined or left, or a call ended while closing
        self._events = Events()
        self.note, self.drop_rows = self._events.note, self._feeder.drop
        self.questions = Questions()
        self.offer = self.questions.offer
        self.measures, self._statistics = Measures(), Statistics()
        self.chains = self._statistics.chains
        self._pairs = Pairs(self._start, self.cancel, self._feeder.new_id, self._statistics)
        self._memory = memory
        self._reuse: Reuse | None = None
        if memory is not None and memory.reuses:
            run = self._begin, self._drop, self._start_parts, self._feeder.new_id, self._act_soon
            self._reuse = Reuse(memory, *run, self._statistics, time.monotonic)
            self._scheduler.splits_runs = False  # those who wait for rows expect one answer
        by = self._feeder, self._scheduler, self._waiting, self._start, self.cancel
        self._gathering = CallGathering(self, *by, reuses=self._reuse is not None)
        own = self._waiting, self.cancel, self._feeder, lambda: self._reuse, self.note
        self.offer("cancel", Cancelling(self.view, *own).answer, changes=True)
        self.first_worker = FirstWorker(self._models, self._waiting, self._fail, self.on_failed)
        self.on_joined += [self.first_worker.joined, self._events.joined, self._feeder.joined]
        self.on_left += [self.first_worker.left, self._events.left]
        if memory is not None:
            self.on_joined.append(memory.joined)
            self.on_left.append(memory.left)
        self._started = time.time()

    # For callers

    async def submit(self, call: Call, hints: Hints = NO_HINTS) -> Result:
        """Run a call and return its result; cancelling the wait cancels it. Raises FarmError."""
        return await outcome_of(partial(self.start_call, call, hints), self.cancel)

    def start_call(self, call: Call, hints: Hints, on_done: OnDone) -> TaskId:
        """Start a call without waiting; `on_done` receives its outcome later, exactly once.

        For a stream it receives every answer, each marked as having more to follow, and then the
        end. A call with more rows than the model's max_batch runs in parallel parts.
        Raises FarmError at once, and never calls `on_done`, if the call cannot be accepted: unknown
        model, full queue, or an input that does not fit a known description.
        """
        try:
            return self._accept(call, hints, on_done)
        except (Overloaded, Unavailable) as error:
            if not self.closed:
                tell_refused(self.on_failed, call, hints, error)
            raise

    def _accept(self, call: Call, hints: Hints, on_done: OnDone) -> TaskId:
        most, info = self._served(call.model).max_batch, None
        if call.operation is not Operation.DESCRIBE:
            info = self.description(call.model, call.config)
            if info is not None:
                check_call(call, info)
        if hints.deadline_s is not None and math.isnan(hints.deadline_s):
            raise InvalidInput("the deadline is not a number of seconds")
        if call.rows is not None and call.rows > most and call.operation is Operation.EVALUATE:
            return self._start_parts(call, hints, on_done)
        if most > 1 and info is not None:
            call = as_declared(call, info)
        if info is not None and (row := self._gathering.add(call, hints, info, on_done)):
            self.calls_taken += 1
            self._act_soon()
            return row
        return self._start(call, hints, on_done, time.monotonic())

    def _served(self, model: str) -> ModelInfo:
        if self.closed:
            raise Unavailable("the farm is shutting down")
        if (info := self._models.get(model)) is None:
            raise self.first_worker.not_served(model)
        return info

    def start_rows(self, rows: Rows, model: str, operation: Operation, hints: Hints) -> TaskId:
        """Start many rows, each of which has its own outcome, reported to `rows`.

        Raises FarmError at once if the first row cannot be accepted.
        """
        queue = self._scheduler.queue(model, runs_as(operation, self._served(model))[-1])
        return self._feeder.begin(rows, queue, hints, time.monotonic())

    def more_rows(self, rows: TaskId) -> None:
        """Report that more rows of a `start_rows` request may be open now."""
        self._feeder.more(rows)

    def _start_parts(self, call: Call, hints: Hints, on_done: OnDone) -> TaskId:
        began = time.monotonic()

        def done(outcome: Outcome) -> None:
            ended = time.monotonic()
            self._statistics.add_whole(call, outcome, hints, began, ended, time.time())
            on_done(outcome)

        info = self.description(call.model, call.config)
        queue = self._scheduler.queue(call.model, call.operation)
        return self._feeder.begin(WholeCall(call, info, done), queue, hints, began)

    def _start_part(self, call: Call, part: Part) -> TaskId:
        return self._start(call, part.parts.hints, part, part.parts.since, part.span.lost_on)

    def _start(
        self, call: Call, hints: Hints, on_done: OnDone, now: float, lost_on: tuple[str, ...] = ()
    ) -> TaskId:
        if call.operation is Operation.VALUE_AND_GRADIENT:
            info = self.description(call.model, call.config) or self._models[call.model]
            if len(runs_as(call.operation, info)) > 1:
                return self._pairs.start(call, hints, on_done, now)
        self.calls_taken += 1
        start = self._begin if self._reuse is None else self._reuse.start
        return start(call, hints, on_done, now, lost_on)

    def _begin(
        self, call: Call, hints: Hints, on_done: OnDone, now: float, lost_on: tuple[str, ...]
    ) -> TaskId:
        task_id = self._scheduler.submit(
            hints.named(call) if hints.call_id else call,
            client=hints.client,
            chain=hints.chain,
            priority=hints.priority,
            deadline=None if hints.deadline_s is None else now + hints.deadline_s,
            start_by=None if hints.start_within_s is None else now + hints.start_within_s,
            lost_on=lost_on,
            gathered=isinstance(on_done, Part) and on_done.parts.are_callers,
            now=now,
        )
        self._waiting[task_id] = on_done
        if hints.shown_as is not None:
            self._statistics.chains.opened(task_id, call, hints.shown_as, now)
        self.first_worker.call_begins(task_id, call.model, hints, now)
        self._act_soon()
        return task_id

    def cancel(self, task_id: TaskId) -> None:
        """Cancel a call: its `on_done` will not be called."""
        if self._reuse is not None and self._reuse.cancel(task_id):
            return
        if self._drop(task_id) or task_id >= 0:
            return
        if not (self._pairs.cancel(task_id) or self._gathering.cancel(task_id)):
            self._feeder.cancel(task_id)

    def _drop(self, task_id: TaskId) -> bool:
        """Cancel a task in the scheduler; False if it has its outcome, or is none."""
        if self._waiting.pop(task_id, None) is None:
            return False
        self._scheduler.cancel(task_id)
        self._statistics.chains.cancelled(task_id)
        self._act_soon()
        self._changes.tell()
        return True

    def _fail(self, task_id: TaskId, error: FarmError) -> None:
        self._scheduler.fail(task_id, error, now=time.monotonic())
        self._act_soon()

    def models(self) -> Mapping[str, ModelInfo]:
        """Return the served models with their descriptions for the empty config."""
        return self._models

    def statistics(self) -> Mapping[str, ModelStatistics]:
        """Return call counts and times of each model that was called."""
        return self._statistics.models

    async def describe(self, model: str, config: str = EMPTY_CONFIG) -> ModelInfo:
        """Return the model's description for a config; a cached one needs no worker.

        Raises ModelNotFound, and the errors of the model's own `describe`.
        """
        known = self.description(model, config)
        if known is not None:
            return known
        result = await self.submit(Call(model, Operation.DESCRIBE, config=config))
        assert result.info is not None, "a worker answers describe with an info"
        return result.info

    def description(self, model: str, config: str = EMPTY_CONFIG) -> ModelInfo | None:
        """Return the model's description for a config, if it is known."""
        return self._descriptions.find(model, config)

    def is_ready(self, model: str) -> bool:
        """Whether a worker has the model, or workers that have it may join."""
        return model in self._models and self.first_worker.may_have(model)

    def calls_open(self) -> int:
        """Return how many calls, or tasks, have no outcome: many of one may be one of the other."""
        return max(len(self._waiting), len(self._gathering))

    # For transports: facts

    def worker_joined(self, info: WorkerInfo, transport: Transport) -> None:
        """Report that a worker joined; a known name means that the worker restarted."""
        worker, now = WorkerId(info.name), time.monotonic()
        ends_at = None if info.ends_at is None else info.ends_at - time.time() + now
        for model in info.models:
            self._descriptions.know(model, worker)
        self._carrier[worker] = transport
        self._scheduler.worker_joined(
            worker, info.models, slots=info.slots, ends_at=ends_at, host=info.host, now=now
        )
        before, self._workers[worker] = self._workers.get(worker), info
        for tell in self.on_joined:
            tell(info, before)
        self._changes.tell()
        self._act_soon()

    def worker_left(
        self,
        worker: WorkerId,
        reason: str,
        *,
        running: Iterable[TaskId] | None = None,
        row: int | None = None,
        drained: bool = False,
        cause: LossCause = LossCause.UNKNOWN,
        detail: str = "",
    ) -> None:
        """Report that a worker left. reason: in words; a second report of a loss is ignored."""
        if (info := self._workers.pop(worker, None)) is None:
            return
        self._carrier.pop(worker, None)
        self._scheduler.worker_left(
            worker,
            reason,
            running=running,
            row=row,
            drained=drained,
            cause=cause,
            detail=detail,
            now=time.monotonic(),
        )
        departure = Departure(reason, cause, detail, drained)
        for tell in self.on_left:
            tell(info, departure)
        self._changes.tell()
        self._act_soon()

    def worker_resized(self, worker: WorkerId, slots: int, last_slots: int = 0) -> None:
        """Report that a worker now offers this many slots; last_slots: as for the scheduler."""
        self._scheduler.worker_resized(worker, slots, last_slots)
        self._act_soon()

    def worker_full(self, worker: WorkerId, full: bool) -> None:
        """Report back-pressure: a full worker has many unread calls and gets no more for now."""
        self._scheduler.worker_full(worker, full)
        self._act_soon()

    def finished(self, worker: WorkerId, answers: Iterable[tuple[TaskId, Outcome]]) -> None:
        """Report answers of a worker; those to finished or unknown tasks are ignored."""
        now = time.monotonic()
        for task_id, outcome in answers:
            self._scheduler.finished(worker, task_id, outcome, now=now)
        self._act_soon()

    def recalled(self, worker: WorkerId, tasks: Iterable[TaskId]) -> None:
        """Report that a worker returned tasks that it has not started."""
        self._scheduler.recalled(worker, tasks, now=time.monotonic())
        self._act_soon()

    def went_missing(
        self, worker: WorkerId, tasks: Iterable[TaskId], reason: str = "lost on the way"
    ) -> None:
        """Report that tasks or their answers were lost in transit, but not their worker."""
        tasks = list(tasks)
        self.note("missing", worker, f"{len(tasks)} calls or their answers: {reason}")
        self._scheduler.went_missing(worker, tasks, reason, now=time.monotonic())
        self._act_soon()

    def expect(self, models: Iterable[ModelInfo]) -> None:
        """Accept calls of these models before a worker has them, as workers will join."""
        new = [model for model in models if model.name not in self._models]
        self._models.update((model.name, model) for model in new)
        self._scheduler.expect(new)
        self.first_worker.models_known()

    # Carrying out actions

    def act_on(self, tell: Callable[[], None]) -> None:
        """Run `tell`, which reports facts, and carry out the resulting actions at once.

        Facts reported outside `act_on` are acted on in the next iteration of the event loop.
        """
        self._acts_soon = True
        try:
            tell()
        finally:
            self._act()

    def _act_soon(self) -> None:
        # Calls that arrive in one iteration of the event loop are sent together in one message.
        if not self._acts_soon:
            self._acts_soon = True
            asyncio.get_running_loop().call_soon(self._act_in_time)

    def _act_in_time(self) -> None:
        """Act now, or an iteration later if more calls may arrive and no worker is idle."""
        if not self._acts_soon:
            return  # already done by another call of `_act`
        if self._scheduler.has_idle() or self._flush_policy.is_due():
            self._act()
        else:
            asyncio.get_running_loop().call_soon(self._act_in_time)

    def _act(self) -> None:
        self._acts_soon = True  # no new callback: parts fed here are acted on below
        if self._gathering.has_new:
            self._gathering.start_all()
        more_to_feed, self._acts_soon = self._feeder.feed() or self._gathering.has_new, False
        if self._reuse is not None:
            self._reuse.answer()
        while actions := self._scheduler.actions(now := time.monotonic()):
            self._carry_out(actions, now)
            if not self._acts_soon:  # no fact was reported meanwhile
                break
        if self.closed:
            self._changes.tell()
        for callback in self._after_acting:
            callback()
        if more_to_feed:
            self._act_soon()
        self._timer.set(self._scheduler.wakeup())

    def _carry_out(self, actions: Iterable[Action], now: float) -> None:
        replies: list[Reply] = []  # last, so that no worker is idle while answers are written
        for action in actions:
            if isinstance(action, Reply):
                replies.append(action)
            elif (carrier := self._carrier.get(action.worker)) is None:
                continue  # the worker was lost meanwhile; its tasks are requeued
            elif isinstance(action, Send):
                carrier.send(action.worker, [(task.id, task.call) for task in action.tasks])
            else:
                carry_out(carrier, action)
        if replies and self._memory is not None:
            self._memory.keep(replies)
        for reply in replies:
            self._reply(reply, now)

    def _reply(self, reply: Reply, now: float) -> None:
        task, outcome = reply.task, reply.outcome
        on_done = self._waiting.get(task.id)
        if isinstance(outcome, Result):
            if outcome.info is not None and task.call.operation is Operation.DESCRIBE:
                self._descriptions.keep(task.call.model, task.call.config, outcome.info)
            outcome = reply.result(outcome)
            if outcome.more and not outcome.row_times_s:
                if on_done is not None:
                    on_done(outcome)
                return
        if not (isinstance(outcome, Result) and outcome.more):  # else a row of the run goes on
            self._waiting.pop(task.id, None)
        calls = ended_calls(on_done, task.rows, outcome, fails := fails_of(on_done, outcome))
        for tell in self.on_answered:
            tell(task, outcome, now)
        tell_failed(self.on_failed, reply, fails)
        if on_done is not None:  # before the statistics, which a lone caller need not wait for
            on_done(outcome)
        self.measures.add(task, outcome, fails, now)
        self._statistics.add_answer(task, outcome, calls, now, time.time())
        for tell in self.on_recorded:
            tell(task, outcome, now)

    # Start and shutdown

    def start(self) -> None:
        """Start the transports on the running event loop."""
        for transport in self._transports:
            transport.start(self)

    async def wait_for_workers(self, count: int, *, timeout_s: float) -> None:
        """Wait until `count` workers have joined. Raises Unavailable after `timeout_s`."""
        if not await self._changes.until(lambda: len(self._workers) >= count, timeout_s):
            there = len(self._workers)
            raise Unavailable(f"{there} of {count} workers joined within {timeout_s:g} s")

    async def close(self, *, grace_s: float = 30.0) -> None:
        """Shut down: refuse new calls, let open calls finish, stop workers, close transports.

        Calls that have not finished after `grace_s` seconds are answered with Unavailable.
        """
        self.closed = True
        await self._changes.until(
            lambda: not (self.calls_open() or self._feeder or self._reuse), grace_s
        )
        self.give_up()
        self._scheduler.end_sequences()
        self._act()
        for transport in self._transports:
            transport.stop_workers()
        in_vain, grace_s = self._scheduler.runs_in_vain, min(grace_s, WORKERS_GRACE_S)
        await self._changes.until(lambda: all(map(in_vain, self._workers)), grace_s)
        self._carrier.clear()
        for transport in self._transports:
            await transport.close()
        self._timer.cancel()

    def give_up(self) -> None:
        """Refuse new calls, and answer the open ones with Unavailable now."""
        self.closed = True
        error = Unavailable("the farm shut down before the call finished")
        self._gathering.close(error)
        self._feeder.fail_all(error)
        self.first_worker.close()
        for task_id, on_done in list(self._waiting.items()):
            self._drop(task_id)
            on_done(error)
        self._changes.tell()

    def snapshot(self) -> dict[str, Any]:
        """Return workers, queues, rates, percentiles and recent events as JSON data."""
        now = time.monotonic()
        state = self._scheduler.snapshot(now)
        for row in state["workers"]:
            row.update(self._workers[WorkerId(row["name"])].shown())
        for complete in self.on_shown:
            complete(state["workers"], now)
        return {
            "models": sorted(self._models),
            "requests_for_models": self.first_worker.requests,
            "up_s": time.time() - self._started,
            **state,
            **self.measures.snapshot(now),
            **self._statistics.snapshot(self.view, now),
            **{name: give() for name, give in self.parts.items()},
            "events": self._events.snapshot(),
        }
