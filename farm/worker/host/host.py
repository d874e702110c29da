"""The worker's end of the wire: connects to the dispatcher and runs a loop around a Runner.

The main thread runs the models and does nearly all communication. During a long run a second
thread, the listener, serves the line: it recalls calls that have not begun, describes models,
and sends pending answers, also those to the finished rows of a run. A thread must hold the lock to
use the line.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from farm.call import Call, Operation, Result, WorkerInfo
from farm.errors import InvalidRequest
from farm.machine.spinning import ShortWaits
from farm.machine.wake_pipe import WakePipe
from farm.scheduler.state import needs_no_slot
from farm.transports.connection import Connection
from farm.transports.dial import LineWait
from farm.transports.stream.line import UNLIMITED
from farm.wire import messages as wire
from farm.wire.messages import Kind, decode_ended
from farm.worker.host.line import LONGEST_LOOK_S, WorkerLine
from farm.worker.runner import Host, Outcome, RowRun, Runner, timed

log = logging.getLogger(__name__)

HOLD_ANSWERS_S = 0.0005
"""While more calls are queued here, answers of shorter runs wait this long to share a message."""

LISTEN_AFTER_S = 0.02
"""Duration of a run after which the listener takes over the line; its turn while one is in vain."""

LISTENER_TURN_S = 0.2
"""How often the listener checks pending answers and the time."""

MARGIN_S = 10.0
"""Time in which the word that a sequence has ended arrives, if it was not lost."""

EXIT_ORPHANED = 75
"""Exit status of a worker that ends itself because its dispatcher is gone (EX_TEMPFAIL)."""


class WorkerProcess:
    """The process of a WorkerHost; this one has no supervisor, and stays until its calls end.

    start_s: the time that another one takes to start in its place; None: there comes no other.
    """

    start_s: float | None = None

    def runs(self, tasks: Sequence[int], row: int = 0, /) -> None:
        """Record that these tasks run from now on, or a row of one; none: nothing runs."""

    def leave(self, *, drains: bool) -> None:
        """End the process after its goodbye: only calls whose answers are not needed run."""


PLAIN_PROCESS = WorkerProcess()


FIRST_RUN_S = 60.0
"""Seconds that a process stays in its first run: the next one would import or compile as long."""


class _HeldCalls:
    """The calls at a worker: waiting, running, or with answers that have not left the process.

    Its users hold the host's lock. waiting: with their arrival times; unwanted: those that
    run but whose answers are not needed, and in_vain: those among them that no dispatcher may still
    use (streams among the first end early); unflushed: answered, but the answer is still in this
    process; drains: no call begins but those of sequences whose states are here; has_run: a run has
    ended.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, tuple[Call, float]] = {}
        self.running: set[int] = set()
        self.unwanted: set[int] = set()
        self.in_vain: set[int] = set()
        self.answers: list[tuple[int, Outcome]] = []
        self.answers_since = 0.0
        self.unflushed: list[int] = []
        self.drains = self.has_run = False

    def drain(self) -> None:
        """Let no other call begin; any thread or signal handler may call this."""
        self.drains = True

    def take_out(self, ids: Iterable[int]) -> list[int]:
        """Remove those of these calls that have not begun, and return them."""
        return [i for i in ids if self.waiting.pop(i, None) is not None]

    def take_questions(self) -> list[tuple[int, Call]]:
        """Let the calls run that need no slot, and return them."""
        ids = [i for i, (call, _) in self.waiting.items() if needs_no_slot(call.operation)]
        self.running.update(ids)
        return [(i, self.waiting.pop(i)[0]) for i in ids]

    def run_in_vain(self, ids: Iterable[int]) -> None:
        """Note that the answers to these calls are not needed, as far as they run."""
        running = self.running.intersection(ids)
        self.unwanted |= running
        self.in_vain |= running

    def forget(self) -> None:
        """Note that the dispatcher has requeued all calls that it had sent here."""
        self.waiting.clear()
        self.unwanted.update(self.running)

    def missing(self, ids: Iterable[int]) -> list[int]:
        """Return those of these calls that are not here."""
        held = self.waiting.keys() | self.running
        return [i for i in ids if i not in held]

    def answer(self, task_id: int, outcome: Outcome, *, more: bool = False) -> None:
        """Keep an answer until it is sent; more: it is not the last one to its call."""
        self.answers.append((task_id, outcome))
        if not more:
            self.has_run = True
            self.running.discard(task_id)
            if self.unwanted:
                self.unwanted.discard(task_id)
                self.in_vain.discard(task_id)


class _Batch(Host):
    """The calls that wait at a worker, which it runs together, and what their runner asks.

    began_at: when the present model call began; streams: it is a stream; row_run: it is a run of
    rows, with the id of its call and the time that this has waited.
    """

    def __init__(
        self, held: _HeldCalls, lock: threading.Lock, process: WorkerProcess, now: float
    ) -> None:
        self._held = held
        self._lock = lock
        self._process = process
        self._ids = [*held.waiting]
        self.calls: Sequence[Call] = ()
        self._arrived_at: Sequence[float] = ()
        if held.waiting:
            self.calls, self._arrived_at = zip(*held.waiting.values(), strict=True)
        self.began_at = now
        self.streams = False
        self.row_run: tuple[int, RowRun, float] | None = None
        self._looked_at = self._suspended_s = 0.0

    def claim(self, positions: Sequence[int]) -> Sequence[int]:
        """Return those of these calls that still wait here; they begin now."""
        held = self._held
        mine: list[int] = []
        tasks: list[int] = []
        with self._lock:
            if held.drains and not _goes_on(self.calls[positions[0]]):
                return []
            for i in positions:
                if (task_id := self._ids[i]) in held.waiting:
                    del held.waiting[task_id]
                    mine += [i]
                    tasks += [task_id]
            held.running.update(tasks)
        if mine:
            self.began_at, self._suspended_s = time.monotonic(), 0.0
            self.streams = self.calls[mine[0]].operation is Operation.STREAM
            # Answers that have not left this process would be lost with it, like running calls.
            self._process.runs([*held.unflushed, *tasks])
        return mine

    def begins(self, position: int, row: int = 0) -> bool:
        """Report a call, or a row of it; no row begins while the worker drains."""
        if not row:
            self.began_at, self._suspended_s = time.monotonic(), 0.0
        elif self._held.drains:
            return False
        self._process.runs([*self._held.unflushed, self._ids[position]], row)
        return True

    def runs_rows(self, position: int, run: RowRun) -> None:
        """Keep the run: the listener splits it if it takes long."""
        self.row_run = self._ids[position], run, self.began_at - self._arrived_at[position]

    def is_wanted(self, position: int) -> bool:
        """Whether the answers are still wanted."""
        return self._ids[position] not in self._held.unwanted

    def ended(self, outcomes: Iterable[tuple[int, Outcome]], idle_s: float) -> bool:
        """Keep the answers of a model call; return whether to send them before the next one.

        idle_s: for how long the worker had no calls before this one. The lock must be held.
        """
        now = time.monotonic()
        held, began_at = self._held, self.began_at
        self.row_run = None
        if not held.answers:
            held.answers_since = now
        goes_on = False
        for i, outcome in outcomes:
            if type(outcome) is Result:
                goes_on = outcome.more
                outcome = timed(outcome, began_at - self._arrived_at[i], idle_s)
            held.answer(self._ids[i], outcome, more=goes_on)
        # The next run may take long, which is unlikely after a short one.
        due_at = now - HOLD_ANSWERS_S
        return goes_on or began_at <= due_at or held.answers_since <= due_at

    def split(self) -> None:
        """Answer the finished rows of a long run, so that only the row that runs stays here."""
        if self.row_run is None or self.lasts_s() < LISTEN_AFTER_S:
            return
        task_id, run, waited_s = self.row_run
        if (done := run.split()) is not None:
            self._held.answer(task_id, timed(done, waited_s), more=True)

    def lasts_s(self) -> float:
        """Return the seconds since the present model call began, or the last one."""
        return time.monotonic() - self.began_at

    def look(self) -> None:
        """Note that the listener looks; a long time without a look does not count for the run."""
        now = time.monotonic()
        passed_s = now - max(self._looked_at, self.began_at)
        if passed_s > LONGEST_LOOK_S:
            self._suspended_s += passed_s
        self._looked_at = now

    def has_run_s(self) -> float:
        """Return for how long the present model call has run, without what suspended it."""
        return self.lasts_s() - self._suspended_s


class WorkerHost:
    """Connects, joins, and answers calls with a Runner until drained.

    lost_after_s: the worker ends itself if the dispatcher cannot be reached for this long. It waits
    for a dispatcher that is silent but reachable (`line.py`). It leaves a run whose answer
    is not needed if it drains, or if that has taken longer than another process needs to start.
    pids: the processes of this machine that work for it, which it reports the use of.
    """

    def __init__(
        self,
        runner: Runner,
        connection: Connection,
        info: WorkerInfo,
        *,
        process: WorkerProcess = PLAIN_PROCESS,
        lost_after_s: float = 60.0,
        pids: Sequence[int] = (),
    ) -> None:
        self._runner = runner
        kept_s = [m.sequences.idle_s for m in info.models if m.sequences is not None]
        # After so long without a call, a state that is still here is not needed; 0: there is none.
        self._forget_after_s = 2 * max(kept_s) + MARGIN_S if kept_s else 0.0
        self._process = process
        # Used by any thread and by signal handlers.
        self._wakes = WakePipe()
        # Guarded by the lock. A call is in one of the collections of `_held` until it is answered.
        self._lock = threading.Lock()
        self._line = WorkerLine(connection, info, lost_after_s, pids)
        self._held = _HeldCalls()
        self._busy = self._draining = False
        # Written by the main thread, read by the listener: the present batch, or the last one.
        self._batch = _Batch(self._held, self._lock, process, time.monotonic())
        self._look = threading.Event()
        self._closing = threading.Event()

    def drain(self) -> None:
        """Finish the running call, recall the others, say goodbye, and end. Signal-safe."""
        self._held.drain()
        self._wakes.wake()

    def run(self, on_joined: Callable[[], object] = lambda: None) -> None:
        """Serve until drained; call `on_joined` once accepted. Raises Unavailable if it is not."""
        listener = threading.Thread(target=self._listen, name="listener", daemon=True)
        listener.start()
        try:
            self._serve(on_joined)
        finally:
            self._closing.set()
            self._look.set()
            self._wakes.wake()
            listener.join(1.0)
            self._line.close()
            self._wakes.close()

    def _serve(self, on_joined: Callable[[], object]) -> None:
        wait = LineWait(self._wakes.read_end, ShortWaits())
        line, held = self._line, self._held
        ended_at: float | None = None  # None before the first run: the worker was new, not idle
        is_told = False
        while True:
            with self._lock:
                now = self._attend()
                if self._draining and not (held.waiting or self._keeps_sequences()):
                    line.leave()
                    return
                self._busy = bool(held.waiting)
                if self._busy:
                    self._batch = _Batch(held, self._lock, self._process, now)
                settled = bool(held.unflushed) and self._flush()
            if line.joined and not is_told:
                is_told = True
                on_joined()
            if self._busy:
                if not self._look.is_set():
                    self._look.set()
                self._run(self._batch, -1.0 if ended_at is None else now - ended_at)
                now = ended_at = time.monotonic()
                if held.waiting or held.drains or not line.joined:
                    continue  # the wait would not notice that
            elif settled:
                self._process.runs(())
            if line.silence.silent_s or not line.joined:
                line.check()
            ready = wait(line.dialed, line.turn_s(now=now), writes=bool(held.unflushed))
            if self._wakes.read_end in ready:
                self._wakes.clear()

    def _run(self, batch: _Batch, idle_s: float) -> None:
        held = self._held
        for outcomes in self._runner.run(batch.calls, batch):
            with self._lock:
                if batch.ended(outcomes, idle_s):
                    self._send_answers()
            idle_s = -1.0
        with self._lock:
            if held.answers:
                self._send_answers()
            self._busy = False
            unflushed = list(held.unflushed)
        # Only after the answers have left: the reported tasks count as lost if this process dies.
        self._process.runs(unflushed)

    # The line; callers of these methods hold the lock

    def _attend(self) -> float:
        """Read and process all messages; join and drain if due. Return the time when it began."""
        line, held, now = self._line, self._held, time.monotonic()
        dialed = line.dialed
        heard = (frames := dialed.receive(UNLIMITED)) is not None
        while frames is not None:
            try:
                self._received(wire.decode(frames), now)
            except InvalidRequest as error:
                line.refused(error)
            frames = None if dialed.drained else dialed.receive()
        if line.tend(now, heard=heard, busy=self._busy or bool(held.waiting)):
            held.unflushed.clear()
            self._begin_anew()
        if held.drains and not self._draining:
            self._draining = True
            line.offer_none(keeps_sequences=bool(self._forget_after_s))
        if self._draining:
            if back := [i for i, (call, _) in held.waiting.items() if not _goes_on(call)]:
                self._recall(back)
        elif not line.joined and not self._busy:
            line.join(now)
        return now

    def _begin_anew(self) -> None:
        """Prepare for another life: the dispatcher has requeued the calls that it had sent here."""
        self._held.forget()
        self._runner.end_sequences()

    def _received(self, message: wire.Message, now: float) -> None:
        kind = message.kind
        if kind is Kind.CALLS:
            if self._line.joined:  # otherwise they were sent to an earlier life, and requeued
                held = self._held
                for task_id, call in wire.decode_calls(message)[1]:
                    if isinstance(call, Call):
                        held.waiting[task_id] = call, now
                    else:
                        held.answers.append((task_id, call))
                if held.answers:
                    self._send_answers()
        elif kind is Kind.RECALL:
            self._send_answers()
            self._recall(wire.decode_ids(message))
        elif kind is Kind.END_STREAM:
            ids = wire.decode_ids(message)
            if not self._held.waiting.keys().isdisjoint(ids):
                self._recall(ids)
            self._held.run_in_vain(ids)
        elif kind is Kind.END_SEQUENCES:
            for model, sequence in decode_ended(message):
                self._runner.end_sequence(model, sequence)
        elif kind is Kind.CHECK:
            self._send_answers()
            if missing := self._held.missing(wire.decode_ids(message)):
                self._line.put(Kind.MISSING, missing)
        elif kind is Kind.WELCOME:
            self._line.welcomed(message.data)
        elif kind is Kind.JOIN_AGAIN:
            if self._line.joined:  # otherwise the JOIN is under way
                self._line.begin_anew()
                self._begin_anew()
        elif kind is Kind.REFUSED:
            raise InvalidRequest(f"refused: {message.data}")
        elif kind is Kind.STOP:
            self._held.drain()

    def _recall(self, task_ids: Sequence[int]) -> None:
        self._line.tell(wire.encode(Kind.RECALLED, self._held.take_out(task_ids)))

    def _send_answers(self) -> None:
        line, held = self._line, self._held
        if not held.answers or not line.tell(wire.encode_answers(held.answers)):
            return  # kept for the next line, if this one has ended
        if line.dialed.queued and not line.dialed.flush(0.0):
            held.unflushed.extend([task_id for task_id, _ in held.answers])
            if self._busy:
                self._wakes.wake()  # the listener writes the rest while the next call runs
        held.answers.clear()

    def _flush(self) -> bool:
        """Write what remains of the answers; return whether that was the rest of some."""
        unflushed = self._held.unflushed
        if not unflushed or not self._line.dialed.flush(0.0):
            return False
        unflushed.clear()
        return True

    # While a model runs

    def _listen(self) -> None:
        wait = LineWait(self._wakes.read_end)
        line, held = self._line, self._held
        while True:
            self._look.wait()
            writes = bool(held.unflushed)
            if self._batch.lasts_s() < LISTEN_AFTER_S and not writes:
                # Short runs are over by then, and the main thread has sent their answers.
                wait(None, LISTEN_AFTER_S)
            else:
                turn_s = LISTEN_AFTER_S if held.in_vain else LISTENER_TURN_S
                wait(line.dialed, line.turn_s(turn_s), writes=writes)
            with self._lock:
                if self._closing.is_set():
                    return
                if not self._busy:
                    self._look.clear()
                    continue
                self._wakes.clear()
                self._batch.look()
                self._attend()
                self._batch.split()
                self._send_answers()
                self._flush()
                questions = held.take_questions()
                if self._may_leave():
                    line.leave()
                    line.close()  # which alone waits until ZeroMQ has sent the goodbye
                    self._process.leave(drains=self._draining)
                    return
            self._answer(questions)
            if line.silence.is_lost():
                log.error("%s", line.silence.described())
                # The model may run for hours, and its answer would be discarded.
                os._exit(EXIT_ORPHANED)

    def _may_leave(self) -> bool:
        """Whether all its runs are in vain, and it drains, or can restart before they end.

        As far as is known, a run has as long left as it has taken. A stream ends by itself.
        """
        start_s, in_vain = self._process.start_s, self._held.in_vain
        is_vain = in_vain and self._held.running <= in_vain
        if start_s is None or not is_vain or self._runner.keeps_sequences():
            return False
        if not self._held.has_run:
            start_s += FIRST_RUN_S
        return self._draining or (self._batch.has_run_s() > start_s and not self._batch.streams)

    def _keeps_sequences(self) -> bool:
        """Whether this worker, which drains and runs nothing, has to wait for its sequences.

        Each of them ends or goes on in time, unless the word that it has ended was lost.
        """
        return self._runner.keeps_sequences() and self._batch.lasts_s() < self._forget_after_s

    def _answer(self, questions: list[tuple[int, Call]]) -> None:
        for task_id, call in questions:
            (outcome,) = self._runner.execute([call])
            with self._lock:
                if self._closing.is_set():
                    return
                self._held.answer(task_id, outcome)
                self._send_answers()


def _goes_on(call: Call) -> bool:
    """Whether a call needs the state of a sequence that this worker has."""
    return call.step is not None and not call.step.start
