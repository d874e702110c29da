"""Reader processes: they run codecs on long messages, so that the front door's loop does not.

JSON parsers hold the interpreter's lock, so a thread would hold up the loop as the loop itself
does. A job is a function of a codec and its arguments; bodies and arrays go to the reader and back
in memory files, whose descriptors are passed over a socket, and are copied by nobody in the loop.

Readers are started when they are first needed, end with the farm however it ends, and are limited
in memory and time. One whose job ends it is replaced; the job is tried once more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from farm.errors import FarmError, Unavailable
from farm.protocols import values
from farm.protocols.wire_arrays import Buffer
from farm.provision.child import in_words, python
from farm.server.body import HeldBody
from farm.server.door import Refused, TakeBack
from farm.server.memory_file import file_of, frames_in
from farm.worker.lifeline import TiedProcess

logger = logging.getLogger(__name__)

MOST = max(2, min(4, (os.cpu_count() or 1) // 2))
"""Readers at once."""

IDLE_S = 30.0
"""How long a reader is kept for the next job: it has some 50 MB, and starts in a quarter second."""

TRIES = 2

TIME_LIMIT_S = 60.0
BYTES_A_SECOND = 2 << 20
"""A job may take the one, and a second more for each so many bytes of its body: the slowest legal
ones are ten times as fast."""

SMALLEST_MEMORY, LARGEST_MEMORY = 1 << 30, 16 << 30
"""Bounds of what a reader may use, whatever machine this is."""

ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}

Outcome = Any
"""What a job gives, or the exception that it raised: FarmError, Fault or Refused."""


class Died(Exception):
    """The reader ended in the middle of its job; says how."""


class TooSlow(Exception):
    """The job took longer than its limit."""


class Mistake(Exception):
    """A fault of farm's in a job; holds the traceback of the reader."""


class Reads(Protocol):
    """What doors need to have a long message read or written."""

    def perform(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        client: str,
        done: Callable[[Outcome], None],
    ) -> TakeBack:
        """Have a function of a codec run; `done` gets its value or its exception later, once.

        function: one of farm's modules' own; arguments: what `values` carries, and a HeldBody,
        which becomes bytes. client: whose turn it takes. Gives what takes the job back.
        """


class ReadsHere:
    """Runs the same functions in this process: for tests, and programs of one caller."""

    def perform(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        client: str,
        done: Callable[[Outcome], None],
    ) -> TakeBack:
        """Call the function, and `done` in the next turn of the loop."""
        try:
            outcome = function(*[a.read() if isinstance(a, HeldBody) else a for a in arguments])
        except Exception as error:
            outcome = error
        return asyncio.get_running_loop().call_soon(done, outcome).cancel


READS_HERE = ReadsHere()


class _Job:
    __slots__ = ("arguments", "client", "done", "function")

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        client: str,
        done: Callable[[Outcome], None],
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.client = client
        self.done = done

    def body(self) -> HeldBody | None:
        return next((a for a in self.arguments if isinstance(a, HeldBody)), None)

    def frames(self, body: HeldBody | None) -> list[Buffer]:
        """What a reader is sent. Raises InvalidInput as `values.encode`."""
        about = ("", 0) if body is None else (body.encoding.decode("latin-1"), body.limit)
        where = self.function.__module__, self.function.__name__
        return values.encode((*where, *about, self.arguments), body)


class Reader(TiedProcess):
    """One process of `farm.server.reader`; started when made, by any thread."""

    def __init__(self, memory_bytes: int) -> None:
        self.ends: asyncio.TimerHandle | None = None
        self._line, its_line = socket.socketpair()
        its = its_line.fileno()

        def command(lifeline: int) -> list[str]:
            return [*python("farm.server.reader"), *map(str, (lifeline, its, memory_bytes))]

        try:
            super().__init__(
                command,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **ONE_THREAD},
                pass_fds=(its,),
            )
        except BaseException:
            self._line.close()
            raise
        finally:
            its_line.close()

    def perform(self, frames: list[Buffer], body: HeldBody | None, limit_s: float) -> list[Buffer]:
        """The frames of what comes of a job; blocks. Raises Died, TooSlow."""
        job = file_of(frames)
        try:
            descriptors = [job] if body is None else [job, body.descriptor]
            self._line.settimeout(limit_s)
            socket.send_fds(self._line, [b"."], descriptors)
            _, answers, _, _ = socket.recv_fds(self._line, 1, 1)
        except TimeoutError:
            self.kill()
            raise TooSlow from None
        except OSError:  # it has hung up
            answers = []
        finally:
            os.close(job)
        if not answers:
            raise Died(self._end())
        try:
            return [*frames_in(answers[0])]
        finally:
            os.close(answers[0])

    def close(self) -> None:
        """End it and let go of what is held for it, while no thread is in `perform`."""
        if self.ends is not None:
            self.ends.cancel()
        super().close()
        self._line.close()

    def _end(self) -> str:
        """Why it has ended, in words."""
        code = self.process.wait()
        return in_words(code, out_of_memory=code == -signal.SIGKILL)


class Readers:
    """A pool of readers that clients take turns at, on the loop that `perform` is called on.

    No client has all readers: one is left for the next client's message.
    """

    def __init__(
        self,
        *,
        most: int = MOST,
        idle_s: float = IDLE_S,
        time_limit_s: float = TIME_LIMIT_S,
        memory_bytes: int | None = None,
    ) -> None:
        """most: readers at once; memory_bytes: what each may use; None: by the machine."""
        self._most = most
        self._share = max(1, most - 1)
        self._idle_s = idle_s
        self._time_limit_s = time_limit_s
        self._memory_bytes = memory_bytes or _memory_share(most)
        self._waiting: dict[str, deque[_Job]] = {}  # by client; the one whose turn it is first
        self._at_work: Counter[str] = Counter()  # jobs by client
        self._idle: list[Reader] = []
        self._busy: set[Reader] = set()
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="readers")
        self._stopped = False

    @property
    def pids(self) -> list[int]:
        """The processes there are."""
        return [reader.pid for reader in (*self._idle, *self._busy)]

    def perform(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        client: str,
        done: Callable[[Outcome], None],
    ) -> TakeBack:
        """See `Reads`. Raises Unavailable once the farm stops."""
        if self._stopped:
            raise Unavailable("the farm is shutting down")
        job = _Job(function, arguments, client, done)
        self._waiting.setdefault(client, deque()).append(job)
        self._go_on()

        def take_back() -> None:
            jobs = self._waiting.get(client, ())
            if job in jobs:  # else it is at work, and goes on for nothing
                self._remove(job)

        return take_back

    def stop(self) -> None:
        """End all readers; what waits or is at work is answered with Unavailable."""
        self._stopped = True
        for reader in list(self._busy):
            reader.kill()
        while self._idle:
            self._idle.pop().close()
        jobs = [job for waiting in self._waiting.values() for job in waiting]
        self._waiting.clear()
        for job in jobs:
            job.done(Unavailable("the farm is shutting down"))
        self._threads.shutdown(wait=False)

    def check(self) -> None:
        """Assert what always holds."""
        assert all(self._waiting.values()), "a client without jobs is not kept"
        assert sum(self._at_work.values()) <= self._most
        assert all(0 < count <= self._share for count in self._at_work.values())

    def _remove(self, job: _Job) -> None:
        jobs = self._waiting[job.client]
        jobs.remove(job)
        if not jobs:
            del self._waiting[job.client]

    def _go_on(self) -> None:
        """Begin what jobs may begin."""
        while self._at_work.total() < self._most:
            client = next((c for c in self._waiting if self._at_work[c] < self._share), None)
            self._at_work = +self._at_work
            if client is None:
                return
            jobs = self._waiting.pop(client)
            job = jobs.popleft()
            if jobs:
                self._waiting[client] = jobs
            self._begin(job)

    def _begin(self, job: _Job) -> None:
        self._at_work[job.client] += 1
        reader = self._idle.pop() if self._idle else None
        if reader is not None:
            self._busy.add(reader)
            if reader.ends is not None:
                reader.ends.cancel()
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, self._carry_out, job, reader)

        def ended(work: asyncio.Future[tuple[Outcome, Reader | None]]) -> None:
            outcome, reader = work.result()
            self._at_work[job.client] -= 1
            self._at_work = +self._at_work
            if (jobs := self._waiting.pop(job.client, None)) is not None:
                self._waiting[job.client] = jobs  # behind the others
            if reader is not None:
                self._busy.discard(reader)
                self._keep(reader)
            if not self._stopped:
                self._go_on()
            try:
                job.done(outcome)
            except Exception:
                logger.exception("after a message of %s", job.client)

        work.add_done_callback(ended)

    def _keep(self, reader: Reader) -> None:
        """Keep a reader for the next job, for a while."""
        if self._stopped:
            reader.close()
            return

        def end() -> None:
            self._idle.remove(reader)
            reader.close()

        self._idle.append(reader)
        reader.ends = asyncio.get_running_loop().call_later(self._idle_s, end)

    # In a thread, which waits while a reader works

    def _carry_out(self, job: _Job, reader: Reader | None) -> tuple[Outcome, Reader | None]:
        """What comes of a job, and the reader that is left, if one is."""
        body = job.body()
        limit_s = self._time_limit_s + (0 if body is None else body.size / BYTES_A_SECOND)
        why = ""
        for _ in range(TRIES):
            if self._stopped:
                break
            try:
                if reader is None:
                    reader = Reader(self._memory_bytes)
                    self._busy.add(reader)
                return _outcome_in(reader.perform(job.frames(body), body, limit_s)), reader
            except (FarmError, TypeError) as error:  # of `frames`: the reader has not heard of it
                return error, reader
            except TooSlow:
                self._drop(reader)
                return Unavailable(f"the message was not read within {limit_s:.0f} s"), None
            except (Died, OSError) as error:
                why = str(error)
                self._drop(reader)
                reader = None
                if not self._stopped:
                    logger.warning("a reader process ended: %s", why)
        if self._stopped:
            why = "the farm is shutting down"
        return Unavailable(f"the process that reads long messages ended: {why}"), None

    def _drop(self, reader: Reader | None) -> None:
        if reader is not None:
            reader.close()
            self._busy.discard(reader)


def _outcome_in(frames: list[Buffer]) -> Outcome:
    kind, value = values.decode(frames)
    if kind == "refused":
        return Refused(*value)
    if kind == "mistake":
        return Mistake(value)
    return value


def _memory_share(readers: int) -> int:
    """What one of so many readers may use: together half of the machine's memory."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(whole // 2 // readers, SMALLEST_MEMORY), LARGEST_MEMORY)
