"""The worker's end of the wire: connects to the dispatcher and runs a loop around a Runner.

The main thread runs the models and does nearly all communication. During a long run a second
thread, the listener, serves the line: it hands back calls that have not begun, describes models,
and sends pending answers, also those to the finished rows of a run. A thread must hold the lock to
use the line.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from farm.call import Buffer, Call, Result, WorkerInfo
from farm.errors import InvalidRequest, Unavailable
from farm.machine.spinning import ShortWaits
from farm.machine.wake_pipe import WakePipe
from farm.scheduler.state import needs_no_slot
from farm.transports.connection import Connection
from farm.transports.dial import DIAL_EVERY_S, dial, dial_local
from farm.transports.identity import worker_identity
from farm.transports.line_wait import LineWait
from farm.transports.reach import Reach, accepts
from farm.transports.use_reports import UseReports
from farm.wire import messages as wire
from farm.wire.labels import SPLITS_RUNS, TAKES_ORIGINS
from farm.wire.messages import Kind
from farm.wire.sequences import decode_ended
from farm.wire.usage import encode_usage
from farm.worker.row_run import RowRun
from farm.worker.runner import OnStart, Runner, timed

log = logging.getLogger(__name__)

HOLD_ANSWERS_S = 0.0005
"""While more calls are queued here, answers of shorter runs wait this long to share a message."""

LISTEN_AFTER_S = 0.02
"""Duration of a model run after which the listener takes over the line."""

LISTENER_TURN_S = 0.2
"""How often the listener checks pending answers and the time."""

LONGEST_LOOK_S = 1.0
"""Time between two reads of the line; after more, the process was suspended in between."""

ASK_AFTER_SILENCE_S = 3.0
"""The dispatcher probes every second; after this silence the worker asks whether it is known."""

MARGIN_S = 10.0
"""Time in which the word that a sequence has ended arrives, if it was not lost."""

LABELS = {TAKES_ORIGINS: "yes", SPLITS_RUNS: "yes"}
"""What every worker that this module hosts can do."""

LAST_WORDS_S = 2.0
"""Maximum time that a worker waits at its end until its last messages have left."""

EXIT_ORPHANED = 75
"""Exit status of a worker that ends itself because its dispatcher is gone (EX_TEMPFAIL)."""


class WorkerHost:
    """Connects, joins, and answers calls with a Runner until drained.

    on_start: called with the ids of the tasks about to run, empty when nothing runs, and with the
    row for a run of rows.
    lost_after_s: the worker ends itself if the dispatcher cannot be reached for this long. It waits
    for a dispatcher that is silent but reachable (`reach.py`).
    leave: ends the process; called after the goodbye of a draining worker that runs only calls
    whose answers are not needed any more. None: it waits until they end.
    pids: the processes of this machine that work for it, which it reports the use of.
    """

    def __init__(
        self,
        runner: Runner,
        connection: Connection,
        info: WorkerInfo,
        *,
        on_start: OnStart | None = None,
        leave: Callable[[], None] | None = None,
        lost_after_s: float = 60.0,
        pids: Sequence[int] = (),
    ) -> None:
        self._runner = runner
        self._info = replace(info, labels={**info.labels, **LABELS})
        self._connection = connection
        kept_s = [m.sequences.idle_s for m in info.models if m.sequences is not None]
        # After so long without a call, a state that is still here is not needed; 0: there is none.
        self._forget_after_s = 2 * max(kept_s) + MARGIN_S if kept_s else 0.0
        self._on_start = on_start
        self._leave = leave
        self._reach = Reach(lambda: accepts(connection), lost_after_s)
        self._identity = worker_identity(info.name)
        # One side's heartbeats are enough, and thousands of workers' would cost a core.
        self._line = dial(connection, self._identity, heartbeat_s=None)
        # Used by any thread and by signal handlers.
        self._wakes = WakePipe()
        self._drain_asked = False
        # Guarded by the lock, like the line. A call is in one of the first three until it is
        # answered.
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[Call, float]] = {}  # with their arrival times
        self._running: set[int] = set()
        # Those that run but whose answers are not needed, and those among them that no dispatcher
        # may still use. Streams among the first end early.
        self._unwanted: set[int] = set()
        self._in_vain: set[int] = set()
        self._answers: list[tuple[int, wire.Outcome]] = []
        self._answers_since = 0.0
        self._unflushed: list[int] = []  # answered, but the answer is still in this process
        self._row_run: tuple[int, RowRun, float] | None = None  # with the call's id and wait
        self._busy = False
        self._draining = False
        self._refused = ""
        # Guarded by the lock: the dispatcher's view of this worker.
        self._life = secrets.token_hex(8)
        self._joined = False
        self._join_sent_at: float | None = None
        self._told = 0  # messages of this life that answered or handed back calls
        self._looked_at = time.monotonic()
        self._silent_s = 0.0
        self._asked_at = 0.0
        self._dialed_at = 0.0
        self._reports = UseReports(pids)
        # Written by the main thread, read by the listener.
        self._began_at = 0.0
        self._look = threading.Event()
        self._closing = threading.Event()

    def drain(self) -> None:
        """Finish the running call, hand back the others, say goodbye, and end. Signal-safe."""
        self._drain_asked = True
        self._wakes.wake()

    def run(self) -> None:
        """Serve until drained. Raises Unavailable if no dispatcher accepts this worker."""
        listener = threading.Thread(target=self._listen, name="listener", daemon=True)
        listener.start()
        try:
            self._serve()
        finally:
            self._closing.set()
            self._look.set()
            self._wakes.wake()
            listener.join(1.0)
            self._line.flush(LAST_WORDS_S)
            self._line.close()
            self._wakes.close()

    def _serve(self) -> None:
        wait = LineWait(self._wakes.read_end, ShortWaits())
        ended_at: float | None = None  # None before the first run: the worker was new, not idle
        while True:
            with self._lock:
                self._attend()
                if self._draining and not (self._waiting or self._keeps_sequences()):
                    self._put(Kind.LEAVE, ["drained", self._told])
                    return
                batch = list(self._waiting.items())
                self._busy = bool(batch)
                if batch:
                    self._reports.has_calls()
                settled = self._unflushed and self._flush()
            if not batch:
                if settled and self._on_start is not None:
                    self._on_start(())
                self._check_dispatcher()
                if wait(self._line, self._turn_s(self._rest_s()), writes=bool(self._unflushed)):
                    self._wakes.clear()
                continue
            self._began_at = time.perf_counter()
            if not self._look.is_set():
                self._look.set()
            self._run(batch, -1.0 if ended_at is None else self._began_at - ended_at)
            ended_at = time.perf_counter()

    # Running models

    def _run(self, batch: list[tuple[int, tuple[Call, float]]], idle_s: float) -> None:
        ids = [task_id for task_id, _ in batch]

        def claim(positions: Sequence[int]) -> Sequence[int]:
            with self._lock:
                if self._drain_asked and not _goes_on(calls[positions[0]]):
                    return []
                if len(positions) == 1:  # the usual case
                    first = ids[positions[0]]
                    if self._waiting.pop(first, None) is None:
                        return []
                    self._running.add(first)
                    return positions
                mine = [i for i in positions if self._waiting.pop(ids[i], None) is not None]
                self._running.update([ids[i] for i in mine])
                return mine

        def started(positions: Sequence[int], row: int = 0) -> None:
            if not row:
                self._began_at = time.perf_counter()
            if self._on_start is not None:
                # Answers that have not left this process would be lost with it, like the running
                # calls.
                self._on_start([*self._unflushed, *[ids[i] for i in positions]], row)

        def ends_early(position: int) -> bool:
            return self._drain_asked

        def on_run(position: int, run: RowRun) -> None:
            waited_s = max(0.0, self._began_at - batch[position][1][1])
            self._row_run = ids[position], run, waited_s

        def unwanted(position: int) -> bool:
            return ids[position] in self._unwanted

        calls = [call for _, (call, _) in batch]
        for outcomes in self._runner.run(calls, started, claim, unwanted, ends_early, on_run):
            now = time.perf_counter()
            with self._lock:
                self._row_run = None
                if not self._answers:
                    self._answers_since = now
                goes_on = False
                for i, outcome in outcomes:
                    if isinstance(outcome, Result):
                        waited_s = max(0.0, self._began_at - batch[i][1][1])
                        goes_on = outcome.more
                        outcome = timed(outcome, waited_s, idle_s)
                    if not goes_on:
                        self._running.discard(ids[i])
                        if self._unwanted:
                            self._unwanted.discard(ids[i])
                            self._in_vain.discard(ids[i])
                    self._answers.append((ids[i], outcome))
                # The next run may take long, which is unlikely after a short one.
                if goes_on or now - min(self._began_at, self._answers_since) >= HOLD_ANSWERS_S:
                    self._send_answers()
            idle_s = -1.0
        with self._lock:
            self._send_answers()
            self._busy = False
            unflushed = list(self._unflushed)
        # Only after the answers have left: the reported tasks count as lost if this process dies.
        if self._on_start is not None:
            self._on_start(unflushed)

    # The line; callers of these methods hold the lock

    def _attend(self) -> None:
        """Read and process all messages; join and drain if due."""
        heard = False
        while (frames := self._line.receive()) is not None:
            heard = True
            try:
                self._received(wire.decode(frames))
            except InvalidRequest as error:
                log.error("message from the dispatcher: %s", error)
                self._refused = error.message
        now = time.monotonic()
        if self._line.ended():
            self._dial_again(now)
        elif not self._line.may_come_back:
            heard = True  # the end of the line would be noticed
        self._silent_s = (
            0.0 if heard else self._silent_s + min(now - self._looked_at, LONGEST_LOOK_S)
        )
        self._looked_at = now
        if self._drain_asked and not self._draining:
            self._draining = True
            self._put(Kind.RESIZE, [0, self._info.slots] if self._forget_after_s else 0)
        if self._draining:
            if back := [i for i, (call, _) in self._waiting.items() if not _goes_on(call)]:
                self._hand_back(back)
        elif not self._joined and not self._busy:
            self._join(now)
        if self._silent_s > ASK_AFTER_SILENCE_S and now - self._asked_at > ASK_AFTER_SILENCE_S:
            self._asked_at = now
            self._put(Kind.PROBE)
        if self._joined and (used := self._reports.next(now, busy=self._busy)) is not None:
            self._put(Kind.PROBE, encode_usage(used))

    def _dial_again(self, now: float) -> None:
        """Dial again after the dispatcher is gone or has given this worker up."""
        self._line.close()
        if now - self._dialed_at < DIAL_EVERY_S:
            return
        self._dialed_at = now
        line = dial_local(self._connection, self._identity)
        if line is not None:
            self._line = line
            self._unflushed.clear()
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Join again: the dispatcher has requeued the calls that it had sent here."""
        self._joined = False
        self._life = secrets.token_hex(8)
        self._join_sent_at = None
        self._waiting.clear()
        self._runner.end_sequences()
        self._unwanted.update(self._running)

    def _join(self, now: float) -> None:
        # Sent again until a WELCOME comes: the JOIN may have been lost with a connection.
        if self._join_sent_at is None:
            self._told = 0
        if self._join_sent_at is None or now - self._join_sent_at > ASK_AFTER_SILENCE_S:
            self._join_sent_at = now
            self._send(wire.encode_join(self._life, self._info))

    def _received(self, message: wire.Message) -> None:
        kind = message.kind
        if kind is Kind.CALLS:
            self._take(message)
        elif kind is Kind.TAKE_BACK:
            self._send_answers()
            self._hand_back(wire.decode_ids(message))
        elif kind is Kind.END_STREAM:
            self._drop(wire.decode_ids(message))
        elif kind is Kind.END_SEQUENCES:
            for model, sequence in decode_ended(message):
                self._runner.end_sequence(model, sequence)
        elif kind is Kind.CHECK:
            self._send_answers()
            held = self._waiting.keys() | self._running
            missing = [i for i in wire.decode_ids(message) if i not in held]
            if missing:
                self._put(Kind.MISSING, missing)
        elif kind is Kind.WELCOME:
            self._joined |= message.data == self._life
        elif kind is Kind.JOIN_AGAIN:
            if self._joined:  # otherwise the JOIN is under way
                self._begin_anew()
        elif kind is Kind.REFUSED:
            raise InvalidRequest(f"refused: {message.data}")
        elif kind is Kind.STOP:
            self._drain_asked = True

    def _take(self, message: wire.Message) -> None:
        if not self._joined:
            return  # sent to an earlier life: the dispatcher has requeued these calls
        now = time.perf_counter()
        for task_id, call in wire.decode_calls(message)[1]:
            if isinstance(call, Call):
                self._waiting[task_id] = call, now
            else:
                self._answers.append((task_id, call))
        self._send_answers()

    def _drop(self, task_ids: Sequence[int]) -> None:
        """Hand back calls that have not begun, and note which running ones run in vain."""
        if not self._waiting.keys().isdisjoint(task_ids):
            self._hand_back(task_ids)
        running = self._running.intersection(task_ids)
        self._unwanted |= running
        self._in_vain |= running

    def _hand_back(self, task_ids: Sequence[int]) -> None:
        back = [i for i in task_ids if self._waiting.pop(i, None) is not None]
        self._told += 1
        self._put(Kind.TAKEN_BACK, back)

    def _send_answers(self) -> None:
        if not self._answers or not self._send(wire.encode_answers(self._answers)):
            return  # kept for the next line, if this one has ended
        ids = [task_id for task_id, _ in self._answers]
        self._told += 1
        self._answers = []
        if not self._line.flush(0.0):
            self._unflushed += ids
            if self._busy:
                self._wakes.wake()  # the listener writes the rest while the next call runs

    def _flush(self) -> bool:
        """Write the remaining answers; return whether all have left this process."""
        if self._line.flush(0.0):
            self._unflushed.clear()
        return not self._unflushed

    def _put(self, kind: Kind, data: object = None) -> None:
        self._send(wire.encode(kind, data))

    def _send(self, frames: list[Buffer]) -> bool:
        return self._line.send(frames)

    # While a model runs

    def _listen(self) -> None:
        wait = LineWait(self._wakes.read_end)
        while True:
            self._look.wait()
            writes = bool(self._unflushed)
            if time.perf_counter() - self._began_at < LISTEN_AFTER_S and not writes:
                # Short runs are over by then, and the main thread has sent their answers.
                wait(None, LISTEN_AFTER_S)
            else:
                wait(self._line, self._turn_s(LISTENER_TURN_S), writes=writes)
            with self._lock:
                if self._closing.is_set():
                    return
                if not self._busy:
                    self._look.clear()
                    continue
                self._wakes.clear()
                self._attend()
                self._split_run()
                self._send_answers()
                if self._unflushed:
                    self._flush()
                questions = self._take_questions()
                leave = self._leave if self._may_leave() else None
                if leave is not None:
                    self._put(Kind.LEAVE, ["drained", self._told])
                    self._line.flush(LAST_WORDS_S)
            if leave is not None:
                leave()
                return
            self._answer(questions)
            if self._reach.is_lost(self._silent_s):
                log.error("%s", self._silence())
                # The model may run for hours, and its answer would be discarded.
                os._exit(EXIT_ORPHANED)

    def _split_run(self) -> None:
        """Answer the finished rows of a long run, so that only the row that runs stays here."""
        if self._row_run is None or time.perf_counter() - self._began_at < LISTEN_AFTER_S:
            return
        task_id, run, waited_s = self._row_run
        done = run.split()
        if done is not None:
            self._answers.append((task_id, timed(done, waited_s)))

    def _may_leave(self) -> bool:
        """Whether this worker drains, and all that it still runs, it runs in vain."""
        if not self._draining or self._runner.keeps_sequences():
            return False
        return bool(self._running) and self._running <= self._in_vain

    def _keeps_sequences(self) -> bool:
        """Whether this worker, which drains and runs nothing, has to wait for its sequences.

        Each of them ends or goes on in time, unless the word that it has ended was lost.
        """
        if not self._runner.keeps_sequences():
            return False
        return time.perf_counter() - self._began_at < self._forget_after_s

    def _turn_s(self, longest_s: float) -> float:
        """Return how long to sleep: not long after the line has ended, to dial again soon."""
        return DIAL_EVERY_S if self._line.ended() else longest_s

    def _rest_s(self) -> float:
        """Return how long an idle worker may sleep: to its next report if its line cannot fail.

        Such a line wakes it when it ends; any other has to be watched for silence.
        """
        if self._line.may_come_back or not self._joined:
            return LONGEST_LOOK_S
        # Add a millisecond: the wait rounds down, and would busy-wait for the last one.
        return max(0.0, self._reports.at - time.monotonic()) + 0.001

    def _take_questions(self) -> list[tuple[int, Call]]:
        ids = [i for i, (call, _) in self._waiting.items() if needs_no_slot(call.operation)]
        self._running.update(ids)
        return [(i, self._waiting.pop(i)[0]) for i in ids]

    def _answer(self, questions: list[tuple[int, Call]]) -> None:
        for task_id, call in questions:
            (outcome,) = self._runner.execute([call])
            with self._lock:
                if self._closing.is_set():
                    return
                self._running.discard(task_id)
                self._answers.append((task_id, outcome))
                self._send_answers()

    def _check_dispatcher(self) -> None:
        if self._refused and not self._joined:
            raise Unavailable(f"the dispatcher at {self._connection.address()}: {self._refused}")
        if self._reach.is_lost(self._silent_s):
            raise Unavailable(self._silence())

    def _silence(self) -> str:
        return (
            f"no word from the dispatcher at {self._connection.address()} "
            f"for {self._silent_s:.0f} s; is it running, and is the connection file current?"
        )


def _goes_on(call: Call) -> bool:
    """Whether a call needs the state of a sequence that this worker has."""
    return call.step is not None and not call.step.start
