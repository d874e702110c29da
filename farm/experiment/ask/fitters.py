"""Processes that fit surrogates and find points: one per experiment, so that none waits.

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
import subprocess
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from farm.errors import FarmError, Unavailable
from farm.experiment.ask.execute import needs_surrogate
from farm.experiment.ask.fitter import LENGTH, message, outcome
from farm.experiment.config.work import Answered, Generated, Work
from farm.machine.lifeline import TiedProcess
from farm.machine.programs import in_words, python

logger = logging.getLogger(__name__)

MOST = min(max(4, os.cpu_count() or 1), 16)
"""Maximum number of processes; each takes some 450 MB, most of it libraries, and a core while it
works.
"""

IDLE_S = 600.0
"""Time in seconds to keep an idle process for the next ask: it has the libraries loaded, and the
last fit.
"""

TRIES = 2

ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
"""The cores belong to the workers; also, the same work gives the same points on any machine."""


class FitterDied(Exception):
    """The process ended during its work; the message says how."""


class Fitter(TiedProcess):
    """One process of `farm.experiment.ask.fitter`; started on construction."""

    def __init__(self, *, warm: bool = False) -> None:
        """warm: load the libraries that surrogates need before work arrives."""
        self.busy = False
        self.ends: asyncio.TimerHandle | None = None
        more = ["warm"] if warm else []
        super().__init__(
            lambda lifeline: [*python("farm.experiment.ask.fitter"), str(lifeline), *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **ONE_THREAD},
        )

    def execute(self, work: Work) -> Generated | Answered | FarmError:
        """Return the outcome of the work; blocks. Raises Died."""
        requests, answers = self.process.stdin, self.process.stdout
        assert requests is not None
        assert answers is not None
        try:
            requests.write(message(work))
            requests.flush()
        except BrokenPipeError:
            raise FitterDied(self._end()) from None
        head = answers.read(LENGTH.size)
        if len(head) == LENGTH.size:
            (length,) = LENGTH.unpack(head)
            body = answers.read(length)
            if len(body) == length:
                result: Generated | Answered | FarmError = pickle.loads(body)
                return result
        raise FitterDied(self._end())

    def close(self) -> None:
        """End the process and release its resources; no thread may be in `execute`."""
        if self.ends is not None:
            self.ends.cancel()
        super().close()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()

    def _end(self) -> str:
        """Return the reason why the process ended, in words."""
        code = self.process.wait()
        return in_words(code, out_of_memory=code == -signal.SIGKILL)


def is_quick(work: Work) -> bool:
    """Whether the work needs no surrogate, and so none of its libraries."""
    return not needs_surrogate(work)


class Fitters:
    """Does the work of experiments: quick work in a thread, the rest in processes."""

    def __init__(
        self,
        *,
        most: int = MOST,
        idle_s: float = IDLE_S,
        quick: Callable[[Work], bool] = is_quick,
    ) -> None:
        """most: maximum processes; idle_s: how long to keep one; quick: whether work needs none."""
        self._most = most
        self._idle_s = idle_s
        self._quick = quick
        self._places = asyncio.Semaphore(most)
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._fitters: dict[int, Fitter] = {}  # by experiment, least recently used first
        self._threads = ThreadPoolExecutor(most + 1, thread_name_prefix="fitters")

    async def execute(self, number: int, work: Work) -> Generated | Answered:
        """Return the outcome of work for experiment `number`. Raises FarmError.

        Work of one experiment runs in sequence in its process. Cancelling work ends that process.
        """
        if self._quick(work):
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
            self._fitters[number] = fitter = Fitter(warm=True)
            self._leave(number, fitter)

    @property
    def pids(self) -> Mapping[int, int]:
        """The process id of each experiment that has a process."""
        return {number: fitter.pid for number, fitter in self._fitters.items()}

    def stop(self) -> None:
        """End all processes; work in them raises Unavailable."""
        self._most = 0
        for fitter in self._fitters.values():
            fitter.kill()
        for number in [n for n, fitter in self._fitters.items() if not fitter.busy]:
            self._fitters.pop(number).close()
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
                self._drop(idle[0])
            fitter = Fitter()
        if fitter.ends is not None:
            fitter.ends.cancel()
        fitter.busy = True
        self._fitters[number] = fitter
        return fitter

    def _leave(self, number: int, fitter: Fitter) -> None:
        """Release a process after work and keep it for a while."""
        loop = asyncio.get_running_loop()
        fitter.ends = loop.call_later(self._idle_s, self._drop, number)

    def _drop(self, number: int) -> None:
        self._fitters.pop(number).close()
