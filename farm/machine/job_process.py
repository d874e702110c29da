"""Processes that do one job after another for this one, over a socket.

A message is one byte, with the descriptors of memory files: of the job, of what it works on if that
is in a file already, and of the answer. So long messages are neither copied nor joined.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from farm.call import Buffer
from farm.machine.fork_parent import ForkParent, ModuleProcess
from farm.machine.memory_file import file_of, frames_in
from farm.machine.programs import in_words

ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
"""Environment of such processes: the cores belong to the workers."""

STDERR = 2

MOST_FILES = 2

END_S, LOOK_S = 10.0, 0.01
"""Time in which a process that has closed its line must end, and between two looks."""


class ProcessDied(Exception):
    """The process ended during its job; the message says how, by its exit status `code`."""

    def __init__(self, code: int) -> None:
        super().__init__(in_words(code, out_of_memory=code == -signal.SIGKILL))
        self.code = code


class JobProcess(ModuleProcess):
    """A process whose module calls `do_jobs` with the descriptor of its option `--line`."""

    def __init__(
        self,
        module: str,
        words: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        output: int = STDERR,
        parent: ForkParent | None = None,
    ) -> None:
        """See `ModuleProcess`. environment: by default this one's, with one thread for libraries.

        output: by default stderr, as what it prints must not mix with the output of this process.
        """
        self._line, theirs = socket.socketpair()
        try:
            with theirs:
                super().__init__(
                    module,
                    words,
                    environment=job_environment() if environment is None else environment,
                    output=output,
                    descriptors={"line": theirs.fileno()},
                    parent=parent,
                )
        except BaseException:
            self._line.close()
            raise

    def ask(
        self, frames: Sequence[Buffer], *files: int, limit_s: float | None = None
    ) -> list[memoryview]:
        """Return the frames of the answer to a job; blocks.

        Raises ProcessDied; TimeoutError after `limit_s` seconds, and OSError if this process has
        too many open files for the answer. The process is then killed.
        """
        job = file_of(frames)
        try:
            self._line.settimeout(limit_s)
            socket.send_fds(self._line, [b"."], [job, *files])
            received, answers, _, _ = socket.recv_fds(self._line, 1, 1)
        except TimeoutError:
            self.kill()
            raise
        except OSError:  # the process has closed the connection
            received, answers = b"", []
        finally:
            os.close(job)
        if received and not answers:  # the kernel drops a file that this process cannot open
            self.kill()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if not answers:
            raise ProcessDied(self._end())
        try:
            return frames_in(answers[0])
        finally:
            os.close(answers[0])

    def _end(self) -> int:
        """Return the exit status of the process, which has closed the line and ends."""
        until = time.monotonic() + END_S
        while self.lives() and time.monotonic() < until:
            time.sleep(LOOK_S)
        self.kill()  # a thread of a library may keep it
        return self.wait()

    def close(self) -> None:
        """Kill it and release its resources, while no thread is in `ask`."""
        super().close()
        self._line.close()


def job_environment() -> Mapping[str, str]:
    """Return the environment of such processes, and of their parents."""
    return {**os.environ, **ONE_THREAD}


def do_jobs(line: int, do: Callable[[Sequence[int]], Sequence[Buffer]]) -> None:
    """Do jobs until the other end of the socket closes. do: from a job's files to the answer."""
    os.set_inheritable(line, False)  # not for programs that a library starts
    with socket.socket(fileno=line) as connection:
        while True:
            _, files, _, _ = socket.recv_fds(connection, 1, MOST_FILES)
            if not files:
                return
            for file in files:
                os.set_inheritable(file, False)
            try:
                answer = file_of(do(files))
            finally:
                for file in files:
                    os.close(file)
            try:
                socket.send_fds(connection, [b"."], [answer])
            finally:
                os.close(answer)


def be_killed_first(score: int) -> None:
    """Have the kernel kill this process, which can be replaced, before the server."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(score))
