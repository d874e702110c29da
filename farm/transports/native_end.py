"""The thread of a native client: it owns the line to the dispatcher, and the calls without outcome.

Callers put calls into an outbox and wake the thread only if it sleeps; it sends all pending calls
in few messages and delivers every outcome to its caller. A call is kept until its outcome arrives,
so that it can be sent again if the connection or the dispatcher is lost in between.

A caller of one blocking call after another uses the line itself (`lone_call.py`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from farm.call import NO_HINTS, Buffer, Call, Hints
from farm.errors import Cancelled, FarmError, InvalidInput, InvalidRequest, Unavailable
from farm.transports.connection import Connection
from farm.transports.dial import DIAL_EVERY_S, DialedLine, Dialer, NoLine
from farm.transports.identity import CLIENT_PREFIX
from farm.transports.lease import Lease, LoneCall
from farm.transports.line import Outcome, Receiver
from farm.transports.lone_call import exchange
from farm.transports.open_calls import OpenCalls, Task, Waiting, messages
from farm.transports.reach import accepts
from farm.wire import messages as wire
from farm.wire.messages import Kind, Message
from farm.wire.questions import AskedQuestion, decode_told, encode_question

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

TICK_MS = 500
"""How often the thread checks the time while a caller waits."""

STOPPED_S = 2.5
"""A thread that has not looked at the time for so long was stopped, or kept from running."""

DIAL_IDLE_S = 2.0
"""Interval at which a client whose line has ended dials again while no caller waits."""

LAST_WORDS_S = 5.0
"""Maximum time that `close` waits for the thread."""

_of_parents: list[End] = []
"""In a forked process, the ends of its parent: their ZeroMQ sockets must not be collected there."""


class End:
    """State shared by the callers and the thread, which may outlive its NativeLine.

    read: reads the connection file again, after which a restarted dispatcher is dialed; ids: of
    calls, never used twice by the process or those it forks; repeatable: of the models that the
    farm has described, whether their calls may run again. at_once: dial before the first call, and
    raise Unavailable if the farm cannot be reached from here. Otherwise the thread dials.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        read: Callable[[], Connection] | None,
        ids: Iterator[int],
        repeatable: Mapping[str, bool],
        patience_s: float,
        heartbeat_s: float,
        at_once: bool = True,
    ) -> None:
        self._patience_s = patience_s
        self._ask_after_s = min(ASK_AFTER_SILENCE_S, patience_s / ASKS_WITHIN_PATIENCE)
        self._tick_ms = max(1, int(min(TICK_MS, 500 * self._ask_after_s)))
        name = f"{socket.gethostname()}/{os.getpid()}-{secrets.token_hex(4)}"
        self._dialer = Dialer(
            connection,
            CLIENT_PREFIX.decode() + name,
            read=read,
            heartbeat_s=heartbeat_s,
            on_return=self._send_again,
        )
        self._line: DialedLine = self._dialer.dial() if at_once else NoLine()
        # Shared. Each single step on these is atomic, so that no call needs a lock.
        self._ids = ids
        self._calls = OpenCalls(repeatable, patience_s)
        self._waiting = self._calls.waiting
        self._asked: dict[int, tuple[AskedQuestion, Future[Any]]] = {}
        self._outbox: deque[tuple[Hints, Sequence[Task]] | list[Buffer]] = deque()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._asleep = False
        self._closing = False
        self._closed = False
        self._lease = Lease(self, self._has_work)
        # Used by the thread only, which has the lease then.
        self._number: int | None = None
        self._heard_at = self._idle_at = self._probed_at = self._watched_at = time.monotonic()
        self._dialed_at = 0.0
        self._somebody_waited = False
        self._thread = threading.Thread(target=self._run, name="farm client", daemon=True)
        self._thread.start()

    # Methods for callers

    def send(
        self, calls: Sequence[tuple[Any, Call]], hints: Hints, receiver: Receiver
    ) -> Sequence[int]:
        """Send calls, each with a key for its outcome at `receiver`, and return their ids."""
        now = time.monotonic()
        waiting = self._waiting
        tasks = []
        for (key, call), call_id in zip(calls, self._ids, strict=False):
            if hints.call_id:
                call = hints.named(call)
            waiting[call_id] = Waiting(call, hints, now, receiver, key)
            tasks.append((call_id, call))
        self._leave((hints, tasks))
        ids = [call_id for call_id, _ in tasks]
        if self._closed and self.cancel(ids):
            raise Unavailable("the client is closed")
        return ids

    def call(self, call: Call, hints: Hints) -> Outcome:
        """Send a call and wait for its outcome; an interruption of the wait cancels the call."""
        if hints.call_id:
            call = hints.named(call)
        call_id = next(self._ids)
        lone = LoneCall()
        lease = self._lease
        try:
            self._waiting[call_id] = Waiting(call, hints, time.monotonic(), lone, None)
            if lease.take(lone):
                try:
                    self._lead(lone, call_id, call, hints)
                finally:
                    lease.give_back(lone)
            else:
                self._leave((hints, [(call_id, call)]))
            if self._closed and self.cancel([call_id]):
                raise Unavailable("the client is closed")
            return lone.wait()
        finally:
            lease.give_back(lone)  # again, in case that another interruption hit the first time
            if lone.outcome is None:
                self.cancel([call_id])

    def _lead(self, lone: LoneCall, call_id: int, call: Call, hints: Hints) -> None:
        """Send the call and receive its result, or leave what remains of that to the thread."""
        line = self._line
        frames = None
        if not line.may_come_back and not self._is_busy() and self._calls.may_repeat(call):
            with contextlib.suppress(Exception):  # the thread reports what is wrong
                frames = wire.encode_calls([(call_id, call)], hints)
        if frames is None:
            self._outbox.append((hints, [(call_id, call)]))
            return
        self._asleep = True
        try:
            result = exchange(lone, call_id, frames, line, self._wake_read.fileno(), self._lease)
        finally:
            self._asleep = False
        if result is not None and self._waiting.pop(call_id, None) is not None:
            lone.outcome = result

    def _is_busy(self) -> bool:
        """Whether there is more to do than to wait for one call."""
        more = len(self._waiting) > 1 or self._asked or self._outbox or self._closing
        return bool(more or self._lease.unread or self._lease.is_spoilt)

    def cancel(self, ids: Iterable[int]) -> bool:
        """Cancel calls; False if each of them had an outcome."""
        taken = [i for i in ids if self._waiting.pop(i, None) is not None]
        if taken and not self._closed:
            for some in _batches(taken):
                self._leave(wire.encode(Kind.CANCEL, some))
        return bool(taken)

    def ask(self, what: str, arguments: Mapping[str, str], timeout_s: float | None) -> Any:
        """Return the farm's answer to a question about itself. Raises FarmError."""
        number = next(self._ids)
        future: Future[Any] = Future()
        asked = AskedQuestion(number, what, arguments)
        self._asked[number] = asked, future
        self._leave(encode_question(asked))
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
            self._asked.pop(number, None)

    def _leave(self, item: tuple[Hints, Sequence[Task]] | list[Buffer]) -> None:
        self._outbox.append(item)
        if self._asleep:
            self._wake()
        self._lease.call_thread()

    def _wake(self) -> None:
        self._asleep = False
        with contextlib.suppress(OSError):  # full of wake-ups, or just closed
            self._wake_write.send(b"w")

    def _address(self) -> str:
        return self._dialer.connection.address()

    def close(self) -> None:
        """Send a goodbye and close; calls without an outcome fail with Cancelled."""
        self._closing = True
        self._wake()
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
        self._wake_read.close()
        self._wake_write.close()

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
        self._wake_read.close()
        self._wake_write.close()

    def _has_work(self) -> bool:
        return bool(self._waiting or self._outbox or self._asked or self._closing)

    def _resume(self) -> None:
        """Continue where callers have left the line."""
        lease = self._lease
        if lease.is_spoilt:
            lease.is_spoilt = False
            self._line.close()  # it is dialed again, and the open calls are sent again
        while lease.unread:
            self._take_in(lease.unread.popleft())

    def _serve(self) -> None:
        poll = select.poll()
        wake_fd = self._wake_read.fileno()
        poll.register(wake_fd, select.POLLIN)
        polled = -1
        while not self._closing:
            if not self._line.ended():
                self._write()
            self._watch()
            if self._is_away():
                self._dial_again()
            if self._lease.may_rest and not (self._waiting or self._asked or self._line.ended()):
                self._lease.rest()
                self._resume()
                continue
            line_fd = self._line.fileno()
            if line_fd != polled:
                if polled >= 0:
                    poll.unregister(polled)
                if line_fd >= 0:
                    poll.register(line_fd)
                polled = line_fd
            if line_fd >= 0:
                flushed = self._line.flush(0.0)
                poll.modify(line_fd, select.POLLIN if flushed else select.POLLIN | select.POLLOUT)
            self._asleep = True
            timeout_ms = self._timeout_ms()
            ready = {descriptor for descriptor, _ in poll.poll(timeout_ms)}
            self._asleep = False
            if wake_fd in ready:
                self._wake_read.recv(4096)
            if line_fd in ready:
                self._read()
        self._write()
        self._send(wire.encode(Kind.LEAVE))
        self._line.flush(LAST_WORDS_S / 2)

    def _is_away(self) -> bool:
        """Whether the dispatcher may have been replaced by one that listens elsewhere."""
        if self._line.ended() or self._line.broken():
            return True
        return self._silent_s(time.monotonic()) > self._ask_after_s

    def _dial_again(self) -> None:
        """Dial again after losing the dispatcher; calls are kept for the one that replaces it."""
        ended = self._line.ended()
        if ended:
            self._line.close()
            self._fail_once_only()
        now = time.monotonic()
        if now - self._dialed_at < self._dial_every_s():
            return
        self._dialed_at = now
        if not ended and self._calls.once_only() and not accepts(self._dialer.connection):
            self._fail_once_only()
        line = self._dialer.again(self._line)
        if line is not None:
            self._line.close()
            self._fail_once_only()
            self._line = line
            self._number = None  # the new session's number is no reason to send all calls twice
            unsent = self._unsent()
            for _ in range(len(self._outbox)):
                self._outbox.popleft()  # its calls are sent now, all else was for the lost one
            self._send_again(unsent)

    def _dial_every_s(self) -> float:
        return DIAL_EVERY_S if self._waiting or self._asked else DIAL_IDLE_S

    def _timeout_ms(self) -> int | None:
        if self._closing:
            return 0
        if self._line.ended():
            return int(1000 * self._dial_every_s())
        if self._outbox:
            return 0
        return self._tick_ms if self._waiting or self._asked else None

    def _write(self) -> None:
        batch: list[Task] = []
        hints = NO_HINTS
        while self._outbox:
            item = self._outbox.popleft()
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

    def _take_in(self, frames: Sequence[Buffer]) -> None:
        self._heard_at = time.monotonic()
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
        elif message.kind is Kind.TELL:
            asked, future = self._asked.pop(message.data["id"], (None, None))
            if asked is not None and future is not None:
                told = decode_told(message, asked.what)
                if isinstance(told, FarmError):
                    future.set_exception(told)
                else:
                    future.set_result(told)
        elif message.kind is Kind.REFUSED:
            raise InvalidRequest(f"the farm refused this client's message: {message.data}")

    def _fail_all(self, error: FarmError) -> None:
        self._calls.fail_all(error)
        self._fail_questions(error)

    def _fail_questions(self, error: FarmError) -> None:
        for number in list(self._asked):
            _, future = self._asked.pop(number, (None, None))
            if future is not None:
                future.set_exception(error)

    # Recovery from loss

    def _send_again(self, unsent: Container[int] = frozenset()) -> None:
        """Resend all open calls after a lost connection; the dispatcher recognizes duplicates.

        unsent: calls that no dispatcher can have run.
        """
        for asked, _ in list(self._asked.values()):
            self._send(encode_question(asked))
        self._resend(self._waiting.copy(), unsent)

    def _resend(self, calls: dict[int, Waiting], unsent: Container[int] = frozenset()) -> None:
        for tasks, hints, is_new in messages(calls, unsent):
            self._send_many(tasks, hints, Kind.CALLS if is_new else Kind.CALLS_AGAIN)

    def _unsent(self) -> set[int]:
        """Return the calls in the outbox."""
        batches = [item[1] for item in self._outbox.copy() if not isinstance(item, list)]
        return {call_id for tasks in batches for call_id, _ in tasks}

    def _fail_once_only(self) -> None:
        self._calls.fail_once_only(self._unsent(), self._address())

    def _silent_s(self, now: float) -> float:
        """Return for how long a caller has waited without any word of the dispatcher."""
        return now - self._silent_since()

    def _silent_since(self) -> float:
        return max(self._heard_at, self._idle_at)

    def _watch(self) -> None:
        """Check a silent dispatcher; give up after the time limit."""
        now = time.monotonic()
        missed_s, self._watched_at = now - self._watched_at, now
        if missed_s > STOPPED_S:  # messages that came in this time are unread
            self._idle_at = min(now, self._silent_since() + missed_s)
        somebody_waits = bool(self._waiting or self._asked)
        if not somebody_waits or not self._somebody_waited:
            self._idle_at = now
        self._somebody_waited = somebody_waits
        self._resend(self._calls.refused(now))
        silent_s = self._silent_s(now)
        if self._line.ended() or silent_s > self._ask_after_s:
            self._calls.fail_late(now)
        if silent_s > self._patience_s:
            for some in _batches(list(self._waiting)):
                self._send(wire.encode(Kind.CANCEL, some))
            text = f"no word from the farm at {self._address()} for {silent_s:.0f} s"
            error = Unavailable(f"{text}; is it running?")
            self._calls.give_up(error)
            self._fail_questions(error)
            self._somebody_waited = False  # the next caller has the whole patience
        elif silent_s > self._ask_after_s and now - self._probed_at > self._ask_after_s:
            self._probed_at = now
            self._send(wire.encode(Kind.PROBE))


def _batches(ids: list[int]) -> Iterator[list[int]]:
    """Yield the ids of one message after another."""
    for first in range(0, len(ids), IDS_A_MESSAGE):
        yield ids[first : first + IDS_A_MESSAGE]
