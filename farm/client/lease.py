"""Decides which thread uses a client's line: the client's own thread, or a caller's.

The client's thread serves a line in general. For a caller that makes one blocking call after
another it is a detour: two threads of one program wake each other for every message. So the
client's thread rests between the calls of such a caller, and the caller uses the line itself. It
does only the usual: it sends its call, and waits a moment for a message with its result. The
client's thread does everything else, as soon as the caller has left the line. It takes the line
back when there is something to do, and when no caller has used the line for a moment: an idle line
needs a thread that notices its end.
"""

from __future__ import annotations

import select
import threading
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING

from farm.call import Buffer, Hints, Result
from farm.client.line import Outcome
from farm.client.open_calls import Task
from farm.errors import InvalidRequest
from farm.machine.wake_pipe import WakePipe
from farm.transports.stream.line import UNLIMITED, StreamLine
from farm.wire import messages as wire
from farm.wire.messages import Kind

if TYPE_CHECKING:
    from farm.client.native_end import End

LEAD_MS = 200
"""Time for which a caller waits on the line itself; a hand-over matters only to shorter calls."""

REST_S = 0.5
"""The thread takes the line back if no caller has used it for so long."""

LOST_AFTER_RESTS = 6
"""After so many rests with the same caller on the line, that caller counts as lost.

A caller has the line for 0.2 s at most. It can only have been interrupted twice within
microseconds while it gave the line back."""

_LEASE = 0


class LoneCall:
    """The receiver of the outcome of one blocking call, and the caller's claim to the line.

    touches_line: the caller is in the middle of sending or receiving. If it is interrupted there,
    as by Ctrl-C, it is unknown how much of a message has been sent or read.
    """

    __slots__ = ("_arrived", "thread", "touches_line")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.touches_line = False
        self._arrived: SimpleQueue[Outcome] = SimpleQueue()

    def put(self, key: object, outcome: Outcome) -> None:
        """Deliver the outcome from another thread."""
        self._arrived.put(outcome)

    def flush(self) -> None:
        """Do nothing: `put` has woken the caller."""

    def wait(self) -> Outcome:
        """Wait until the outcome has arrived, and return it."""
        return self._arrived.get()

    def exchange(
        self, call_id: int, frames: list[Buffer], line: StreamLine, wake_fd: int, lease: Lease
    ) -> Result | None:
        """Send the call and return its result; None if the client's thread has to go on.

        wake_fd: readable when the client's thread is needed.
        """
        self.touches_line = True
        sent = line.send(frames) and (not line.queued or line.flush(0.0))
        self.touches_line = False
        if not sent:
            return None
        poll = lease.polls.pop(line, None)
        if poll is None:
            lease.polls.clear()  # of lines that have ended
            poll = select.poll()
            try:
                for fd in (line.fileno(), wake_fd):
                    poll.register(fd, select.POLLIN)
            except ValueError:
                return None  # -1: a signal handler has closed the client
        while True:
            ready = poll.poll(LEAD_MS)
            if not ready or wake_fd in dict(ready):
                return None
            result = None
            self.touches_line = True
            while lease.held_by() is self and (message := line.receive(UNLIMITED)) is not None:
                found = _result(message, call_id)
                if found is None:
                    lease.unread.append(message)
                else:
                    result = found
                if line.drained:
                    break
            self.touches_line = False
            if result is not None or lease.unread or lease.held_by() is not self or line.ended():
                lease.polls[line] = poll
                return result


def _result(frames: Sequence[Buffer], call_id: int) -> Result | None:
    """Return the result in a message that contains nothing else."""
    try:
        message = wire.decode(frames)
        if message.kind is not Kind.ANSWERS:
            return None
        answers = wire.decode_some_answers(message)
    except InvalidRequest:
        return None  # whoever reads it again reports it
    if type(answers) is not list or answers[0][0][0] != call_id:
        return None
    outcome = answers[0][0][1]
    return outcome if isinstance(outcome, Result) else None


class Lease:
    """The right to use the line. Signal handlers may call these methods, too.

    A holder is identified by an object, so that it can never release the claim of another one.
    owner: stands for the client's thread.
    """

    def __init__(self, owner: End) -> None:
        self._owner = owner
        self._holders: dict[int, object] = {_LEASE: owner}  # each step on it is atomic
        self._needed = threading.Event()
        self._taken = 0
        self.polls: dict[StreamLine, select.poll] = {}
        """The poll object of the last caller, by line, while no caller uses it."""
        self.unread: deque[Sequence[Buffer]] = deque()
        """Messages that callers have read and left to the thread."""
        self.is_spoilt = False
        """A caller was interrupted in the middle of a message: the line cannot be used further."""
        self.may_rest = False
        """A caller has found the line in use, so the thread should rest when it has no work."""

    def held_by(self) -> object | None:
        """Return the holder; None if the line is free."""
        return self._holders.get(_LEASE)

    def take(self, holder: object) -> bool:
        """Take the line if it is free; return whether `holder` has it now."""
        self._taken += 1
        if self._holders.setdefault(_LEASE, holder) is holder:
            return True
        self.may_rest = True
        return False

    def give_back(self, lone: LoneCall) -> None:
        """Free the line if this call has it, and wake the thread if that has work."""
        if self._holders.get(_LEASE) is lone:
            if lone.touches_line:
                self.is_spoilt = True
            self._holders.pop(_LEASE, None)
            if self.unread or self.is_spoilt or self._owner.has_work():
                self._needed.set()

    def call_thread(self) -> bool:
        """Wake the thread if it rests; return whether a caller has the line, until it leaves it.

        The calling thread may itself be in the middle of a call that has the line, if it runs a
        signal handler. That call then leaves the line to the client's thread.
        """
        holder = self._holders.get(_LEASE)
        if holder is self._owner:
            return False
        if isinstance(holder, LoneCall) and holder.thread == threading.get_ident():
            self.give_back(holder)
        self._needed.set()
        return holder is not None

    def mend(self) -> bool:
        """Return whether the line was spoilt; for the thread, which opens another one then."""
        spoilt, self.is_spoilt = self.is_spoilt, False
        return spoilt

    def rest(self) -> None:
        """Leave the line to callers until the thread is needed; for the thread."""
        self._holders.pop(_LEASE, None)
        last: object | None = None
        rests = 0
        while True:
            count = self._taken
            self._needed.clear()
            rested = not self._is_needed() and not self._needed.wait(REST_S)
            holder = self._holders.get(_LEASE)
            rests = rests + 1 if rested and holder is not None and holder is last else 0
            if rests >= LOST_AFTER_RESTS:
                self.is_spoilt = True
                self._holders.pop(_LEASE, None)
            last = holder
            idle = rested and self._taken == count
            if (idle or self._is_needed()) and self.take(self._owner):
                self.may_rest = not idle
                return

    def _is_needed(self) -> bool:
        """Whether there is work for the thread, and no caller uses the line."""
        if _LEASE in self._holders:
            return False
        return bool(self.unread) or self.is_spoilt or self._owner.has_work()


class Outbox:
    """The work that callers leave to the thread, which they wake. Each step on it is atomic."""

    def __init__(self, lease: Lease) -> None:
        self.items: deque[tuple[Hints, Sequence[Task]] | list[Buffer]] = deque()
        self.wakes = WakePipe()
        self._asleep = False
        self._lease = lease

    def put(self, item: tuple[Hints, Sequence[Task]] | list[Buffer]) -> None:
        """Leave calls, or a message, and wake the thread, or the caller in its place."""
        self.items.append(item)
        if self._lease.call_thread() or self._asleep:
            self.wake()

    def wake(self) -> None:
        """Wake whoever sleeps."""
        self._asleep = False
        self.wakes.wake()

    def sleeps(self, asleep: bool) -> None:
        """Note that the thread is about to sleep, or has slept."""
        self._asleep = asleep

    def unsent(self) -> set[int]:
        """Return the calls in it."""
        batches = [item[1] for item in self.items.copy() if not isinstance(item, list)]
        return {call_id for tasks in batches for call_id, _ in tasks}

    def clear(self) -> None:
        """Drop what has been put here so far."""
        for _ in range(len(self.items)):
            self.items.popleft()
