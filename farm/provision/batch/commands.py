"""Runs the commands of a batch system as coroutines: each is a process with a timeout.

`CommandAdapter` has what the adapters of several systems share. The functions at the end read what
commands print: JSON among a site's banners, ids, messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

from farm.errors import Unavailable
from farm.machine.private import user_name
from farm.provision.batch.system import Adapter, BatchError, SubmissionRefused
from farm.provision.batch.systems import BatchSystem

COMMAND_TIMEOUT_S = 60.0
"""A busy controller may take its time; its own message timeout is ten seconds by default."""

KILLED_S = 5.0
"""Longest wait for the end of a killed command; one that waits for a file system cannot end."""

AT_ONCE = 16
"""Most commands at the same time. They have their own threads: hanging ones must not use up those
of the event loop."""

IDS_AT_ONCE = 200
"""Most ids on one command line, whose length is limited."""

SHOWN = 80
"""Longest part of an answer to quote in a message."""

IN_DOUBT = re.compile(
    r"time[d ]*-?out|end of file|premature|protocol error|reset by peer|broken pipe"
    r"|interrupted|communication|did not respond|no reply|not responding",
    re.IGNORECASE,
)
"""Messages of a submission that may have reached the server: the answer was lost on its way."""


NOTHING = re.compile("(?!)")
"""Matches no text."""


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


class Commands:
    """Runs commands in threads.

    environment: makes that of the commands from that of this process.
    """

    def __init__(
        self,
        environment: Callable[[Mapping[str, str]], dict[str, str]],
        *,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> None:
        self._environment = environment
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(AT_ONCE, "batch")

    @classmethod
    def of(cls, system: BatchSystem) -> Commands:
        """Return those of a batch system. Raises Unavailable if any is missing on this machine."""
        missing = [name for name in system.commands if shutil.which(name) is None]
        if missing:
            raise Unavailable(
                f"{system.title}'s commands are not on the PATH of this machine: "
                f"{', '.join(missing)}{system.where}"
            )
        return cls(system.outside_jobs)

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


@dataclass(frozen=True, slots=True)
class SubmitCommand:
    """The command that submits a job.

    form: fits the line of its output that has the job's id, which is group 1. refusals: messages
    after which surely no job exists, unless one of the `doubts` is there, too: the system may have
    the job.
    """

    command: Sequence[str]
    form: re.Pattern[str]
    refusals: re.Pattern[str]
    doubts: re.Pattern[str] = IN_DOUBT


class CommandAdapter(Adapter):
    """An adapter that runs commands: the methods here take them from these facts of the system.

    submits: the command that submits a job; cancels: the one that cancels those whose ids follow
    it. begins: the beginning of each of their complaints; harmless: those about ended jobs.
    """

    submits: ClassVar[SubmitCommand]
    cancels: ClassVar[Sequence[str]]
    begins: ClassVar[re.Pattern[str]] = NOTHING
    harmless: ClassVar[re.Pattern[str]] = NOTHING

    def __init__(self, commands: Commands | None = None) -> None:
        """Raises Unavailable if commands are not given and missing on this machine."""
        self._run = (commands or Commands.of(self.system)).run
        self._user = user_name()

    async def submit(self, script: str) -> str:
        return await self._submit(*self.submits.command, feed=script)

    async def _submit(self, *command: str, feed: str = "") -> str:
        """Run a command that submits a job; return the id in its output.

        Raises SubmissionRefused if surely no job exists: the command cannot be run, or its message
        says so.
        """
        facts = self.submits
        try:
            output = await self._run(*command, feed=feed)
        except NotStarted as error:
            raise SubmissionRefused(str(error)) from None
        except BatchError as error:
            said = str(error)
            if facts.refusals.search(said) and not facts.doubts.search(said):
                raise SubmissionRefused(said) from None
            raise
        job_id = only_id(output, facts.form)
        if not job_id:
            name = " ".join(word for word in command[:2] if not word.startswith("-"))
            raise BatchError(f"{name} printed no job id, but {quoted(output)}")
        return job_id

    async def cancel(self, jobs: Sequence[str]) -> None:
        await self._each(*self.cancels, jobs=jobs)

    async def _each(self, *command: str, jobs: Sequence[str]) -> None:
        """Run a command with the ids of jobs after it, and tolerate harmless complaints."""
        for part in parts(jobs):
            try:
                await self._run(*command, *part)
            except CommandFailed as error:
                self._complaints(error)

    def _complaints(self, error: CommandFailed) -> list[str]:
        """Return a command's complaints. Raises the error unless all of them are harmless."""
        complaints = [text for text in self.begins.split(str(error)) if text.strip()]
        if not all(self.harmless.search(text) for text in complaints):
            raise error
        return complaints


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


def quoted(text: str) -> str:
    """Return an answer in quotation marks, shortened, for a message."""
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 3] + "...")


def json_object(text: str, key: str) -> dict[str, Any]:
    """Return the first JSON object with this key that begins on a line of its own.

    Lines before and after it, such as banners, are skipped. Raises ValueError if there is none.
    """
    if "\0" in text:
        raise ValueError("a NUL byte")
    decoder = json.JSONDecoder(strict=False)
    for match in re.finditer(r"^[ \t]*(?=\{)", text, re.MULTILINE):
        try:
            found, _ = decoder.raw_decode(text, match.end())
        except ValueError:
            continue
        if key in found:
            return dict(found)
    raise ValueError("no such object")


def only_id(text: str, form: re.Pattern[str]) -> str:
    """Return the job id in a submission's output: group 1 of `form`, which fits a whole line.

    Empty if no line fits, or several with different ids.
    """
    found = {match[1] for line in text.splitlines() if (match := form.fullmatch(line.strip()))}
    return found.pop() if len(found) == 1 else ""


def text_of(row: Mapping[str, Any], key: str) -> str:
    """Return a value of a JSON object as a text on one line; empty if it is not there."""
    value = row.get(key)
    return "" if value is None else " ".join(str(value).split())
