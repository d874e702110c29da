"""The thread of a native client: it owns the line to the dispatcher, and the calls without outcome.

Callers put calls into an outbox and wake the thread only if it sleeps; it sends all pending calls
in few messages and delivers every outcome to its caller. A call is kept until its outcome arrives,
so that it can be sent again if the connection or the dispatcher is lost in between.

A caller of one blocking call after another uses the line itself (`lease.py`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from farm.call import NO_HINTS, Buffer, Call, Hints
from farm.client.lease import Lease, LoneCall, Outbox
from farm.client.line import Outcome, Receiver
from farm.client.open_calls import OpenCalls, OpenQuestions, Task, Waiting, messages
from farm.errors import Cancelled, FarmError, InvalidInput, InvalidRequest, Unavailable
from farm.transports.dial import DIAL_EVERY_S, DialedLine, Dialer, LineWait
from farm.transports.stream.line import StreamLine
from farm.wire import messages as wire
from farm.wire.messages import Kind, Message
from farm.wire.questions import AskedQuestion, encode_question

log = logging.getLogger(__name__)

CALLS_A_MESSAGE = 512
"""Larger messages cost no less per call, and delay the calls behind them (measured)."""

BYTES_A_MESSAGE = 4 * 1024**2

IDS_A_MESSAGE = 100_000
"""A fifth of the number of values allowed in a client's message."""

ASK_AFTER_SILENCE_S = 3.0
"""The dispatcher probes every second; after this silence the client asks whether it is known."""

ASKS_WITHIN_PATIENCE = 3
"""A shorter patience has room for so many questions, because a busy farm may be silent for long."""

TICK_S = 0.5
"""How often the thread checks the time while a caller waits."""

STOPPED_S = 2.5
"""A thread that has not looked at the time for so long was stopped, or kept from running."""

DIAL_IDLE_S = 2.0
"""Interval at which a client whose line has ended dials again while no caller waits."""

LAST_WORDS_S = 5.0
"""Maximum time that `close` waits for the thread."""

_of_parents: list[End] = []
"""In a forked process, the ends of its parent: their ZeroMQ sockets must not be collected there."""


class _Patience:
    """For how long callers have waited without a word of the dispatcher; for the thread.

    limit_s: their patience; ask_after_s: when to ask whether the dispatcher is there.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.ask_after_s = min(ASK_AFTER_SILENCE_S, limit_s / ASKS_WITHIN_PATIENCE)
        self.tick_s = max(0.001, min(TICK_S, self.ask_after_s / 2))
        self._heard_at = self._idle_at = self._asked_at = self._looked_at = time.monotonic()
        self._somebody_waited = False

    def heard(self) -> None:
        """Note a message."""
        self._heard_at = time.monotonic()

    def look(self, now: float, *, somebody_waits: bool) -> None:
        """Note at each look at the time whether a caller waits."""
        missed_s, self._looked_at = now - self._looked_at, now
        if missed_s > STOPPED_S:  # messages that came in this time are unread
            self._idle_at = min(now, self._silent_since() + missed_s)
        if not somebody_waits or not self._somebody_waited:
            self._idle_at = now
        self._somebody_waited = somebody_waits

    def silent_s(self, now: float) -> float:
        """Return for how long a caller has waited without any word."""
        return now - self._silent_since()

    def _silent_since(self) -> float:
        return max(self._heard_at, self._idle_at)

    def asks(self, now: float) -> bool:
        """Whether to ask now; the next time is not before `ask_after_s`."""
        if self.silent_s(now) <= self.ask_after_s or now - self._asked_at <= self.ask_after_s:
            return False
        self._asked_at = now
        return True

    def renew(self) -> None:
        """Give the next caller the whole patience."""
        self._somebody_waited = False


class End:
    """State shared by the callers and the thread, which may outlive its NativeLine.

    line: dialed, or `NoLine`, in whose place the thread dials; ids: of calls, never used twice by
    the process or those it forks; repeatable: of the models that the farm has described, whether
    their calls may run again.
    """

    def __init__(
        self,
        dialer: Dialer,
        line: DialedLine,
        ids: Iterator[int],
        repeatable: Mapping[str, bool],
        patience_s: float,
    ) -> None:
        self._dialer = dialer
        # Shared. Each single step on these is atomic, so that no call needs a lock.
        self._ids = ids
        self._calls = OpenCalls(repeatable, patience_s)
        self._questions = OpenQuestions()
        self._lease = Lease(self)
        self._outbox = Outbox(self._lease)
        self._closing = False
        self._closed = False
        # Used by whoever has the lease.
        self._line = line
        self._number: int | None = None  # of the session at the dispatcher
        self._patience = _Patience(patience_s)
        self._thread = threading.Thread(target=self._run, name="farm client", daemon=True)
        self._thread.start()

    # Methods for callers

    def send(
        self, calls: Sequence[tuple[Any, Call]], hints: Hints, receiver: Receiver
    ) -> Sequence[int]:
        """Send calls, each with a key for its outcome at `receiver`, and return their ids."""
        now = time.monotonic()
        waiting = self._calls.waiting
        tasks = []
        for (key, call), call_id in zip(calls, self._ids, strict=False):
            if hints.call_id:
                call = hints.named(call)
            waiting[call_id] = Waiting(call, hints, now, receiver, key)
            tasks.append((call_id, call))
        self._outbox.put((hints, tasks))
        ids = [call_id for call_id, _ in tasks]
        if self._closed and self.cancel(ids):
            raise Unavailable("the client is closed")
        return ids

    def call(self, call: Call, hints: Hints) -> Outcome:
        """Send a call and wait for its outcome; an interruption of the wait cancels the call."""
        if hints.call_id:
            call = hints.named(call)
        call_id = next(self._ids)
        lone, lease = LoneCall(), self._lease
        outcome: Outcome | None = None
        gave_back = False
        try:
            self._calls.waiting[call_id] = Waiting(call, hints, time.monotonic(), lone, None)
            if lease.take(lone):
                outcome = self._lead(lone, call_id, call, hints)
                lease.give_back(lone)
                gave_back = True
            else:
                self._outbox.put((hints, [(call_id, call)]))
            if outcome is None:
                if self._closed and self.cancel([call_id]):
                    raise Unavailable("the client is closed")
                outcome = lone.wait()
            return outcome
        finally:
            if not gave_back:
                lease.give_back(lone)
            if outcome is None:
                self.cancel([call_id])

    def _lead(self, lone: LoneCall, call_id: int, call: Call, hints: Hints) -> Outcome | None:
        """Send the call and return its result; None: the thread does the rest."""
        line, outbox = self._line, self._outbox
        if type(line) is StreamLine and not self._is_busy(call):
            try:
                frames = wire.encode_calls([(call_id, call)], hints)
            except Exception:
                frames = []  # the thread reports what is wrong
            if frames:
                result = lone.exchange(call_id, frames, line, outbox.wakes.read_end, self._lease)
                return result if result and self._calls.waiting.pop(call_id, None) else None
        outbox.items.append((hints, [(call_id, call)]))
        return None

    def _is_busy(self, call: Call) -> bool:
        """Whether there is more to do than to wait for this call, or it may not run twice."""
        calls = self._calls
        if len(calls.waiting) > 1 or not calls.repeatable.get(call.model):
            return True
        if self._questions.asked or self._outbox.items:
            return True
        return self._closing or bool(self._lease.unread) or self._lease.is_spoilt

    def cancel(self, ids: Iterable[int]) -> bool:
        """Cancel calls; False if each of them had an outcome."""
        taken = [i for i in ids if self._calls.waiting.pop(i, None) is not None]
        if taken and not self._closed:
            self._say(Kind.CANCEL, taken)
        return bool(taken)

    def cancel_waiting(self, ids: Iterable[int]) -> None:
        """Cancel those of the calls that no worker has; each of these fails with Cancelled."""
        self._say(Kind.CANCEL_WAITING, [i for i in ids if i in self._calls.waiting])

    def _say(self, kind: Kind, ids: list[int]) -> None:
        for some in _batches(ids):
            self._outbox.put(wire.encode(kind, some))

    def ask(self, what: str, arguments: Mapping[str, str], timeout_s: float | None) -> Any:
        """Return the farm's answer to a question about itself. Raises FarmError."""
        question = AskedQuestion(next(self._ids), what, arguments)
        future = self._questions.add(question)
        self._outbox.put(encode_question(question))
        try:
            if self._closed:
                raise Unavailable("the client is closed")
            return future.result(timeout_s)
        except TimeoutError:
            raise Unavailable(
                f"no answer from the farm at {self._address()} within {timeout_s:g} s; "
                "is it running, and is the connection file its own?"
            ) from None
        finally:
            self._questions.asked.pop(question.number, None)

    def _address(self) -> str:
        return self._dialer.connection.address()

    def close(self) -> None:
        """Send a goodbye and close; calls without an outcome fail with Cancelled."""
        self._closing = True
        self._outbox.wake()
        self._lease.call_thread()
        if threading.current_thread() is not self._thread:
            self._thread.join(LAST_WORDS_S)

    def drop(self) -> None:
        """Close a forked process's copies of the sockets; the parent's connection stays as it is.

        The dispatcher can only see that the parent has ended once all copies are closed.
        """
        _of_parents.append(self)
        if not self._line.may_come_back:
            self._line.close()
        self._outbox.wakes.close()

    # Methods of the thread

    def _run(self) -> None:
        failure: FarmError = Cancelled("the client was closed before the answer came")
        try:
            self._serve()
        except Exception as error:
            log.exception("the client's thread ends")
            failure = Unavailable(f"the client's thread failed: {error!r}")
        self._closed = True  # no calls are accepted from here on
        self._fail_all(failure)
        self._line.close()
        self._outbox.wakes.close()

    def has_work(self) -> bool:
        """Whether the thread has something to do."""
        waits = self._calls.waiting or self._questions.asked
        return bool(waits or self._outbox.items or self._closing)

    def _somebody_waits(self) -> bool:
        return bool(self._calls.waiting or self._questions.asked)

    def _resume(self) -> None:
        """Continue where callers have left the line."""
        lease = self._lease
        if lease.mend():
            self._line.close()  # it is dialed again, and the open calls are sent again
        while lease.unread:
            self._take_in(lease.unread.popleft())

    def _serve(self) -> None:
        outbox = self._outbox
        wake_fd = outbox.wakes.read_end
        wait = LineWait(wake_fd)
        while not self._closing:
            if not self._line.ended():
                self._write()
            self._watch()
            if self._is_away():
                self._dial_again()
            if self._lease.may_rest and not (self._somebody_waits() or self._line.ended()):
                self._lease.rest()
                self._resume()
                continue
            flushed = self._line.flush(0.0)
            outbox.sleeps(True)
            ready = wait(self._line, self._timeout_s(), writes=not flushed)
            outbox.sleeps(False)
            if ready.pop(wake_fd, 0):
                outbox.wakes.clear()
            if ready:
                self._read()
        self._write()
        self._send(wire.encode(Kind.LEAVE))
        self._line.flush(LAST_WORDS_S / 2)

    def _is_away(self) -> bool:
        """Whether the dispatcher may have been replaced by one that listens elsewhere."""
        if self._line.ended() or self._line.broken():
            return True
        return self._patience.silent_s(time.monotonic()) > self._patience.ask_after_s

    def _dial_again(self) -> None:
        """Dial again after losing the dispatcher; calls are kept for the one that replaces it."""
        if self._line.ended():
            self._line.close()
        line = self._dialer.again(self._line, self._dial_every_s())
        if line is not None:
            self._line.close()
            self._line = line
            self._number = None  # the new session's number is no reason to send all calls twice
            self._calls.lost(self._outbox.unsent())
            self._outbox.clear()  # its calls are sent now, all else was for the lost one
            self._ask_again()
            self._resend(self._calls.waiting.copy())

    def _dial_every_s(self) -> float:
        return DIAL_EVERY_S if self._somebody_waits() else DIAL_IDLE_S

    def _timeout_s(self) -> float:
        if self._closing:
            return 0.0
        if self._line.ended():
            return self._dial_every_s()
        if self._outbox.items:
            return 0.0
        return self._patience.tick_s if self._somebody_waits() else -1.0

    def _write(self) -> None:
        batch: list[Task] = []
        hints = NO_HINTS
        items = self._outbox.items
        while items:
            item = items.popleft()
            if batch and (
                isinstance(item, list) or item[0] != hints or len(batch) >= CALLS_A_MESSAGE
            ):
                self._send_many(batch, hints)
                batch = []
            if isinstance(item, list):
                self._send(item)
                continue
            hints, tasks = item
            batch.extend(tasks)
        if batch:
            self._send_many(batch, hints)

    def _send_many(self, tasks: Sequence[Task], hints: Hints, kind: Kind = Kind.CALLS) -> None:
        """Send calls in messages small enough not to delay other calls."""
        first = size = 0
        for number, (_, call) in enumerate(tasks):
            if number - first >= CALLS_A_MESSAGE or size >= BYTES_A_MESSAGE:
                self._send_calls(tasks[first:number], hints, kind)
                first, size = number, 0
            # JSON text within JSON may be twice as long.
            size += sum([a.nbytes for a in call.inputs]) + 2 * len(call.config)
        self._send_calls(tasks[first:], hints, kind)

    def _send_calls(self, tasks: Sequence[Task], hints: Hints, kind: Kind = Kind.CALLS) -> None:
        try:
            frames = wire.encode_calls(tasks, hints, kind=kind)
        except Exception as error:  # callers may pass any values
            if len(tasks) == 1:
                failure = InvalidInput(f"the call cannot be sent: {error}")
                self._calls.settle([(tasks[0][0], failure)])
                return
            for task in tasks:  # find the call at fault
                self._send_calls([task], hints, kind)
            return
        self._send(frames)

    def _send(self, frames: list[Buffer]) -> None:
        self._line.send(frames)  # no effect on an ended line: all calls are sent again

    def _read(self) -> None:
        while (frames := self._line.receive()) is not None:
            self._take_in(frames)
        if self._line.came_back():
            self._send_again()

    def _take_in(self, frames: Sequence[Buffer]) -> None:
        self._patience.heard()
        try:
            self._received(wire.decode(frames))
        except InvalidRequest as error:
            self._fail_all(error)  # it is unknown whose answers the message held

    def _received(self, message: Message) -> None:
        if message.kind is Kind.ANSWERS:
            self._calls.answered(wire.decode_answers(message))
        elif message.kind is Kind.WELCOME:
            before, self._number = self._number, message.data
            if before not in (None, self._number):
                self._send_again()
            if before != self._number:  # what an earlier session was sent has been sent again
                self._send(wire.encode(Kind.PROBE, self._number))
        elif message.kind is Kind.TELL:
            self._questions.told(message)
        elif message.kind is Kind.REFUSED:
            raise InvalidRequest(f"the farm refused this client's message: {message.data}")

    def _fail_all(self, error: FarmError) -> None:
        self._calls.fail_all(error)
        self._questions.fail(error)

    # Recovery from loss

    def _send_again(self) -> None:
        """Resend all open calls after a lost connection; the dispatcher recognizes duplicates."""
        unsent = self._outbox.unsent()
        self._calls.lost(unsent)
        self._ask_again()
        waiting = self._calls.waiting.copy()
        self._resend({i: call for i, call in waiting.items() if i not in unsent})

    def _ask_again(self) -> None:
        for frames in self._questions.frames():
            self._send(frames)

    def _resend(self, calls: dict[int, Waiting]) -> None:
        for tasks, hints, again in messages(calls, self._calls.again):
            self._send_many(tasks, hints, Kind.CALLS_AGAIN if again else Kind.CALLS)

    def _watch(self) -> None:
        """Check a silent dispatcher; give up after the time limit."""
        now = time.monotonic()
        patience = self._patience
        patience.look(now, somebody_waits=self._somebody_waits())
        self._resend(self._calls.refused(now))
        silent_s = patience.silent_s(now)
        if self._line.ended() or silent_s > patience.ask_after_s:
            self._calls.fail_late(now)
        if silent_s > patience.limit_s:
            for some in _batches(list(self._calls.waiting)):
                self._send(wire.encode(Kind.CANCEL, some))
            text = f"no word from the farm at {self._address()} for {silent_s:.0f} s"
            error = Unavailable(f"{text}; is it running?")
            self._calls.give_up(error, self._outbox.unsent())
            self._questions.fail(error)
            patience.renew()
        elif patience.asks(now):
            self._send(wire.encode(Kind.PROBE))


def _batches(ids: list[int]) -> Iterator[list[int]]:
    """Yield the ids of one message after another."""
    for first in range(0, len(ids), IDS_A_MESSAGE):
        yield ids[first : first + IDS_A_MESSAGE]
