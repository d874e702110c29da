"""The lines of workers and supervisors to the dispatcher, from the start of a process to its end.

A worker joins over its line, and joins again where it is not known. Silence of the dispatcher alone
means little. A dispatcher that is stopped (SIGSTOP, `scontrol suspend`, a debugger) or busy for
long answers nothing, but continues later, and callers still wait for its answers. Meanwhile the
operating system accepts connections at its address. Once the dispatcher has ended, the operating
system refuses them; a host or network that is down does not answer at all.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace

from farm.call import Buffer, WorkerInfo
from farm.errors import InvalidRequest, Unavailable
from farm.machine.usage import UsageMeter
from farm.transports.connection import Connection
from farm.transports.dial import DIAL_EVERY_S, Dialer, accepts
from farm.transports.identity import worker_identity
from farm.wire import messages as wire
from farm.wire.messages import Kind
from farm.wire.usage import SPLITS_RUNS, Used

log = logging.getLogger(__name__)

LABELS = {SPLITS_RUNS: "yes"}
"""The abilities of every worker that farm hosts."""

LONGEST_LOOK_S = 1.0
"""Time between two reads of the line; after more, the process was suspended in between."""

ASK_AFTER_SILENCE_S = 3.0
"""The dispatcher probes every second; after this silence the worker asks whether it is known."""

DIALS = 3
"""How many consecutive connections, evenly spaced over the time limit, have to fail."""

LONGEST_SILENCE = 60
"""Number of time limits after which a dispatcher counts as lost although connections are accepted:
another program may have taken the port, and a job's workers must not wait for ever.
"""

REPORT_EVERY_S = 5.0
"""Interval of reports of the memory and processors that a worker uses, while it has calls."""

REPORT_IDLE_S = 60.0
"""Longest interval of the same while it is idle: hundreds of idle workers cost next to nothing."""

INTRODUCE_EVERY_S = 5.0
"""Interval at which a supervisor announces itself."""

LAST_WORDS_S = 2.0
"""Maximum time that a peer waits at its end until its last messages have left its process."""


class WorkerLine:
    """A worker's line, over which it joins, asks a silent dispatcher, and reports what it uses.

    For one thread at a time. dialed: the present connection; joined: the dispatcher has welcomed
    the present life of this worker, which begins again wherever the dispatcher does not know it.
    lost_after_s, pids: as for `WorkerHost`. Raises Unavailable.
    """

    def __init__(
        self, connection: Connection, info: WorkerInfo, lost_after_s: float, pids: Sequence[int]
    ) -> None:
        self._info = replace(info, labels={**info.labels, **LABELS})
        # One side's heartbeats are enough, and thousands of workers' would cost a core.
        self._dialer = Dialer(connection, worker_identity(info.name), heartbeat_s=None)
        self.dialed = self._dialer.dial()
        self.silence = DispatcherSilence(connection, lost_after_s)
        self.reports = UseReports(pids)
        self._refusal = ""
        self.joined = False
        self._life = secrets.token_hex(8)
        self._join_sent_at: float | None = None
        self._told = 0  # messages of this life that answered or recalled calls
        self._has_ended = False  # the line, and there is no other one yet

    def join(self, now: float) -> None:
        """Send a JOIN, again and again until a WELCOME comes: it may be lost with a connection."""
        if self._join_sent_at is None:
            self._told = 0
        if self._join_sent_at is None or now - self._join_sent_at > ASK_AFTER_SILENCE_S:
            self._join_sent_at = now
            self.dialed.send(wire.encode_join(self._life, self._info))

    def welcomed(self, life: object) -> None:
        """Note a WELCOME; one of an earlier life does not count."""
        self.joined |= life == self._life

    def begin_anew(self) -> None:
        """Begin another life: the dispatcher does not know this one."""
        self.joined = False
        self._life = secrets.token_hex(8)
        self._join_sent_at = None

    def refused(self, error: InvalidRequest) -> None:
        """Note a message that cannot be used, or that the dispatcher refuses one of this worker."""
        log.error("message from the dispatcher: %s", error)
        self._refusal = error.message

    def check(self) -> None:
        """Raise Unavailable if the dispatcher has refused to let the worker join, or is lost."""
        if self._refusal and not self.joined:
            address = self._dialer.connection.address()
            raise Unavailable(f"the dispatcher at {address}: {self._refusal}")
        if self.silence.is_lost():
            raise Unavailable(self.silence.described())

    def put(self, kind: Kind, data: object = None) -> None:
        """Send a message."""
        self.dialed.send(wire.encode(kind, data))

    def tell(self, frames: list[Buffer]) -> bool:
        """Send a message that answers or recalls calls; False if the line has ended."""
        if not self.dialed.send(frames):
            return False
        self._told += 1
        return True

    def offer_none(self, *, keeps_sequences: bool) -> None:
        """Offer no slots but those for its sequences, because the worker drains."""
        self.put(Kind.RESIZE, [0, self._info.slots] if keeps_sequences else 0)

    def leave(self) -> None:
        """Send a goodbye, which lets the dispatcher notice whether a message was lost."""
        self.put(Kind.LEAVE, ["drained", self._told])

    def tend(self, now: float, *, heard: bool, busy: bool) -> bool:
        """Dial again, ask a silent dispatcher and report what the worker uses, if due.

        For after each look at the line; heard: there were messages. Returns whether there is
        another line, over which another life begins.
        """
        self._has_ended = not heard and self.dialed.ended()
        is_new = self._has_ended and self._dial_again()
        if not (self._has_ended or self.dialed.may_come_back):
            heard = True  # the end of the line would be noticed
        may_be_silent = not heard or self.dialed.may_come_back or self.silence.silent_s
        if may_be_silent and self.silence.lasts(now, heard=heard):
            self.put(Kind.PROBE)
        if busy and self.reports.after_s > REPORT_EVERY_S:
            self.reports.has_calls()
        if self.joined and now >= self.reports.at:
            self.put(Kind.PROBE, self.reports.next(now, busy=busy)._asdict())
        return is_new

    def _dial_again(self) -> bool:
        """Dial again after the dispatcher is gone or has given this worker up."""
        self.dialed.close()
        line = self._dialer.again(self.dialed, DIAL_EVERY_S)
        if line is None:
            return False
        self.dialed, self._has_ended = line, False
        self.begin_anew()
        return True

    def turn_s(self, longest_s: float | None = None, *, now: float = 0.0) -> float:
        """Return how long to sleep: not long after the line has ended, to dial again soon.

        longest_s: None for an idle worker, which sleeps to its next report if its line wakes it
        when it ends; any other line has to be watched for silence. now: for an idle worker.
        """
        if self._has_ended:
            return DIAL_EVERY_S
        if longest_s is not None:
            return longest_s
        if self.dialed.may_come_back or not self.joined:
            return LONGEST_LOOK_S
        left_s = self.reports.at - now
        # Add a millisecond: the wait rounds down, and would busy-wait for the last one.
        return left_s + 0.001 if left_s > 0 else 0.001

    def close(self) -> None:
        """Close; recently sent messages have two seconds to leave."""
        self.dialed.flush(LAST_WORDS_S)
        self.dialed.close()


class DispatcherSilence:
    """The time without a word of the dispatcher, and whether it is lost.

    lost_after_s: the time limit.
    """

    def __init__(self, connection: Connection, lost_after_s: float) -> None:
        self._connection = connection
        self._dial_every_s = lost_after_s / DIALS
        self._dialed = 0
        self._failed = 0
        self.silent_s = 0.0
        self._looked_at = time.monotonic()
        self._asked_at = 0.0

    def lasts(self, now: float, *, heard: bool) -> bool:
        """Note whether the dispatcher was heard; return whether to ask it for a word now."""
        passed_s, self._looked_at = now - self._looked_at, now
        if heard:
            self.silent_s = 0.0
            return False
        self.silent_s += min(passed_s, LONGEST_LOOK_S)
        if self.silent_s > ASK_AFTER_SILENCE_S and now - self._asked_at > ASK_AFTER_SILENCE_S:
            self._asked_at = now
            return True
        return False

    def is_lost(self) -> bool:
        """Whether the dispatcher is lost; call it repeatedly. It may take some seconds.

        True if it could not be reached during the time limit, or was silent for very long.
        """
        due = int(self.silent_s / self._dial_every_s)
        if due < self._dialed:  # it was heard in between
            self._dialed = self._failed = 0
        if due > self._dialed:
            self._dialed = due
            self._failed = 0 if accepts(self._connection) else self._failed + 1
        return self._failed >= DIALS or due >= DIALS * LONGEST_SILENCE

    def described(self) -> str:
        """Return what is known, for people."""
        return (
            f"no word from the dispatcher at {self._connection.address()} "
            f"for {self.silent_s:.0f} s; is it running, and is the connection file current?"
        )


class UseReports:
    """The reports of one worker's use; at: when the next one is due, by the monotonic clock.

    after_s: the time from one to the next. pids: the processes of this machine that work for it.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._meter = UsageMeter(pids)
        self.at = self._last_at = 0.0
        self.after_s = REPORT_EVERY_S

    def has_calls(self) -> None:
        """Note that the worker is about to run calls: it reports more often then."""
        self.after_s = REPORT_EVERY_S
        self.at = min(self.at, self._last_at + REPORT_EVERY_S)

    def next(self, now: float, *, busy: bool) -> Used:
        """Return the report that is due."""
        self._last_at, self.at = now, now + self.after_s
        if not busy:
            self.after_s = min(2 * self.after_s, REPORT_IDLE_S)
        return Used(*self._meter.read())


class Reporter:
    """A supervisor's line to the dispatcher: reports worker deaths, receives the stop request.

    For one thread at a time. connection: the dispatcher's addresses.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        """`name` is unique for this supervisor, like `node3/4411`."""
        self.connection = connection
        self._dialer = Dialer(connection, f"supervisor:{name}")
        self._line = self._dialer.dial()
        self._stop_asked = False
        self._to_restart: list[str] = []
        self._introduce()

    def _introduce(self) -> None:
        self._introduced_at = time.monotonic()
        self._line.send(wire.encode(Kind.LOST))

    def lost(self, loss: wire.Loss) -> None:
        """Report that a worker died, or is about to be killed."""
        self._line.send(wire.encode_loss(loss))

    def stop_asked(self) -> bool:
        """Whether the dispatcher has asked for everything to end; poll it."""
        while (frames := self._line.receive()) is not None:
            try:
                message = wire.decode(frames)
                self._stop_asked |= message.kind is Kind.STOP
                if message.kind is Kind.RESTART and isinstance(message.data, list):
                    self._to_restart += map(str, message.data)
            except InvalidRequest as error:
                log.error("message from the dispatcher: %s", error)
        if self._line.ended() and (line := self._dialer.again(self._line)) is not None:
            self._line.close()
            self._line = line
            self._introduce()
        if time.monotonic() - self._introduced_at > INTRODUCE_EVERY_S:
            self._introduce()  # for a dispatcher that was restarted
        return self._stop_asked

    def to_restart(self) -> Sequence[str]:
        """Return the workers to restart that `stop_asked` has heard of since the last call."""
        workers, self._to_restart = self._to_restart, []
        return workers

    def close(self) -> None:
        """Close; recently sent messages have two seconds to leave."""
        self._line.flush(LAST_WORDS_S)
        self._line.close()
