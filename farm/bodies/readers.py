"""Reader processes, which run codecs on long messages to keep the server's event loop free.

JSON parsers hold the interpreter's lock, so a thread would block the event loop as long as the
loop's own parsing would. A job is a function of a codec and its arguments; bodies and arrays travel
in memory files, whose descriptors are passed over a socket, without any copy in the event loop.

Readers start on demand, end with the farm even if it is killed, and have limits of memory and time.
If a job ends its reader, the reader is replaced and the job is retried once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

from farm.bodies import values
from farm.bodies.body import HeldBody
from farm.bodies.unpacking import Refused
from farm.call import Buffer, CancelCall, Hints
from farm.errors import FarmError, Unavailable
from farm.machine.job_process import JobProcess, ProcessDied

logger = logging.getLogger(__name__)

MOST = max(2, min(4, (os.cpu_count() or 1) // 2))
"""Maximum number of readers."""

IDLE_S = 30.0
"""Time to keep an idle reader, which takes some 50 MB and starts in a quarter of a second."""

TRIES = 2

TIME_LIMIT_S = 60.0
BYTES_A_SECOND = 2 << 20
"""The time limit of a job is TIME_LIMIT_S plus a second per BYTES_A_SECOND of its body: the slowest
legal jobs are ten times as fast.
"""

SMALLEST_MEMORY, LARGEST_MEMORY = 1 << 30, 16 << 30
"""Bounds of a reader's memory limit, on any machine."""

Outcome = Any
"""A job's return value, or the exception it raised: a FarmError, Refused, or the codec's own."""


class Mistake(Exception):
    """A bug of farm in a job; holds the reader's traceback."""


class Reads:
    """Has long messages decoded or encoded for endpoints.

    This class does so in this process: for tests, and programs with a single caller.
    """

    def execute(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        hints: Hints,
        done: Callable[[Outcome], None],
    ) -> CancelCall:
        """Run a function of a codec; `done` gets its value or its exception later, once.

        function: from one of farm's own modules; arguments: values that `values` can encode, and a
        HeldBody, which becomes bytes. hints: the caller's, for taking turns. Returns a function
        that cancels the job.
        """
        try:
            outcome = function(*[a.read() if isinstance(a, HeldBody) else a for a in arguments])
        except Exception as error:
            outcome = error
        return asyncio.get_running_loop().call_soon(done, outcome).cancel


READS_HERE = Reads()


@dataclass(eq=False, slots=True)
class _ReaderJob:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    hints: Hints
    done: Callable[[Outcome], None]

    def body(self) -> HeldBody | None:
        return next((a for a in self.arguments if isinstance(a, HeldBody)), None)

    def frames(self, body: HeldBody | None) -> list[Buffer]:
        """Return the message to a reader. Raises InvalidInput as `values.encode` does."""
        about = ("", 0) if body is None else (body.encoding.decode("latin-1"), body.limit)
        where = f"{self.function.__module__} {self.function.__name__}".encode("ascii")
        return [where, *values.encode((*about, self.arguments), body, self.kinds())]

    def kinds(self) -> values.Kinds:
        """The classes that the job's function takes and returns."""
        return values.kinds_of(sys.modules[self.function.__module__])


class Readers(Reads):
    """A pool of readers that clients use in turn, on the event loop that calls `execute`.

    A client here is the other end of a connection, whatever names it gives itself; these take turns
    within it. No client occupies all readers: one stays free for the next client's message.

    A reader is a fresh interpreter: a parent would take the memory that it saves, as one reader is
    enough most of the time.
    """

    def __init__(
        self,
        *,
        most: int = MOST,
        idle_s: float = IDLE_S,
        time_limit_s: float = TIME_LIMIT_S,
        memory_bytes: int | None = None,
    ) -> None:
        """most: number of readers; memory_bytes: limit of each; None: by the machine's memory."""
        self._most = most
        self._share = max(1, most - 1)
        self._idle_s = idle_s
        self._time_limit_s = time_limit_s
        self._memory_bytes = memory_bytes or _memory_share(most)
        # By end, then by name, each in the order of their turns.
        self._waiting: dict[str, dict[str, deque[_ReaderJob]]] = {}
        self._at_work: Counter[str] = Counter()  # jobs by end
        self._idle: dict[JobProcess, asyncio.TimerHandle] = {}  # with its end
        self._busy: set[JobProcess] = set()
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="readers")
        self._stopped = False

    @property
    def pids(self) -> list[int]:
        """The ids of the reader processes."""
        return [reader.pid for reader in (*self._idle, *self._busy)]

    def execute(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        hints: Hints,
        done: Callable[[Outcome], None],
    ) -> CancelCall:
        """See `Reads`. Raises Unavailable once the farm stops."""
        if self._stopped:
            raise Unavailable("the farm is shutting down")
        job = _ReaderJob(function, arguments, hints, done)
        names = self._waiting.setdefault(hints.end, {})
        names.setdefault(hints.client, deque()).append(job)
        self._go_on()

        def cancel() -> None:
            # Otherwise it is running, and its result is discarded.
            if job in self._waiting.get(hints.end, {}).get(hints.client, ()):
                self._remove(job)

        return cancel

    def stop(self) -> None:
        """End all readers; queued and running jobs fail with Unavailable."""
        self._stopped = True
        for reader in list(self._busy):
            reader.kill()
        while self._idle:
            self._taken().close()
        by_name = [jobs for names in self._waiting.values() for jobs in names.values()]
        jobs = list(chain.from_iterable(by_name))
        self._waiting.clear()
        for job in jobs:
            job.done(Unavailable("the farm is shutting down"))
        self._threads.shutdown(wait=False)

    def check(self) -> None:
        """Assert the invariants."""
        assert all(self._waiting.values()), "a client without jobs is not kept"
        assert all(all(names.values()) for names in self._waiting.values())
        assert sum(self._at_work.values()) <= self._most
        assert all(0 < count <= self._share for count in self._at_work.values())

    def _remove(self, job: _ReaderJob) -> None:
        names = self._waiting[job.hints.end]
        names[job.hints.client].remove(job)
        if not names[job.hints.client]:
            del names[job.hints.client]
        if not names:
            del self._waiting[job.hints.end]

    def _go_on(self) -> None:
        """Start the jobs that may start now."""
        while self._at_work.total() < self._most:
            end = next((e for e in self._waiting if self._at_work[e] < self._share), None)
            self._at_work = +self._at_work
            if end is None:
                return
            names = self._waiting.pop(end)
            name = next(iter(names))
            jobs = names.pop(name)
            job = jobs.popleft()
            if jobs:
                names[name] = jobs  # behind the other names
            if names:
                self._waiting[end] = names
            self._begin(job)

    def _begin(self, job: _ReaderJob) -> None:
        end = job.hints.end
        self._at_work[end] += 1
        reader = self._taken() if self._idle else None
        if reader is not None:
            self._busy.add(reader)
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, self._carry_out, job, reader)

        def ended(work: asyncio.Future[tuple[Outcome, JobProcess | None]]) -> None:
            outcome, reader = work.result()
            self._at_work[end] -= 1
            self._at_work = +self._at_work
            if (names := self._waiting.pop(end, None)) is not None:
                if (jobs := names.pop(job.hints.client, None)) is not None:
                    names[job.hints.client] = jobs  # behind the other names
                self._waiting[end] = names  # behind the other clients
            if reader is not None:
                self._busy.discard(reader)
                self._keep(reader)
            if not self._stopped:
                self._go_on()
            try:
                job.done(outcome)
            except Exception:
                logger.exception("after a message of %s", end)

        work.add_done_callback(ended)

    def _taken(self) -> JobProcess:
        """Remove an idle reader, the one that was used last, and return it."""
        reader, ends = self._idle.popitem()
        ends.cancel()
        return reader

    def _keep(self, reader: JobProcess) -> None:
        """Keep an idle reader for a while, for the next job."""
        if self._stopped:
            reader.close()
            return

        def end() -> None:
            del self._idle[reader]
            reader.close()

        self._idle[reader] = asyncio.get_running_loop().call_later(self._idle_s, end)

    # In a thread, which blocks while a reader works

    def _carry_out(
        self, job: _ReaderJob, reader: JobProcess | None
    ) -> tuple[Outcome, JobProcess | None]:
        """Return a job's outcome, and the reader if it is still usable."""
        body = job.body()
        limit_s = self._time_limit_s + (0 if body is None else body.size / BYTES_A_SECOND)
        why = ""
        for _ in range(TRIES):
            if self._stopped:
                break
            try:
                if reader is None:
                    reader = JobProcess("farm.bodies.reader", [str(self._memory_bytes)])
                    self._busy.add(reader)
                files = [] if body is None else [body.descriptor]
                answer = reader.ask(job.frames(body), *files, limit_s=limit_s)
                return _outcome_in(answer, job.kinds()), reader
            except (FarmError, TypeError) as error:  # raised by `frames`: the reader got nothing
                return error, reader
            except TimeoutError:
                self._drop(reader)
                return Unavailable(f"the message was not read within {limit_s:.0f} s"), None
            except (ProcessDied, OSError) as error:
                why = str(error)
                self._drop(reader)
                reader = None
                if not self._stopped:
                    logger.warning("a reader process ended: %s", why)
        if self._stopped:
            why = "the farm is shutting down"
        return Unavailable(f"the process that reads long messages ended: {why}"), None

    def _drop(self, reader: JobProcess | None) -> None:
        if reader is not None:
            reader.close()
            self._busy.discard(reader)


def _outcome_in(frames: Sequence[Buffer], kinds: values.Kinds) -> Outcome:
    kind, value = values.decode(frames, kinds=kinds)
    if kind == "refused":
        return Refused(*value)
    if kind == "mistake":
        return Mistake(value)
    return value


def _memory_share(readers: int) -> int:
    """Return the memory limit of each of `readers`: together half of the machine's memory."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(whole // 2 // readers, SMALLEST_MEMORY), LARGEST_MEMORY)
