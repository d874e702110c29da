"""The native client's end of the wire: many calls per message, many answers per message.

One background thread owns the line to the dispatcher. Callers put calls into an outbox and wake the
thread only if it sleeps; it sends all pending calls in few messages and delivers every outcome to
its caller. A call is kept until its outcome arrives, so that it can be sent again if the connection
or the dispatcher is lost in between.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import secrets
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NamedTuple

from farm.call import EMPTY_CONFIG, NO_HINTS, Buffer, Call, Hints, ModelInfo, Operation
from farm.errors import Cancelled, FarmError, InvalidInput, InvalidRequest, Unavailable
from farm.transports.connection import Connection
from farm.transports.dial import DIAL_EVERY_S, dial, dial_local
from farm.transports.identity import CLIENT_PREFIX
from farm.transports.line import Outcome, Receiver, as_it_is, submit
from farm.wire import messages as wire
from farm.wire.messages import Kind, Message

log = logging.getLogger(__name__)

CALLS_A_MESSAGE = 512
"""Larger messages cost no less per call, and delay the calls behind them (measured)."""

BYTES_A_MESSAGE = 4 * 1024**2

IDS_A_MESSAGE = 100_000
"""A fifth of the number of values allowed in a client's message."""

ASK_AFTER_SILENCE_S = 3.0
"""The dispatcher probes every second; after this silence the client asks whether it is known."""

TICK_MS = 500
"""How often the thread checks the time while a caller waits."""

LAST_WORDS_S = 5.0
"""Maximum time that `close` waits for the thread."""

Task = tuple[int, Call]


class _Waiting(NamedTuple):
    """A call without an outcome, and the receiver of its outcome."""

    call: Call
    hints: Hints
    since: float
    receiver: Receiver
    key: Any


class NativeLine:
    """A line to a farm's dispatcher; threads may share it, processes may not.

    lost_after_s: silence of the dispatcher after which calls fail with Unavailable; answer_s:
    timeout of a question about the farm itself. The line closes when it is no longer referenced.
    Raises Unavailable if the farm cannot be reached from here.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        lost_after_s: float = 30.0,
        answer_s: float = 10.0,
        heartbeat_s: float = 5.0,
    ) -> None:
        self._answer_s = answer_s
        self._end = _End(connection, lost_after_s=lost_after_s, heartbeat_s=heartbeat_s)
        self._pid = os.getpid()
        self._close = weakref.finalize(self, self._end.close)

    def send(
        self, calls: Sequence[tuple[Any, Call]], hints: Hints, receiver: Receiver
    ) -> Sequence[int]:
        """Send calls, each with a key, and deliver their outcomes to `receiver`; return their ids.

        Raises Unavailable if the line is closed.
        """
        if os.getpid() != self._pid:
            raise Unavailable("a client does not survive a fork: connect in each process")
        return self._end.send(calls, hints, receiver)

    def cancel(self, ids: Iterable[int]) -> bool:
        """Cancel calls; they then get no outcome. False if each of them already had one."""
        return self._end.cancel(ids)

    def names(self) -> list[str]:
        """Return the names of the models that the farm serves. Raises Unavailable."""
        return [info.name for info in self._models()]

    def describe(self, model: str, config: str) -> ModelInfo:
        """Return the description of one model for a config. Raises FarmError."""
        if config == EMPTY_CONFIG:
            for known in self._models():
                if known.name == model:
                    return known
        call = Call(model, Operation.DESCRIBE, config=config)
        info = submit(self, call, NO_HINTS, as_it_is).result().info
        if info is None:
            raise InvalidRequest(f"the farm answered without a description of {model!r}")
        return info

    def _models(self) -> list[ModelInfo]:
        return [ModelInfo.from_json(item) for item in self._end.ask("models", self._answer_s)]

    def status(self) -> dict[str, Any]:
        """Return workers, queues, rates and percentiles as JSON data. Raises Unavailable."""
        state: dict[str, Any] = self._end.ask("status", self._answer_s)
        return state

    def close(self) -> None:
        """Send a goodbye and close; calls without an outcome fail with Cancelled."""
        self._close()


class _End:
    """State shared by the callers and the thread, which may outlive its NativeLine."""

    def __init__(self, connection: Connection, *, lost_after_s: float, heartbeat_s: float) -> None:
        self._connection = connection
        self._lost_after_s = lost_after_s
        name = f"{socket.gethostname()}/{os.getpid()}-{secrets.token_hex(4)}"
        self._name = CLIENT_PREFIX.decode() + name
        self._line = dial(
            connection, self._name, heartbeat_s=heartbeat_s, on_return=self._send_again
        )
        # Shared. Each single step on these is atomic, so that no call needs a lock; whichever
        # thread removes an entry from `_waiting` settles it.
        self._ids = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._asked: dict[int, tuple[str, Future[Any]]] = {}
        self._outbox: deque[tuple[Hints, Sequence[Task]] | list[Buffer]] = deque()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._asleep = False
        self._closing = False
        self._closed = False
        # Used by the thread only.
        self._number: int | None = None
        self._heard_at = self._idle_at = self._probed_at = time.monotonic()
        self._dialed_at = 0.0
        self._somebody_waited = False
        self._thread = threading.Thread(target=self._run, name="farm client", daemon=True)
        self._thread.start()

    # Methods for callers

    def send(
        self, calls: Sequence[tuple[Any, Call]], hints: Hints, receiver: Receiver
    ) -> Sequence[int]:
        now = time.monotonic()
        waiting = self._waiting
        tasks = []
        for (key, call), call_id in zip(calls, self._ids, strict=False):
            waiting[call_id] = _Waiting(call, hints, now, receiver, key)
            tasks.append((call_id, call))
        self._leave((hints, tasks))
        ids = [call_id for call_id, _ in tasks]
        if self._closed and self.cancel(ids):
            raise Unavailable("the client is closed")
        return ids

    def cancel(self, ids: Iterable[int]) -> bool:
        taken = [i for i in ids if self._waiting.pop(i, None) is not None]
        if taken and not self._closed:
            for some in _batches(taken):
                self._leave(wire.encode(Kind.CANCEL, some))
        return bool(taken)

    def ask(self, what: str, timeout_s: float) -> Any:
        number = next(self._ids)
        future: Future[Any] = Future()
        self._asked[number] = what, future
        self._leave(wire.encode(Kind.ASK, {"id": number, "what": what}))
        try:
            if self._closed:
                raise Unavailable("the client is closed")
            return future.result(timeout_s)
        except TimeoutError:
            raise Unavailable(
                f"no answer from the farm at {self._connection.address()} within {timeout_s:g} s; "
                "is it running, and is the connection file its own?"
            ) from None
        finally:
            self._asked.pop(number, None)

    def _leave(self, item: tuple[Hints, Sequence[Task]] | list[Buffer]) -> None:
        self._outbox.append(item)
        if self._asleep:
            self._wake()

    def _wake(self) -> None:
        self._asleep = False
        with contextlib.suppress(OSError):  # full of wake-ups, or just closed
            self._wake_write.send(b"w")

    def close(self) -> None:
        self._closing = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(LAST_WORDS_S)

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

    def _serve(self) -> None:
        poll = select.poll()
        wake_fd = self._wake_read.fileno()
        poll.register(wake_fd, select.POLLIN)
        polled = -1
        while not self._closing:
            self._write()
            self._watch()
            if self._line.ended():
                self._dial_again()
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
            timeout_ms = 0 if self._outbox or self._closing else self._patience_ms()
            ready = {descriptor for descriptor, _ in poll.poll(timeout_ms)}
            self._asleep = False
            if wake_fd in ready:
                self._wake_read.recv(4096)
            if line_fd in ready:
                self._read()
        self._write()
        self._send(wire.encode(Kind.LEAVE))
        self._line.flush(LAST_WORDS_S / 2)

    def _dial_again(self) -> None:
        """Dial again after losing the dispatcher; calls are kept for the one that replaces it."""
        now = time.monotonic()
        self._line.close()
        if now - self._dialed_at < DIAL_EVERY_S:
            return
        self._dialed_at = now
        line = dial_local(self._connection, self._name)
        if line is not None:
            self._line = line
            self._send_again()

    def _patience_ms(self) -> int | None:
        if self._line.ended():
            return int(1000 * DIAL_EVERY_S)
        return TICK_MS if self._waiting or self._asked else None

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
                self._settle([(tasks[0][0], InvalidInput(f"the call cannot be sent: {error}"))])
                return
            for task in tasks:  # find the call at fault
                self._send_calls([task], hints, kind)
            return
        self._send(frames)

    def _send(self, frames: list[Buffer]) -> None:
        self._line.send(frames)  # no effect on an ended line: all calls are sent again

    def _read(self) -> None:
        while (frames := self._line.receive()) is not None:
            self._heard_at = time.monotonic()
            try:
                self._received(wire.decode(frames))
            except InvalidRequest as error:
                self._fail_all(error)  # it is unknown whose answers the message held

    def _received(self, message: Message) -> None:
        if message.kind is Kind.ANSWERS:
            self._settle(wire.decode_answers(message))
        elif message.kind is Kind.WELCOME:
            before, self._number = self._number, message.data
            if before not in (None, self._number):
                self._send_again()
        elif message.kind is Kind.TELL:
            what, future = self._asked.pop(message.data["id"], ("", None))
            if future is not None:
                future.set_result(message.data[what])
        elif message.kind is Kind.REFUSED:
            raise InvalidRequest(f"the farm refused this client's message: {message.data}")

    def _settle(self, outcomes: Iterable[tuple[int, Outcome]]) -> None:
        waiting = self._waiting
        touched: list[Receiver] = []
        last: Receiver | None = None
        for call_id, outcome in outcomes:
            entry = waiting.pop(call_id, None)
            if entry is None:
                continue  # cancelled, or answered twice after a lost connection
            _, _, _, receiver, key = entry
            receiver.put(key, outcome)
            if receiver is not last:
                last = receiver
                touched.append(receiver)
        for receiver in touched:
            receiver.flush()

    def _fail_all(self, error: FarmError) -> None:
        self._settle([(call_id, error) for call_id in list(self._waiting)])
        for number in list(self._asked):
            _, future = self._asked.pop(number, ("", None))
            if future is not None:
                future.set_exception(error)

    # Recovery from loss

    def _send_again(self) -> None:
        """Resend all open calls after a lost connection; the dispatcher recognizes duplicates."""
        now = time.monotonic()
        for number, (what, _) in list(self._asked.items()):
            self._send(wire.encode(Kind.ASK, {"id": number, "what": what}))
        for (hints, since), group in itertools.groupby(
            self._waiting.copy().items(), key=lambda item: (item[1].hints, item[1].since)
        ):
            if hints.deadline_s is not None:
                hints = replace(hints, deadline_s=hints.deadline_s - (now - since))
            self._send_many([(i, entry.call) for i, entry in group], hints, Kind.CALLS_AGAIN)

    def _watch(self) -> None:
        """Check a silent dispatcher; give up after the time limit."""
        now = time.monotonic()
        somebody_waits = bool(self._waiting)
        if not somebody_waits or not self._somebody_waited:
            self._idle_at = now
        self._somebody_waited = somebody_waits
        silent_s = now - max(self._heard_at, self._idle_at)
        if silent_s > self._lost_after_s:
            for some in _batches(list(self._waiting)):
                self._send(wire.encode(Kind.CANCEL, some))
            self._fail_all(
                Unavailable(
                    f"no word from the farm at {self._connection.address()} for {silent_s:.0f} s; "
                    "is it running?"
                )
            )
        elif silent_s > ASK_AFTER_SILENCE_S and now - self._probed_at > ASK_AFTER_SILENCE_S:
            self._probed_at = now
            self._send(wire.encode(Kind.PROBE))


def _batches(ids: list[int]) -> Iterator[list[int]]:
    """Yield the ids of one message after another."""
    for first in range(0, len(ids), IDS_A_MESSAGE):
        yield ids[first : first + IDS_A_MESSAGE]
