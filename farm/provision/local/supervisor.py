"""The supervisor of one machine's model processes: starts them, watches them, ends them."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from farm.errors import LossCause, Unavailable
from farm.machine.resources import allow_many_open_files
from farm.machine.wake_pipe import WakePipe
from farm.monitoring.repetitions import Repetitions, shape_of
from farm.provision.local.child import Child, OutOfMemory
from farm.provision.local.process import REPLACED
from farm.provision.local.starter import Starter, WorkerSettings
from farm.provision.local.stops import child_events
from farm.transports.connection import Connection, read_worker_connection
from farm.wire.messages import Loss
from farm.worker.host.host import EXIT_ORPHANED
from farm.worker.host.line import Reporter
from farm.worker.mpi.world import WorldError
from farm.worker.specs import most_servers

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
"""Interval of checks for events that do not wake the supervisor, unlike deaths and time limits."""

DYING_S = 0.01
"""A process closes its pipes some moments before it ends."""

GOODBYE_S = 5.0
"""After its goodbye a process may be held by threads of its model; it is killed after this time."""

HURRY_S = 2.0
"""After a second signal, processes still running are killed this much later."""

START_CRASHES = 3
"""The supervisor gives up after this many crashes during loading, if no process ever served."""

KILLED_AGAIN_S = 60.0
"""A signal from outside ends a process that loads; if another one comes so soon, it crashes."""

TIME_LIMIT = "time limit"

RESTARTED = "restarted by the farm's owner"


class WorkersFailed(Exception):
    """The model processes cannot serve: one line with the reason; `detail` is the end of a log."""

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


@dataclass(slots=True)
class _Seat:
    """One of the `count` places, each for a succession of processes.

    starts: of processes; crashes: in a row; killed_at: when a signal from outside last ended one
    that loaded; orphaned: its last process found no dispatcher; served: one of its processes has
    loaded its models; over: it will not be restarted.
    """

    number: int
    log: Path
    child: Child | None = None
    start_at: float = 0.0
    starts: int = 0
    crashes: int = 0
    killed_at: float = -math.inf
    orphaned: bool = False
    served: bool = False
    over: bool = False

    def killed_again(self, now: float) -> bool:
        """Note a signal from outside at a start; return whether there was another one lately."""
        before_s, self.killed_at = now - self.killed_at, now
        return before_s <= KILLED_AGAIN_S


class _EndRequests:
    """The requests to a supervisor, made by any thread and by signal handlers.

    draining: to finish what runs, and to end; kill_at: when to kill what still runs, on the
    monotonic clock. wakes: wakes the supervising thread.
    """

    def __init__(self) -> None:
        self.draining = False
        self.kill_at: float | None = None
        self.wakes = WakePipe()
        # Not when the processes have ended: a signal may still come.
        weakref.finalize(self, self.wakes.close)

    def drain(self) -> None:
        """Finish what runs, and end."""
        self.draining = True
        self.wakes.wake()

    def hurry(self, grace_s: float) -> None:
        """Drain, but for `grace_s` seconds at most."""
        self.kill_at = time.monotonic() + grace_s
        self.drain()


class Deaths(Repetitions):
    """The warnings about processes that died and are started again.

    A supervisor has no event loop, so it calls `report_if_due` at each look.
    """

    def __init__(self) -> None:
        super().__init__(log, "worker processes died %d more times")
        self._report_at = math.inf

    def died(self, number: int, what: str, reason: str, then: str) -> None:
        """Report a death. number: of the process; what, reason: in words; then: the next step."""

        def line(count: int) -> str:
            if count == 1:
                return f"worker process {number} {what}: {reason}; {then}"
            times = f"{count} times: {reason}; the last was process {number}"
            return f"worker processes {what} {times}, {then}"

        self.happened((what, shape_of(reason)), logging.WARNING, 1, line)

    def report_later(self, seconds: float) -> None:
        """Let the deaths that are only counted be due after this number of seconds."""
        self._report_at = time.monotonic() + seconds

    def report_if_due(self, now: float) -> None:
        """Report the deaths that were only counted, if it is time. now: monotonic time."""
        if now >= self._report_at:
            self._report_at = math.inf
            self.report()


class Workers:
    """Keeps `count` model processes alive until drained; each connects to the dispatcher itself.

    name: the farm reaches it by this. ready: done when the farm has accepted each process, or when
    all are gone and `ended` is done too. ended: done when all processes are gone. Both raise
    WorkersFailed if the models cannot be served. Every death is reported to the dispatcher with its
    reason. All processes end with this one, even if it is killed.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        count = max(settings.count, most_servers(settings.models))
        self.settings = settings = replace(settings, count=count)
        self.ready: Future[None] = Future()
        self.ended: Future[None] = Future()
        for future in (self.ready, self.ended):
            future.set_running_or_notify_cancel()  # so that no waiter can cancel it
        host = socket.gethostname()
        self.name = f"{host}/{os.getpid()}-{id(self):x}"
        self._requests = _EndRequests()
        self._thread = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        # Used by the supervising thread only.
        log_name = f"worker-{host}-{os.getpid()}"
        self._seats = [
            _Seat(number, settings.logs / f"{log_name}-{number}.log")
            for number in range(settings.count)
        ]
        self._failure: WorkersFailed | None = None
        self._starter = Starter(settings, self.name)
        self._out_of_memory = OutOfMemory()
        self._deaths = Deaths()

    def start(self) -> None:
        """Start the processes. Raises Unavailable if the connection file cannot be used.

        Raises WorkersFailed if there is no MPI to start ranks with.
        """
        connection = read_worker_connection(self.settings.connect)
        open_files = allow_many_open_files()
        if self.settings.launch is not None:
            try:
                self.settings.launch.check(self.settings.count, open_files)
            except WorldError as error:
                raise WorkersFailed(str(error)) from None
        self.settings.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._reports = Reporter(connection, self.name)
        self._thread.start()

    @property
    def connection(self) -> Connection:
        """The dispatcher's addresses for workers."""
        return self._reports.connection

    def drain(self) -> None:
        """Finish running calls, recall those not begun, and end. Safe in signal handlers."""
        self._requests.drain()

    def hurry(self, grace_s: float = HURRY_S) -> None:
        """Drain, but kill what runs after `grace_s` seconds; its calls are retried elsewhere."""
        self._requests.hurry(grace_s)

    def stop(self, grace_s: float) -> None:
        """Hurry, and wait until all processes are gone."""
        self.hurry(grace_s)
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def draining(self) -> bool:
        """Whether the processes were asked to end."""
        return self._requests.draining

    def pids(self) -> list[int]:
        """The ids of the live processes."""
        return [seat.child.pid for seat in self._seats if seat.child is not None]

    def joined(self) -> int:
        """Return the number of processes that the farm has accepted."""
        children = [seat.child for seat in self._seats]
        return sum(child is not None and child.status.joined for child in children)

    # The supervising thread

    def _supervise(self) -> None:
        spoke: set[int] = set()  # the status pipes with something to read
        try:
            while not all(seat.over for seat in self._seats):
                now = time.monotonic()
                if self._reports.stop_asked() and not self.draining:
                    self.drain()
                self._restart(self._reports.to_restart())
                self._starter.look(now)
                all_quiet = self._all_quiet()
                for seat in self._seats:
                    child = seat.child if all_quiet else None
                    if child is None or not child.is_quiet() or child.fileno() in spoke:
                        self._look_after(seat, now)
                seats = sum(not seat.over for seat in self._seats)
                if not self.ready.done() and 0 < seats == self.joined():
                    self.ready.set_result(None)
                self._deaths.report_if_due(now)
                self._out_of_memory.look()
                if not all(seat.over for seat in self._seats):
                    spoke = self._wait(now)
        except BaseException as error:
            log.exception("the supervisor fails")
            self._failure = WorkersFailed(f"the supervisor failed: {error!r}")
        finally:
            for seat in self._seats:
                if seat.child is not None:
                    seat.child.close()
                    seat.child = None
            self._starter.close()
            self._deaths.report()
            self._reports.close()
            self._finish()

    def _all_quiet(self) -> bool:
        """Whether only processes that are not quiet need a look: a look at hundreds takes long."""
        ending = self.draining or self._requests.kill_at is not None
        return not (ending or self.settings.time_limit_s is not None or child_events())

    def _finish(self) -> None:
        for future in (self.ended, self.ready):
            if not future.done() and self._failure is not None:
                future.set_exception(self._failure)
            elif not future.done():
                future.set_result(None)

    def _wait(self, now: float) -> set[int]:
        """Wait for a message or death of a process, a deadline, or a request.

        Return the descriptors with something to read.
        """
        poll, wakes, kill_at = select.poll(), self._requests.wakes, self._requests.kill_at
        poll.register(wakes.read_end, select.POLLIN)
        due = [now + LOOK_EVERY_S]
        if kill_at is not None:
            due.append(kill_at)
        for seat in self._seats:
            if seat.child is not None:
                if seat.child.talks:
                    poll.register(seat.child, select.POLLIN)
                due.append(self._next_look(seat.child, now))
            elif not seat.over:
                due.append(max(seat.start_at, self._starter.loads_until()))
        if self._starter.parent is not None:
            poll.register(self._starter.parent, select.POLLIN)
        # Add a millisecond: poll rounds down, and would busy-wait for the last one.
        ready = poll.poll(1 + 1000 * max(0.0, min(due) - now))
        wakes.clear()
        return {descriptor for descriptor, _ in ready}

    def _next_look(self, child: Child, now: float) -> float:
        """Return when the child may have to be killed; a call beginning now may reach its limit."""
        if not child.talks:
            return now + DYING_S
        if child.doom:
            return now + LOOK_EVERY_S
        due = [now + LOOK_EVERY_S if child.kill_at is None else child.kill_at]
        if self.settings.time_limit_s is not None:
            due.append((child.busy_since() or now) + self.settings.time_limit_s)
        return min(due)

    def _look_after(self, seat: _Seat, now: float) -> None:
        child = seat.child
        if child is None:
            if self.draining:
                seat.over = True
            elif not seat.over and now >= seat.start_at:
                self._start(seat, now)
            return
        code = child.code()
        child.listen()
        seat.served = seat.served or child.status.ready_at is not None
        if code is not None:
            self._gone(seat, child, code, now)
            return
        if self.draining and not child.told_to_drain:
            child.drain()
            if child.status.ready_at is None:
                child.kill_at = now  # it is still loading: nothing is lost
        if (child.status.done or not child.talks) and child.kill_at is None:
            child.kill_at = now + GOODBYE_S
        self._end_if_due(child, now)

    def _end_if_due(self, child: Child, now: float) -> None:
        if child.doom:
            return
        limit_s, kill_at = self.settings.time_limit_s, self._requests.kill_at
        running = child.running()
        busy = running is not None and running.tasks != ()
        if (
            limit_s is not None
            and running is not None
            and busy
            and now >= running.since_s + limit_s
        ):
            child.doom = TIME_LIMIT
            # Reported before the kill, so that the dispatcher knows the reason for the loss.
            self._report(child, f"time limit of {limit_s:g} s", cause=LossCause.TIME_LIMIT)
        elif kill_at is not None and now >= kill_at:
            child.doom = "stopped by its supervisor"
            self._report(child, child.doom, cause=LossCause.STOPPED)
        elif child.stopped_s(now) >= self.settings.frozen_after_s:
            child.doom = f"it was stopped (SIGSTOP) for {self.settings.frozen_after_s:g} s"
            self._report(child, child.doom)
        elif child.kill_at is not None and now >= child.kill_at:
            child.doom = "did not end by itself"
        if child.doom:
            child.kill()

    def _restart(self, workers: Sequence[str]) -> None:
        """Kill processes, in the middle of a call too; others take their places."""
        for child in [seat.child for seat in self._seats if seat.child is not None]:
            if child.status.worker in workers and not (child.doom or child.status.done):
                child.doom = RESTARTED
                self._report(child, child.doom)
                child.kill()

    def _report(
        self,
        child: Child,
        reason: str,
        *,
        cause: LossCause = LossCause.UNKNOWN,
        detail: str = "",
    ) -> None:
        if child.status.worker and not child.status.done:
            running = child.running()
            tasks, row = (None, None) if running is None else (running.tasks, running.row)
            self._reports.lost(Loss(child.status.worker, reason, tasks, cause, row, detail))

    def _start(self, seat: _Seat, now: float) -> None:
        try:
            seat.child = self._starter.start(
                seat.number,
                log=seat.log,
                restarts=seat.starts,
                loopback=self.connection.on_loopback(),
            )
        except (OSError, WorldError) as error:
            seat.starts += 1
            self._crashed(seat, f"it cannot be started: {error}", now, None, "")
        else:
            seat.starts += seat.child is not None

    # Deaths

    def _gone(self, seat: _Seat, child: Child, code: int, now: float) -> None:
        """Handle the end of a process: a goodbye, a crash, or the end of the supervisor."""
        out_of_memory = self._out_of_memory.happened()
        reason = child.why(code, out_of_memory=out_of_memory)
        last_lines = child.last_lines()
        if not child.doom and code != EXIT_ORPHANED:
            cause = LossCause.CRASH if child.crashed() else LossCause.UNKNOWN
            self._report(child, reason, cause=cause, detail=last_lines)
        seat.child = None
        child.close()
        status = child.status
        was_orphaned, seat.orphaned = seat.orphaned, code == EXIT_ORPHANED
        if status.done or self.draining:
            seat.over = True
        elif was_orphaned and seat.orphaned:
            seat.over = True
            self._failure = WorkersFailed("the dispatcher cannot be reached", detail=last_lines)
        elif status.error and not self._shared() and not any(s.served for s in self._seats):
            self._give_up(status.error, seat.log, "")
        elif child.doom in (TIME_LIMIT, RESTARTED, REPLACED):
            seat.start_at = now
        elif not out_of_memory and child.was_killed_at_start(code) and not seat.killed_again(now):
            then = f"starting again at once; log: {seat.log}"
            self._deaths.died(seat.number, "was killed at start", reason, then)
        else:
            if seat.orphaned:
                self._look_for_dispatcher()
            # It may have become ready after the time of this look.
            served_s = None if status.ready_at is None else max(0.0, now - status.ready_at)
            if served_s is not None and served_s >= self.settings.good_while_s:
                seat.crashes = 0
            self._crashed(seat, status.error or child.doom or reason, now, served_s, last_lines)

    def _look_for_dispatcher(self) -> None:
        """Look for another dispatcher that may have replaced a lost one."""
        with contextlib.suppress(Unavailable):
            connection = read_worker_connection(self.settings.connect)
            if connection != self.connection:
                before, self._reports = self._reports, Reporter(connection, self.name)
                before.close()

    def _crashed(
        self, seat: _Seat, reason: str, now: float, served_s: float | None, last_lines: str
    ) -> None:
        """Restart with growing delays, unless no process here has ever served."""
        seat.crashes += 1
        what = "died" if served_s is not None else "crashes at start"
        if self._is_hopeless(seat):
            self._give_up(f"a worker process {what}: {reason}", seat.log, last_lines)
            return
        delay_s = self.settings.restart_delay_s(seat.crashes, served_s)
        seat.start_at = now + delay_s
        ends = f", which ends:\n{last_lines}" if last_lines else ""
        then = f"starting again in {delay_s:.2g} s; log: {seat.log}{ends}"
        self._deaths.died(seat.number, what, reason, then)

    def _shared(self) -> bool:
        """Whether several servers share one model."""
        return most_servers(self.settings.models) > 1

    def _is_hopeless(self, seat: _Seat) -> bool:
        """Whether no process has served or will: with several servers some may still come up."""
        seats = self._seats if self._shared() else [seat]
        crashed = all(s.crashes >= START_CRASHES for s in seats)
        return crashed and not any(s.served for s in self._seats)

    def _give_up(self, message: str, where: Path, last_lines: str) -> None:
        """Fail: no process has ever served, and a restart would not help."""
        self._failure = WorkersFailed(f"{message} (log: {where})", detail=last_lines)
        self.drain()
