"""Processes that fit surrogates and find points: one an experiment, so that none waits for another.

Work is a function of its values, so a process that dies is no more than a delay: another one does
the same again, once.
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
from farm.experiment.fitter import LENGTH, message, outcome
from farm.experiment.perform import needs_surrogate
from farm.experiment.work import Answered, Generated, Work
from farm.provision.child import in_words, python
from farm.worker.lifeline import TiedProcess

logger = logging.getLogger(__name__)

MOST = min(max(4, os.cpu_count() or 1), 16)
"""Processes at once; each has some 450 MB, most of it libraries, and a core while it works."""

IDLE_S = 600.0
"""How long one is kept for the next ask: it has the libraries loaded, and the last fit."""

TRIES = 2

ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
"""The cores are the workers'; and so the same work gives the same points on any machine."""


class Died(Exception):
    """The process ended in the middle of its work; says how."""


class Fitter(TiedProcess):
    """One process of `farm.experiment.fitter`; started when made."""

    def __init__(self, *, warm: bool = False) -> None:
        """warm: load what surrogates need before there is work."""
        self.busy = False
        self.ends: asyncio.TimerHandle | None = None
        more = ["warm"] if warm else []
        super().__init__(
            lambda lifeline: [*python("farm.experiment.fitter"), str(lifeline), *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **ONE_THREAD},
        )

    def perform(self, work: Work) -> Generated | Answered | FarmError:
        """What comes of work; blocks. Raises Died."""
        requests, answers = self.process.stdin, self.process.stdout
        assert requests is not None
        assert answers is not None
        try:
            requests.write(message(work))
            requests.flush()
        except BrokenPipeError:
            raise Died(self._end()) from None
        head = answers.read(LENGTH.size)
        if len(head) == LENGTH.size:
            (length,) = LENGTH.unpack(head)
            body = answers.read(length)
            if len(body) == length:
                result: Generated | Answered | FarmError = pickle.loads(body)
                return result
        raise Died(self._end())

    def close(self) -> None:
        """End it and let go of what is held for it, while no thread is in `perform`."""
        if self.ends is not None:
            self.ends.cancel()
        super().close()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()

    def _end(self) -> str:
        """Why it has ended, in words."""
        code = self.process.wait()
        return in_words(code, out_of_memory=code == -signal.SIGKILL)


def is_quick(work: Work) -> bool:
    """Whether the work needs no surrogate, and so none of its libraries."""
    return not needs_surrogate(work)


class Fitters:
    """Does the work of experiments: what is quick in a thread, the rest in processes."""

    def __init__(
        self,
        *,
        most: int = MOST,
        idle_s: float = IDLE_S,
        quick: Callable[[Work], bool] = is_quick,
    ) -> None:
        """most: processes at once; idle_s: how long one is kept; quick: what needs none."""
        self._most = most
        self._idle_s = idle_s
        self._quick = quick
        self._places = asyncio.Semaphore(most)
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._fitters: dict[int, Fitter] = {}  # by experiment; the one used last is the last
        self._threads = ThreadPoolExecutor(most + 1, thread_name_prefix="fitters")

    async def perform(self, number: int, work: Work) -> Generated | Answered:
        """What comes of work for the experiment of that number. Raises FarmError.

        Work of one experiment in its process is done one after another. Cancelled work ends with
        its process.
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
        """Have a process ready for an experiment, unless that of another would have to go."""
        if number not in self._fitters and len(self._fitters) < self._most:
            self._fitters[number] = fitter = Fitter(warm=True)
            self._leave(number, fitter)

    @property
    def pids(self) -> Mapping[int, int]:
        """The process of each experiment that has one."""
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
            except Died as end:
                why = str(end)
                logger.warning("experiment %d: the process that fits it died: %s", number, why)
        return Unavailable(
            f"the process that fits the surrogate died {TRIES} times: {why}; ask again, with more "
            "memory if it has too little"
        )

    async def _try(self, number: int, work: Work) -> Generated | Answered | FarmError:
        fitter = self._taken(number)
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(self._threads, fitter.perform, work)
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
        """The experiment's process, or a new one; then an idle one may have to go."""
        if not self._most:
            raise Unavailable("the server stops")
        fitter = self._fitters.pop(number, None)
        if fitter is None or not fitter.lives():
            if fitter is not None:
                fitter.close()
            # Whoever has a place may have a process: if there are too many, one is idle.
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
        """Keep it for a while."""
        loop = asyncio.get_running_loop()
        fitter.ends = loop.call_later(self._idle_s, self._drop, number)

    def _drop(self, number: int) -> None:
        self._fitters.pop(number).close()
