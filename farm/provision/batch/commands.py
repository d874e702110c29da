"""Runs the commands of a batch system as coroutines: each is a process with a timeout."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from farm.errors import Unavailable
from farm.provision.batch.system import BatchError, SubmissionRefused

COMMAND_TIMEOUT_S = 60.0
"""A busy controller may take its time; its own message timeout is ten seconds by default."""

KILLED_S = 5.0
"""Longest wait for the end of a killed command; one that waits for a file system cannot end."""

AT_ONCE = 16
"""Most commands at the same time. They have their own threads: hanging ones must not use up those
of the event loop."""


IDS_AT_ONCE = 200
"""Most ids on one command line, whose length is limited."""

Environment = Callable[[Mapping[str, str]], dict[str, str]]
"""Makes the environment of commands from that of this process."""


class NotStarted(BatchError):
    """The program of a command cannot be run."""


class CommandFailed(BatchError):
    """A command ended with an exit code other than 0. output: what it printed all the same."""

    def __init__(self, said: str, output: str) -> None:
        super().__init__(said)
        self.output = output


def parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the ids in parts that each fit on a command line."""
    for first in range(0, len(ids), IDS_AT_ONCE):
        yield ids[first : first + IDS_AT_ONCE]


@contextlib.contextmanager
def submitting(refusals: re.Pattern[str], doubts: re.Pattern[str]) -> Iterator[None]:
    """Raise SubmissionRefused for the error of a submission in the block if surely no job exists.

    That is so if the command cannot be run, or its message has one of the `refusals` and none of
    the `doubts`, after which the system may have the job.
    """
    try:
        yield
    except NotStarted as error:
        raise SubmissionRefused(str(error)) from None
    except BatchError as error:
        said = str(error)
        if refusals.search(said) and not doubts.search(said):
            raise SubmissionRefused(said) from None
        raise


class Commands:
    """Runs commands in threads."""

    def __init__(self, environment: Environment, *, timeout_s: float = COMMAND_TIMEOUT_S) -> None:
        self._environment = environment
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(AT_ONCE, "batch")

    @classmethod
    def of(
        cls, title: str, names: Sequence[str], environment: Environment, *, hint: str = ""
    ) -> Commands:
        """Return the commands of a batch system, those with these names among them.

        Raises Unavailable, with the hint, if any of these is missing on this machine.
        """
        missing = [name for name in names if shutil.which(name) is None]
        if missing:
            raise Unavailable(
                f"{title}'s commands are not on the PATH of this machine: "
                f"{', '.join(missing)}{hint}"
            )
        return cls(environment)

    async def run(self, *command: str, feed: str = "", with_errors: bool = False) -> str:
        """Return a command's output. Raises BatchError if it fails or takes too long.

        with_errors: the output includes what it writes to stderr.
        Cancelling the wait kills the command: a thread that waits for it would delay the end of
        this program.
        """
        loop = asyncio.get_running_loop()
        started = _Started()
        try:
            # The second limit is for a command that cannot even be killed.
            async with asyncio.timeout(self._timeout_s + 2 * KILLED_S):
                return await loop.run_in_executor(
                    self._threads, self._wait_for, command, feed, with_errors, started
                )
        except TimeoutError:
            raise BatchError(self._no_answer(command)) from None
        except asyncio.CancelledError:
            started.kill()
            raise

    def _no_answer(self, command: Sequence[str]) -> str:
        return f"{command[0]} did not answer in {self._timeout_s:g} s"

    def _wait_for(
        self, command: Sequence[str], feed: str, with_errors: bool, started: _Started
    ) -> str:
        try:
            # In a session of its own, so that Ctrl-C does not interrupt a submission.
            process = subprocess.Popen(
                command,
                env=self._environment(os.environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if with_errors else subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise NotStarted(f"{command[0]} cannot be started: {error}") from None
        started.set(process)
        try:
            output, errors = process.communicate(feed, timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise BatchError(self._no_answer(command)) from None
        if process.returncode:
            said = " ".join((errors or output).split())
            said = said or f"{command[0]} ended with exit code {process.returncode}"
            raise CommandFailed(said, output)
        return output


class _Started:
    """The process of a command, which another thread may kill."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._unwanted = False

    def set(self, process: subprocess.Popen[str]) -> None:
        """Report that the process has started."""
        with self._lock:
            self._process = process
            if self._unwanted:
                _signal(process)

    def kill(self) -> None:
        """Kill the process, now or as soon as it has started."""
        with self._lock:
            self._unwanted = True
            if self._process is not None:
                _signal(self._process)


def _signal(process: subprocess.Popen[str]) -> None:
    """Send SIGKILL to a process and those it has started, if it has not ended."""
    if process.poll() is None:  # otherwise its process id may be reused
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a command, with the programs that a site's wrapper has started."""
    _signal(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=KILLED_S)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
