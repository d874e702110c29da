"""Processes that fit surrogates and find points: one per experiment, so that none waits.

They are forked from one process that has the libraries loaded, see `parent.py`, and share its
memory.

Work is a function of its values, so a process that dies costs only time: another one repeats the
work, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import threading
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from farm.errors import FarmError, Unavailable
from farm.experiment.ask.execute import needs_surrogate
from farm.experiment.ask.fitter import message, outcome, received
from farm.experiment.ask.parent import ASKED, NEWS
from farm.experiment.config.work import Answered, Generated, Work
from farm.machine.lifeline import Lifeline, TiedProcess
from farm.machine.programs import in_words, python

logger = logging.getLogger(__name__)

MOST = min(max(4, os.cpu_count() or 1), 16)
"""Maximum number of processes; each takes some tens of MB, and a core while it works."""

IDLE_S = 60.0
"""Time in seconds to keep an idle process for the next ask: it has the last fit. The process with
the libraries ends with the last of them.
"""

END_S = 10.0
"""Time in seconds to wait for the exit status of a process whose socket has closed."""

TRIES = 2

ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
"""The cores belong to the workers; also, the same work gives the same points on any machine."""


class FitterDied(Exception):
    """The process ended during its work; the message says how."""


class Parent:
    """The process that fitters are forked from; started on construction."""

    def __init__(self, *, libraries: bool) -> None:
        """libraries: load those of surrogates first, which takes seconds."""
        self._control, theirs = socket.socketpair()
        program, more = python("farm.experiment.ask.parent"), ["load"] if libraries else []
        with theirs:
            self._process = TiedProcess(
                lambda lifeline: [*program, str(lifeline), str(theirs.fileno()), *more],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **ONE_THREAD},
            )
        self.pid = self._process.pid

    def lives(self) -> bool:
        """Whether the process is alive."""
        return self._process.lives()

    def fork(self, channel: socket.socket, lifeline: int, news: int) -> None:
        """Ask for a process. If the parent has died, the descriptors that it was sent close."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._control, [ASKED], [channel.fileno(), lifeline, news])

    def close(self) -> None:
        """End the process and release its resources."""
        self._process.close()
        self._control.close()


class Fitter:
    """One process of `farm.experiment.ask.fitter`; forked on construction, when its parent can."""

    def __init__(self, parent: Parent) -> None:
        self.busy = False
        self.ends: asyncio.TimerHandle | None = None
        self._lifeline = Lifeline()
        self._channel, theirs = socket.socketpair()
        self._answers = self._channel.makefile("rb")
        self._news, their_news = os.pipe()
        self._known: list[int] = []  # process id, exit status
        self._ended = False
        self._killed = False
        self._reading = threading.Lock()
        with theirs:
            parent.fork(theirs, self._lifeline.read_end, their_news)
        os.close(their_news)
        self._lifeline.hand_over()

    @property
    def pid(self) -> int | None:
        """The process id; None before there is a process."""
        self._look(0)
        return self._known[0] if self._known else None

    def execute(self, work: Work) -> Generated | Answered | FarmError:
        """Return the outcome of the work; blocks. Raises FitterDied."""
        try:
            self._channel.sendall(message(work))
            result: Generated | Answered | FarmError | None = received(self._answers)
            if result is not None:
                return result
        except (BrokenPipeError, ConnectionResetError):
            pass
        raise FitterDied(self._end())

    def lives(self) -> bool:
        """Whether the process is alive, or will be."""
        self._look(0)
        return not (self._ended or self._killed)

    def kill(self) -> None:
        """Kill it and the processes it started, now; if it is yet to be forked, at its start."""
        self._killed = True
        self._lifeline.cut()
        # The other end may still be on its way to the parent, so that no death would close it.
        with contextlib.suppress(OSError):  # it has closed already
            self._channel.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the process and release its resources; no thread may be in `execute`."""
        if self.ends is not None:
            self.ends.cancel()
        self.kill()
        self._answers.close()
        self._channel.close()
        with self._reading:
            self._ended = True
            os.close(self._news)

    def _look(self, timeout_s: float) -> None:
        """Read what the parent reports about the process, waiting for the first of it."""
        with self._reading:
            poll = select.poll()
            if not self._ended:
                poll.register(self._news, select.POLLIN)
            while not self._ended and poll.poll(timeout_s * 1e3):
                told = os.read(self._news, NEWS.size)
                if told:
                    self._known += NEWS.unpack(told)
                self._ended = not told or len(self._known) == 2
                timeout_s = 0

    def _end(self) -> str:
        """Return the reason why the process ended, in words."""
        # In steps, so that `lives` never waits for long.
        for _ in range(int(END_S / 0.05)):
            self._look(0.05)
            if self._ended or (self._killed and not self._known):
                break
        if len(self._known) < 2:
            return "it was ended" if self._killed else "its parent process ended"
        code = self._known[1]
        return in_words(code, out_of_memory=code == -signal.SIGKILL)


class Fitters:
    """Does the work of experiments: quick work in a thread, the rest in processes."""

    def __init__(
        self,
        *,
        most: int = MOST,
        idle_s: float = IDLE_S,
        in_processes: bool = False,
        libraries: bool = True,
    ) -> None:
        """most: maximum processes; idle_s: how long to keep one; in_processes: quick work, too.

        libraries: load those of surrogates before any work arrives.
        """
        self._most = most
        self._idle_s = idle_s
        self._in_processes = in_processes
        self._libraries = libraries
        self._parent: Parent | None = None  # there is one as long as there is a fitter
        self._places = asyncio.Semaphore(most)
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._fitters: dict[int, Fitter] = {}  # by experiment, least recently used first
        self._threads = ThreadPoolExecutor(most + 1, thread_name_prefix="fitters")

    async def execute(self, number: int, work: Work) -> Generated | Answered:
        """Return the outcome of work for experiment `number`. Raises FarmError.

        Work of one experiment runs in sequence in its process. Cancelling work ends that process.
        """
        if not self._in_processes and not needs_surrogate(work):
            result = await asyncio.to_thread(outcome, work)
        else:
            async with self._turns[number], self._places:
                result = await self._in_process(number, work)
        if isinstance(result, FarmError):
            if result.detail:
                logger.warning("experiment %d: %s\n%s", number, result, result.detail)
            raise result
        return result

    def warm(self, number: int) -> None:
        """Start a process for an experiment, unless that would evict the process of another."""
        if number not in self._fitters and len(self._fitters) < self._most:
            self._fitters[number] = fitter = self._forked()
            self._leave(number, fitter)

    @property
    def pids(self) -> Mapping[int, int]:
        """The process id of each experiment that has a process."""
        found = {number: fitter.pid for number, fitter in self._fitters.items()}
        return {number: pid for number, pid in found.items() if pid is not None}

    @property
    def parent_pid(self) -> int | None:
        """The process id of the process that has the libraries loaded, if there is one."""
        return None if self._parent is None else self._parent.pid

    def stop(self) -> None:
        """End all processes; work in them raises Unavailable."""
        self._most = 0
        for fitter in self._fitters.values():
            fitter.kill()
        for number in [n for n, fitter in self._fitters.items() if not fitter.busy]:
            self._drop(number)
        self._threads.shutdown(wait=False)

    async def _in_process(self, number: int, work: Work) -> Generated | Answered | FarmError:
        why = ""
        for _ in range(TRIES):
            try:
                return await self._try(number, work)
            except FitterDied as end:
                why = str(end)
                logger.warning("experiment %d: the process that fits it died: %s", number, why)
        return Unavailable(
            f"the process that fits the surrogate died {TRIES} times: {why}; retry, with more "
            "memory if it ran out of it"
        )

    async def _try(self, number: int, work: Work) -> Generated | Answered | FarmError:
        fitter = self._taken(number)
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(self._threads, fitter.execute, work)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            fitter.kill()
            await asyncio.wait({job})
            job.exception()
            raise
        finally:
            fitter.busy = False
            if fitter.lives() and self._most:
                self._leave(number, fitter)
            else:
                self._drop(number)

    def _taken(self, number: int) -> Fitter:
        """Return the experiment's process, or a new one, which may evict an idle one."""
        if not self._most:
            raise Unavailable("the server stops")
        fitter = self._fitters.pop(number, None)
        if fitter is None or not fitter.lives():
            if fitter is not None:
                fitter.close()
            # Each running task has a place, so if there are too many processes, one is idle.
            idle = [n for n, other in self._fitters.items() if not other.busy]
            if len(self._fitters) >= self._most:
                self._fitters.pop(idle[0]).close()
            fitter = self._forked()
        if fitter.ends is not None:
            fitter.ends.cancel()
        fitter.busy = True
        self._fitters[number] = fitter
        return fitter

    def _forked(self) -> Fitter:
        """Return a new process."""
        if self._parent is not None and not self._parent.lives():
            self._parent.close()
            self._parent = None
        if self._parent is None:
            self._parent = Parent(libraries=self._libraries)
        return Fitter(self._parent)

    def _leave(self, number: int, fitter: Fitter) -> None:
        """Release a process after work and keep it for a while."""
        loop = asyncio.get_running_loop()
        fitter.ends = loop.call_later(self._idle_s, self._drop, number)

    def _drop(self, number: int) -> None:
        """End an experiment's process, and with the last one the process with the libraries."""
        self._fitters.pop(number).close()
        if not self._fitters and self._parent is not None:
            self._parent.close()
            self._parent = None
