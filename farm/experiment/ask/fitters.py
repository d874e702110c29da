"""Processes that fit surrogates and find points: one per experiment, so that none waits.

They are forked from one process that has the libraries loaded, see `fitter.py`, and share its
memory.

Work is a function of its values, so a process that dies costs only time: another one repeats the
work, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from farm.errors import FarmError, Unavailable
from farm.experiment.ask.execute import needs_surrogate, outcome
from farm.experiment.work import Answered, Generated, Work
from farm.machine.fork_parent import CAN_FORK, ForkParent, ParentLost
from farm.machine.job_process import JobProcess, ProcessDied, job_environment

logger = logging.getLogger(__name__)

MOST = min(max(4, os.cpu_count() or 1), 16)
"""Maximum number of processes; each takes some tens of MB, and a core while it works."""

IDLE_S = 60.0
"""Time in seconds to keep an idle process for the next ask: it has the last fit. The process with
the libraries ends with the last of them.
"""

TRIES = 2

STOPS = "the server stops"

MODULE = "farm.experiment.ask.fitter"


class Fitter:
    """The process of one experiment, if it has been started, and whether work uses it."""

    def __init__(self) -> None:
        self.busy = False
        self.ends: asyncio.TimerHandle | None = None
        self._process: JobProcess | None = None
        self._killed = False

    @property
    def pid(self) -> int | None:
        """The process id; None before there is a process."""
        return None if self._process is None else self._process.pid

    def execute(self, work: Work, parent: ForkParent | None) -> Generated | Answered | FarmError:
        """Return the outcome of the work; blocks. Raises ProcessDied, and OSError at the start.

        parent: what the process is forked from, if it has not been started; None: it is a fresh
        interpreter.
        """
        process = self._process or self._started(parent)
        if self._killed:  # while it started
            process.kill()
        (answer,) = process.ask([pickle.dumps(work, protocol=pickle.HIGHEST_PROTOCOL)])
        result: Generated | Answered | FarmError = pickle.loads(answer)
        return result

    def _started(self, parent: ForkParent | None) -> JobProcess:
        if parent is not None:
            with contextlib.suppress(ParentLost):  # the next process has another one
                self._process = JobProcess(MODULE, parent=parent)
                return self._process
        if self._killed:
            raise ProcessDied(-signal.SIGKILL)
        self._process = JobProcess(MODULE)
        return self._process

    def lives(self) -> bool:
        """Whether the process is alive, or will be."""
        return not self._killed and (self._process is None or self._process.lives())

    def kill(self) -> None:
        """Kill it and the processes it started, now; if it is yet to be started, at its start."""
        self._killed = True
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the process and release its resources; no thread may be in `execute`."""
        if self.ends is not None:
            self.ends.cancel()
        if self._process is not None:
            self._process.close()


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
        self._parent: ForkParent | None = None  # there is one as long as there is a fitter
        self._loaded: asyncio.Future[ForkParent | None] | None = None
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
        """Load the libraries for an experiment, unless it would evict the process of another."""
        if number not in self._fitters and len(self._fitters) < self._most:
            self._load()
            self._fitters[number] = fitter = Fitter()
            self._leave(number, fitter)

    @property
    def pids(self) -> Mapping[int, int]:
        """The process id of each experiment that has a process."""
        pids = {number: fitter.pid for number, fitter in self._fitters.items()}
        return {number: pid for number, pid in pids.items() if pid is not None}

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
        if self._parent is not None:  # a thread may be waiting for it
            self._parent.kill()
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_result(None)
        self._threads.shutdown(wait=False)

    async def _in_process(self, number: int, work: Work) -> Generated | Answered | FarmError:
        why = ""
        for _ in range(TRIES):
            try:
                return await self._try(number, work)
            except (ProcessDied, OSError) as end:
                why = str(end)
                logger.warning("experiment %d: the process that fits it died: %s", number, why)
        return Unavailable(
            f"the process that fits the surrogate died {TRIES} times: {why}; retry, with more "
            "memory if it ran out of it"
        )

    async def _try(self, number: int, work: Work) -> Generated | Answered | FarmError:
        fitter = self._taken(number)
        try:
            parent = None if fitter.pid is not None else await self._loaded_parent()
            if not self._most:
                raise Unavailable(STOPS)
            loop = asyncio.get_running_loop()
            job = loop.run_in_executor(self._threads, fitter.execute, work, parent)
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
            raise Unavailable(STOPS)
        fitter = self._fitters.pop(number, None)
        if fitter is None or not fitter.lives():
            if fitter is not None:
                fitter.close()
            # Each running task has a place, so if there are too many processes, one is idle.
            idle = [n for n, other in self._fitters.items() if not other.busy]
            if len(self._fitters) >= self._most:
                self._fitters.pop(idle[0]).close()
            self._load()
            fitter = Fitter()
        if fitter.ends is not None:
            fitter.ends.cancel()
        fitter.busy = True
        self._fitters[number] = fitter
        return fitter

    def _load(self) -> None:
        """Start the process with the libraries, if there is none."""
        if self._parent is not None and not self._parent.lives():
            self._end_parent()
        if self._parent is None and CAN_FORK:
            loop = asyncio.get_running_loop()
            words = ["load"] if self._libraries else []
            self._parent = ForkParent(MODULE, words, job_environment())
            self._loaded = loop.create_future()
            loop.add_reader(self._parent, self._look)

    def _look(self) -> None:
        """Notice that the process with the libraries has loaded them, or has ended."""
        parent, loaded = self._parent, self._loaded
        assert parent is not None
        assert loaded is not None
        asyncio.get_running_loop().remove_reader(parent)
        result: ForkParent | None = parent
        try:
            parent.look(time.monotonic())
        except ParentLost as error:
            logger.warning("the libraries of surrogates are loaded for each experiment: %s", error)
            result = None
        if not loaded.done():
            loaded.set_result(result)

    async def _loaded_parent(self) -> ForkParent | None:
        """Return the process with the libraries once it has loaded them; None if it cannot fork."""
        if self._parent is None or self._loaded is None:
            return None
        left_s = max(0.0, self._parent.load_until - time.monotonic())
        loaded, _ = await asyncio.wait({self._loaded}, timeout=left_s)
        return loaded.pop().result() if loaded else None

    def _end_parent(self) -> None:
        if self._parent is not None:
            asyncio.get_running_loop().remove_reader(self._parent)
            self._parent.close()
            self._parent = None
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_result(None)  # work may be waiting for it
        self._loaded = None

    def _leave(self, number: int, fitter: Fitter) -> None:
        """Release a process after work and keep it for a while."""
        loop = asyncio.get_running_loop()
        fitter.ends = loop.call_later(self._idle_s, self._drop, number)

    def _drop(self, number: int) -> None:
        """End an experiment's process, and with the last one the process with the libraries."""
        self._fitters.pop(number).close()
        if not self._fitters:
            self._end_parent()
