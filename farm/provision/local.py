"""The supervisor of one machine's model processes: starts them, watches them, ends them."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from farm.provision.child import Child, OutOfMemory, in_words
from farm.transports.connection import read_connection
from farm.transports.zmq_worker import EXIT_ORPHANED, Reporter

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
"""Deaths and time limits wake the supervisor by themselves; this is for what cannot."""

DYING_S = 0.01
"""A process closes its pipes some moments before it is gone."""

GOODBYE_S = 5.0
"""A process that said goodbye may still be held by threads of its model; then it is killed."""

HURRY_S = 2.0
"""After a second signal, what still runs is killed this much later and handed back."""

START_CRASHES = 3
"""So many crashes while loading, before any process ever served, and the supervisor gives up."""

TIME_LIMIT = "time limit"


class WorkersFailed(Exception):
    """The model processes cannot serve: one line why, and the end of a log as `detail`."""

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class Reports(Protocol):
    """The supervisor's line to the dispatcher."""

    def lost(
        self, worker: str, reason: str, *, running: Sequence[int] | None, time_limit: bool = False
    ) -> None: ...

    def stop_asked(self) -> bool: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What the supervisor is to run, and how.

    models: as `farm.worker.load` understands them; count: model processes; connect: connection
    file; logs: folder for what models print. devices: CUDA devices, dealt out in turn.
    time_limit_s: a process whose model call takes longer is killed. ends_at: Unix time at which
    the machine is taken away. After a crash a process starts again at once, then after first_s,
    twice that, ... at most longest_s; one that served for good_while_s has a clean slate.
    """

    models: Sequence[str]
    count: int
    connect: Path
    logs: Path
    devices: Sequence[str] = ()
    time_limit_s: float | None = None
    ends_at: float | None = None
    first_s: float = 0.25
    longest_s: float = 30.0
    good_while_s: float = 10.0


@dataclass(slots=True)
class _Seat:
    """One of the `count` places; its processes come and go.

    crashes: in a row; orphaned: its last process found no dispatcher; served: some process of it
    has loaded its models; over: there will not be another one.
    """

    number: int
    child: Child | None = None
    start_at: float = 0.0
    crashes: int = 0
    orphaned: bool = False
    served: bool = False
    over: bool = False


class Workers:
    """Keeps `count` model processes alive until drained; each dials in to the dispatcher itself.

    ready: done when each process has loaded its models. ended: done when all processes are gone.
    Both raise WorkersFailed when the models cannot be served. Every death is reported to the
    dispatcher with its reason. All processes end with this one, even when it is killed.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.ready: Future[None] = Future()
        self.ended: Future[None] = Future()
        self._host = socket.gethostname()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        # Not when the processes have ended: a signal may still come.
        weakref.finalize(self, _close, self._wake_read, self._wake_write)
        # Asked for by any thread or signal handler.
        self._draining = False
        self._kill_at: float | None = None
        # The supervising thread's own.
        self._seats = [_Seat(number) for number in range(settings.count)]
        self._failure: WorkersFailed | None = None
        self._out_of_memory = OutOfMemory()

    def start(self) -> None:
        """Start the processes. Raises Unavailable when the connection file cannot be used."""
        connection = read_connection(self.settings.connect)
        self.settings.logs.mkdir(parents=True, exist_ok=True)
        reports = Reporter(connection, f"{self._host}/{os.getpid()}-{id(self):x}")
        threading.Thread(
            target=self._supervise, args=(reports,), name="supervisor", daemon=True
        ).start()

    def drain(self) -> None:
        """Finish what runs, hand back what has not begun, end. Safe in signal handlers."""
        self._draining = True
        self._wake()

    def hurry(self, grace_s: float = HURRY_S) -> None:
        """Drain, but kill what still runs after `grace_s` seconds; its calls run elsewhere."""
        self._kill_at = time.monotonic() + grace_s
        self.drain()

    def stop(self, grace_s: float) -> None:
        """Hurry, and wait until all processes are gone."""
        self.hurry(grace_s)
        wait_for([self.ended])

    def drain_on_signals(self) -> None:
        """SIGTERM, SIGINT and SIGUSR1 drain, a second one hurries. In the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda *_: self.hurry() if self._draining else self.drain())

    def pids(self) -> list[int]:
        """The processes that live now."""
        return [seat.child.pid for seat in self._seats if seat.child is not None]

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_write, b"w")

    # The supervising thread

    def _supervise(self, reports: Reports) -> None:
        try:
            while not all(seat.over for seat in self._seats):
                now = time.monotonic()
                self._draining = self._draining or reports.stop_asked()
                for seat in self._seats:
                    self._look_after(seat, reports, now)
                self._tell_ready()
                self._out_of_memory.look()
                self._wait(now)
        except BaseException as error:
            log.exception("the supervisor fails")
            self._failure = WorkersFailed(f"the supervisor failed: {error!r}")
        finally:
            for seat in self._seats:
                if seat.child is not None:
                    seat.child.close()
                    seat.child = None
            reports.close()
            self._finish()

    def _finish(self) -> None:
        for future in (self.ready, self.ended):
            if future.done():
                continue
            if self._failure is not None:
                future.set_exception(self._failure)
            else:
                future.set_result(None)

    def _tell_ready(self) -> None:
        if not self.ready.done() and all(seat.served for seat in self._seats):
            self.ready.set_result(None)

    def _wait(self, now: float) -> None:
        """Until a process says something or dies, something is due, or somebody asks."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        due = [now + LOOK_EVERY_S]
        if self._kill_at is not None:
            due.append(self._kill_at)
        for seat in self._seats:
            if seat.child is not None:
                if seat.child.talks:
                    poll.register(seat.child.status, select.POLLIN)
                due.append(self._next_look(seat.child, now))
            elif not seat.over:
                due.append(seat.start_at)
        # One millisecond more: it rounds down, and would turn idly until the moment.
        poll.poll(1 + 1000 * max(0.0, min(due) - now))
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def _next_look(self, child: Child, now: float) -> float:
        """When the child may be due to be killed; a call that begins now may be at its limit."""
        if not child.talks:
            return now + DYING_S
        if child.doom:
            return now + LOOK_EVERY_S
        due = [now + LOOK_EVERY_S if child.kill_at is None else child.kill_at]
        if self.settings.time_limit_s is not None:
            due.append((child.busy_since() or now) + self.settings.time_limit_s)
        return min(due)

    def _look_after(self, seat: _Seat, reports: Reports, now: float) -> None:
        child = seat.child
        if child is None:
            if self._draining:
                seat.over = True
            elif not seat.over and now >= seat.start_at:
                self._start(seat, now)
            return
        code = child.code()
        child.listen()
        seat.served = seat.served or child.ready_at is not None
        if code is not None:
            self._gone(seat, child, code, reports, now)
            return
        if self._draining and not child.told_to_drain:
            child.drain()
            if child.ready_at is None:
                child.kill_at = now  # it still loads: nothing to lose
        if (child.done or not child.talks) and child.kill_at is None:
            child.kill_at = now + GOODBYE_S
        self._end_if_due(child, reports, now)

    def _end_if_due(self, child: Child, reports: Reports, now: float) -> None:
        if child.doom:
            return
        limit_s = self.settings.time_limit_s
        running = child.running()
        busy = running is not None and running.tasks != ()
        if (
            limit_s is not None
            and running is not None
            and busy
            and now >= running.since_s + limit_s
        ):
            child.doom = TIME_LIMIT
            # Said before the kill, so that the dispatcher does not take it for a mere loss.
            self._report(child, f"time limit of {limit_s:g} s", reports, time_limit=True)
        elif self._kill_at is not None and now >= self._kill_at:
            child.doom = "stopped before it had finished"
            self._report(child, child.doom, reports)
        elif child.kill_at is not None and now >= child.kill_at:
            child.doom = "did not end by itself"
        if child.doom:
            child.kill()

    def _report(
        self, child: Child, reason: str, reports: Reports, *, time_limit: bool = False
    ) -> None:
        if child.worker and not child.done:
            running = child.running()
            tasks = None if running is None else running.tasks
            reports.lost(child.worker, reason, running=tasks, time_limit=time_limit)

    def _start(self, seat: _Seat, now: float) -> None:
        settings = self.settings
        environment = dict(os.environ)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (cores or 1) // settings.count)))
        arguments = [*settings.models, "--connect", str(settings.connect)]
        if settings.devices:
            device = settings.devices[seat.number % len(settings.devices)]
            environment["CUDA_VISIBLE_DEVICES"] = device
            arguments += ["--device", device]
        if settings.ends_at is not None:
            arguments += ["--ends-at", str(settings.ends_at)]
        path = settings.logs / f"worker-{self._host}-{os.getpid()}-{seat.number}.log"
        try:
            with path.open("a") as output:
                output.write(f"--- farm starts a worker process, {time.strftime('%F %T %z')} ---\n")
            seat.child = Child(arguments, log=path, environment=environment)
        except OSError as error:
            self._crashed(seat, f"it cannot be started: {error}", "", now)

    # Deaths

    def _gone(self, seat: _Seat, child: Child, code: int, reports: Reports, now: float) -> None:
        """A process has ended: was that its goodbye, a crash, or the end of all?"""
        reason = in_words(code, out_of_memory=self._out_of_memory.happened())
        if not child.doom and code != EXIT_ORPHANED:
            self._report(child, reason, reports)
        seat.child = None
        last_lines = child.last_lines()
        child.close()
        was_orphaned, seat.orphaned = seat.orphaned, code == EXIT_ORPHANED
        if child.done or self._draining:
            seat.over = True
        elif was_orphaned and seat.orphaned:
            seat.over = True
            self._failure = WorkersFailed("the dispatcher cannot be reached", detail=last_lines)
        elif child.error and not any(s.served for s in self._seats):
            self._give_up(child.error, child.log, "")
        elif child.doom == TIME_LIMIT:
            seat.start_at = now
        else:
            if child.ready_at is not None and now - child.ready_at >= self.settings.good_while_s:
                seat.crashes = 0
            self._crashed(seat, child.error or child.doom or reason, last_lines, now, child)

    def _crashed(
        self, seat: _Seat, reason: str, last_lines: str, now: float, child: Child | None = None
    ) -> None:
        """Start again: at once after the first crash of one that served, else ever later."""
        seat.crashes += 1
        loaded = child is not None and child.ready_at is not None
        again = seat.crashes - 2 if loaded else seat.crashes - 1
        delay_s = 0.0 if again < 0 else self.settings.first_s * 2.0 ** min(again, 60)
        delay_s = min(delay_s, self.settings.longest_s)
        seat.start_at = now + delay_s
        when = "died" if loaded else "crashes at start"
        where = child.log if child is not None else self.settings.logs
        if not any(s.served for s in self._seats) and seat.crashes >= START_CRASHES:
            self._give_up(f"a worker process {when}: {reason}", where, last_lines)
            return
        log.warning(
            "worker process %s %s: %s; starting again in %.2g s; its log is %s, which ends:\n%s",
            child.worker or child.pid if child is not None else seat.number,
            when,
            reason,
            delay_s,
            where,
            last_lines,
        )

    def _give_up(self, message: str, where: Path, last_lines: str) -> None:
        """No process has ever served: what is wrong will not mend itself."""
        self._failure = WorkersFailed(f"{message} (log: {where})", detail=last_lines)
        self._draining = True


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
