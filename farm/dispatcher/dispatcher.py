"""The dispatcher: the scheduler with a real clock and transports, which runs submitted calls.

It has no policy of its own: it reports facts to the scheduler, carries out its actions and sets one
timer. Everything here runs on one asyncio event loop.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from operator import attrgetter
from typing import Any, Protocol, cast

from farm.call import EMPTY_CONFIG, NO_HINTS, Call, Hints, ModelInfo, Operation, Result, WorkerInfo
from farm.dispatcher.call_statistics import Chains, Measures, ModelStatistics, Statistics
from farm.dispatcher.descriptions import Descriptions
from farm.dispatcher.events import Departure, Listeners
from farm.dispatcher.first_worker import Expectation
from farm.dispatcher.questions import Questions
from farm.dispatcher.reuse import Memory
from farm.dispatcher.stage import StageContext, tell
from farm.dispatcher.stages import Stages
from farm.dispatcher.turns import Changes, LoopTurns
from farm.errors import FarmError, LossCause, Overloaded, Unavailable
from farm.scheduler.actions import Action, EndSequence, EndStream, Outcome, Recall, Reply, Send
from farm.scheduler.core import Scheduler
from farm.scheduler.state import TaskId, WorkerId
from farm.sequences import SequenceId
from farm.wire.usage import ENDS_RUNS
from farm.wording import counted

_ID_AND_CALL = attrgetter("id", "call")
WORKERS_GRACE_S = 5.0
"""Time in seconds that idle workers get to leave when the dispatcher closes."""

MOST_WAITING_BYTES = 256 << 20
"""Most bytes of results that the client has not read; beyond, the stream ends with an error."""

ANSWER_BYTES = 1000
"""Assumed size of a result without its arrays."""


class Transport(Protocol):
    """A connection to workers; it reports facts by calling the dispatcher's methods."""

    def start(self, dispatcher: Dispatcher) -> None:
        """Start on the running event loop."""

    def send(self, worker: WorkerId, tasks: Sequence[tuple[TaskId, Call]]) -> None:
        """Send tasks to a worker; an unreachable worker is reported by `worker_left`."""

    def recall(self, worker: WorkerId, tasks: Sequence[TaskId]) -> None:
        """Recall tasks from a worker, which answers with `recalled`."""

    def end_stream(self, worker: WorkerId, task: TaskId) -> None:
        """Tell a worker that no answer to a task is needed: a stream ends, if possible."""

    def end_sequence(self, worker: WorkerId, model: str, sequence: SequenceId) -> None:
        """Tell a worker to drop the state of a sequence that has ended."""

    def stop_workers(self) -> None:
        """Ask every worker to drain and exit."""

    async def close(self) -> None:
        """Release all resources."""


class Dispatcher(Listeners):
    """Accepts calls, runs them on workers and reports outcomes; `farm.scheduler` has the policy."""

    def __init__(
        self,
        transports: Sequence[Transport],
        *,
        memory: Memory | None = None,
        expected: Expectation | None = None,
        first_worker_s: float = math.inf,
        **limits: Any,
    ) -> None:
        """memory: keeps evaluations, and may answer calls. limits: as for Scheduler, by name.

        expected: the workers that may join; first_worker_s: how long a call waits for the first.
        """
        super().__init__()
        # Random first id: a late answer to a task of an earlier farm process matches no task.
        first_task = secrets.randbits(30) << 32
        # Those who wait for rows of a run that they reuse expect one answer.
        splits_runs = memory is None or not memory.reuses
        self._scheduler = Scheduler(first_task=first_task, splits_runs=splits_runs, **limits)
        self.view = self._scheduler.view
        self._transports = list(transports)
        self._carrier: dict[WorkerId, Transport] = {}
        self._workers: dict[WorkerId, WorkerInfo] = {}
        self._descriptions = Descriptions()
        self.description = self._descriptions.find
        self._started = time.time()
        self._changes = Changes()  # a worker joined or left, or a call ended while closing
        self.questions = Questions()
        self.measures, self._statistics = Measures(self.ended), Statistics(self.ended)
        self._memory = memory
        self.turns = LoopTurns(self._scheduler, self)
        context = StageContext(
            self._scheduler,
            self.turns,
            self._descriptions,
            self._statistics.chains,
            self,
            cast(Iterator[TaskId], count(-1, -1)),
        )
        self.stages = Stages(context, memory, expected, first_worker_s)
        self.questions.offer("cancel", self.stages.cancel_waiting, changes=True)
        self.start_call, self.start_rows = self.stages.start_call, self.stages.start_rows
        self.feeder, self.cancel = self.stages.feeder, self.stages.cancel
        self.first_worker = self.stages.tasks.first_worker
        self.on_joined.append(self.first_worker.joined)
        self.on_left.append(self.first_worker.left)
        if memory is not None:
            self.on_joined.append(memory.joined)
            self.on_left.append(memory.left)

    # For callers

    async def submit(self, call: Call, hints: Hints = NO_HINTS) -> Result:
        """Run a call and return its result; cancelling the wait cancels it. Raises FarmError."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def done(outcome: Outcome) -> None:
            if future.done():
                return
            if isinstance(outcome, FarmError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        task_id = self.start_call(call, hints, done)
        try:
            return await future
        except asyncio.CancelledError:
            self.cancel(task_id)
            raise

    def models(self) -> Mapping[str, ModelInfo]:
        """Return the served models with their descriptions for the empty config."""
        return self._descriptions.models

    @property
    def chains(self) -> Chains:
        """The counts and times of each chain."""
        return self._statistics.chains

    def statistics(self) -> Mapping[str, ModelStatistics]:
        """Return call counts and times of each model that was called."""
        self.ended.fold()
        return self._statistics.models

    async def describe(
        self, model: str, config: str = EMPTY_CONFIG, hints: Hints = NO_HINTS
    ) -> ModelInfo:
        """Return the model's description for a config; a cached one needs no worker.

        Raises ModelNotFound, and the errors of the model's own `describe`.
        """
        known = self.description(model, config)
        if known is not None:
            return known
        result = await self.submit(Call(model, Operation.DESCRIBE, config=config), hints)
        assert result.info is not None, "a worker answers describe with an info"
        return result.info

    def is_ready(self, model: str) -> bool:
        """Whether a worker has the model, or workers that have it may join."""
        return model in self._descriptions.models and self.first_worker.may_have(model)

    # For transports: facts

    def worker_joined(self, info: WorkerInfo, transport: Transport) -> None:
        """Report that a worker joined; a known name means that the worker restarted."""
        worker, now = WorkerId(info.name), time.monotonic()
        ends_at = None if info.ends_at is None else info.ends_at - time.time() + now
        for model in info.models:
            self._descriptions.know(model, worker)
        self._carrier[worker] = transport
        self._scheduler.worker_joined(
            worker,
            info.models,
            slots=info.slots,
            ends_at=ends_at,
            host=info.host,
            ends_runs=ENDS_RUNS in info.labels,
            now=now,
        )
        before, self._workers[worker] = self._workers.get(worker), info
        self.note("joined", worker, ", ".join(model.name for model in info.models))
        for hear in self.on_joined:
            hear(info, before)
        self._changes.tell()
        self.turns.soon()

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
        self.note("left" if departure.in_order else "lost", worker, reason)
        for hear in self.on_left:
            hear(info, departure)
        self._changes.tell()
        self.turns.soon()

    def worker_resized(self, worker: WorkerId, slots: int, last_slots: int = 0) -> None:
        """Report that a worker now offers this many slots; last_slots: as for the scheduler."""
        self._scheduler.worker_resized(worker, slots, last_slots)
        self.turns.soon()

    def worker_full(self, worker: WorkerId, full: bool) -> None:
        """Report back-pressure: a full worker has many unread calls and gets no more for now."""
        self._scheduler.worker_full(worker, full)
        self.turns.soon()

    def finished(self, worker: WorkerId, answers: Iterable[tuple[TaskId, Outcome]]) -> None:
        """Report answers of a worker; those to finished or unknown tasks are ignored."""
        now = time.monotonic()
        for task_id, outcome in answers:
            self._scheduler.finished(worker, task_id, outcome, now=now)
        if not self.turns.acts_soon:
            self.turns.soon()

    def recalled(self, worker: WorkerId, tasks: Iterable[TaskId]) -> None:
        """Report that a worker returned tasks that it has not started."""
        self._scheduler.recalled(worker, tasks, now=time.monotonic())
        self.turns.soon()

    def went_missing(
        self, worker: WorkerId, tasks: Iterable[TaskId], reason: str = "lost on the way"
    ) -> None:
        """Report that tasks or their answers were lost in transit, but not their worker."""
        tasks = list(tasks)
        self.note("missing", worker, f"{counted(len(tasks), 'call')} or the answers: {reason}")
        self._scheduler.went_missing(worker, tasks, reason, now=time.monotonic())
        self.turns.soon()

    def expect(self, models: Iterable[ModelInfo]) -> None:
        """Accept calls of these models before a worker has them, as workers will join."""
        new = [model for model in models if model.name not in self._descriptions.models]
        self._descriptions.models.update((model.name, model) for model in new)
        self._scheduler.expect(new)
        self.first_worker.models_known()

    # Carrying out actions

    def carry_out(self, actions: Iterable[Action], now: float) -> None:
        """Send calls to workers, and answers to callers."""
        replies: list[Reply] = []  # last, so that no worker is idle while answers are written
        for action in actions:
            match action:
                case Reply():
                    replies.append(action)
                    continue
            if (carrier := self._carrier.get(action.worker)) is None:
                continue  # the worker was lost meanwhile; its tasks are requeued
            match action:
                case Send(worker, tasks):
                    for task in tasks if self.beginning else ():
                        self.beginning.pop(task.id, int)()
                    carrier.send(worker, list(map(_ID_AND_CALL, tasks)))
                case Recall():
                    carrier.recall(action.worker, action.tasks)
                case EndStream():
                    carrier.end_stream(action.worker, action.task)
                case EndSequence():
                    carrier.end_sequence(action.worker, action.model, action.id)
        if replies and self._memory is not None:
            self._memory.keep(replies)
        for reply in replies:
            self._reply(reply, now)

    def _reply(self, reply: Reply, now: float) -> None:
        task, outcome, waiting = reply.task, reply.outcome, self.stages.tasks.open
        is_last = True
        if isinstance(outcome, Result):
            if outcome.info is not None and task.call.operation is Operation.DESCRIBE:
                self._descriptions.keep(task.call.model, task.call.config, outcome.info)
            outcome = reply.result(outcome)
            is_last = not outcome.more
            if outcome.more and not outcome.row_times_s:  # a stream goes on
                if (on_done := waiting.get(task.id)) is not None:
                    on_done(outcome)
                return
        # If it is not the last outcome, a row of the run goes on.
        on_done = waiting.pop(task.id, None) if is_last else waiting.get(task.id)
        for hear in self.on_answered:
            hear(task, outcome, now)
        calls, fails = tell(on_done, outcome, task.rows)
        self.ended.answered(reply, outcome, calls, fails, now)

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
        self.stages.close()
        self.turns.after_acting(self._changes.tell)
        await self._changes.until(self.stages.are_over, grace_s)
        self.give_up()
        self._scheduler.end_sequences()
        self.turns.act()
        for transport in self._transports:
            transport.stop_workers()
        in_vain, grace_s = self._scheduler.runs_in_vain, min(grace_s, WORKERS_GRACE_S)
        await self._changes.until(lambda: all(map(in_vain, self._workers)), grace_s)
        self._carrier.clear()
        for transport in self._transports:
            await transport.close()
        self.turns.end()

    def give_up(self) -> None:
        """Refuse new calls, and answer the open ones with Unavailable now."""
        self.stages.close()
        self.stages.fail_all(Unavailable("the farm shut down before the call finished"))
        self._changes.tell()

    def snapshot(self) -> dict[str, Any]:
        """Return workers, queues, rates, percentiles and recent events as JSON data."""
        now = time.monotonic()
        self.ended.fold()
        state = self.view.snapshot(now)
        for row in state["workers"]:
            row.update(self._workers[WorkerId(row["name"])].shown())
        for complete in self.on_shown:
            complete(state["workers"], now)
        return {
            "models": sorted(self._descriptions.models),
            "requests_for_models": self.first_worker.requests,
            "awaited": self.first_worker.waits_for(),
            "up_s": time.time() - self._started,
            **state,
            **self.measures.snapshot(now),
            "chains": self.chains.snapshot(self.view.sent(), now),
            "clients": self._statistics.clients.snapshot(self.view.clients(now), now),
            **{name: give() for name, give in self.parts.items()},
            "events": list(self.events),
        }


class ResultStream:
    """Iterates over the results of a call: many of a streaming call, one of any other.

    Iterating raises the FarmError that ends the stream. end: the last result, which for a streaming
    call has times but no outputs; None before the end. Always `close` a stream: this cancels a call
    that is still running.
    """

    def __init__(self, backend: Dispatcher, call: Call, hints: Hints) -> None:
        """Start the call. Raises FarmError if it cannot be accepted."""
        self.end: Result | None = None
        self._backend = backend
        self._streams = call.operation is Operation.STREAM
        self._came: asyncio.Queue[Result | FarmError] = asyncio.Queue()
        self._waiting_bytes = 0
        self._over = False
        self._task_id = backend.start_call(call, hints, self._take)

    def _take(self, outcome: Result | FarmError) -> None:
        self._waiting_bytes += bytes_of(outcome)
        if self._waiting_bytes > MOST_WAITING_BYTES and self._came.qsize():
            self._backend.cancel(self._task_id)
            outcome = Overloaded("the model answers faster than the client reads; ask for less")
        self._came.put_nowait(outcome)

    def __aiter__(self) -> ResultStream:
        return self

    async def __anext__(self) -> Result:
        if self._over:
            raise StopAsyncIteration
        outcome = await self._came.get()
        self._waiting_bytes -= bytes_of(outcome)
        self._over = isinstance(outcome, FarmError) or not outcome.more
        if isinstance(outcome, FarmError):
            raise outcome
        if self._over:
            self.end = outcome
            if self._streams:
                raise StopAsyncIteration
        return outcome

    def close(self) -> None:
        """Cancel the call if it has not ended."""
        if not self._over:
            self._over = True
            self._backend.cancel(self._task_id)


def bytes_of(outcome: Result | FarmError) -> int:
    """Return the approximate size of an outcome in memory."""
    if isinstance(outcome, FarmError):
        return 0
    return ANSWER_BYTES + sum(
        sum(map(len, array.flat)) if array.dtype.hasobject else array.nbytes
        for array in outcome.outputs
    )
