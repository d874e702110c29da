"""One model process as its supervisor sees it: start it, hear from it, end it, say why it died."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from farm.machine.private import private_opener
from farm.provision.record import Running, RunRecord
from farm.provision.stops import ChildStops
from farm.worker.lifeline import Lifeline
from farm.worker.servers import EXIT_SERVER_GONE

LAST_LINES = 30
LAST_BYTES = 8192

OOM_EVIDENCE_S = 10.0
"""A process that the kernel ends for want of memory may take seconds to be gone."""


class Child:
    """One incarnation of one model process, `farm.provision.process`; its group, log and pipes.

    worker: its name among the workers once it has loaded its models, else "".
    error: why the models cannot be had; done: it said goodbye; talks: more may be heard.
    For the supervisor's notes: doom: why it is being killed; kill_at: when it is to be.
    """

    def __init__(
        self, arguments: Sequence[str], *, log: Path, environment: Mapping[str, str]
    ) -> None:
        """Start the program with `arguments`. Raises OSError."""
        self.worker = ""
        self.error = ""
        self.done = False
        self.talks = True
        self.doom = ""
        self.kill_at: float | None = None
        self.told_to_drain = False
        self.ready_at: float | None = None
        self.log = log
        self._lifeline = Lifeline()
        try:
            with open(log, "ab", opener=private_opener) as output:
                self._log_began = output.tell()
                self._process = self._started(arguments, output, environment)
        except BaseException:
            self._lifeline.cut()
            raise
        self.pid = self._process.pid
        self._stops = ChildStops(self.pid)
        self._lifeline.tie(self.pid)

    def _started(
        self, arguments: Sequence[str], output: BinaryIO, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Open the lines to the process, and start it."""
        self._unread = b""
        self._record = RunRecord.create()
        self.status, status_write = os.pipe()
        os.set_blocking(self.status, False)
        passed = {
            "--lifeline": self._lifeline.read_end,
            "--status": status_write,
            "--record": self._record.descriptor,
        }
        words = [word for name, fd in passed.items() for word in (name, str(fd))]
        command = [*python("farm.provision.process"), *words, *arguments]
        try:
            return self._popen(command, output, environment, tuple(passed.values()))
        except OSError:
            os.close(self.status)
            raise
        finally:
            os.close(status_write)
            self._record.close()

    def _popen(
        self,
        command: Sequence[str],
        output: BinaryIO,
        environment: Mapping[str, str],
        pass_fds: Sequence[int],
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            process_group=0,
            pass_fds=pass_fds,
        )

    def listen(self) -> None:
        """Take in what the process has said."""
        while self.talks:
            try:
                data = os.read(self.status, 4096)
            except BlockingIOError:
                return
            self.talks = bool(data)
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                self._heard(json.loads(line))

    def _heard(self, facts: Mapping[str, object]) -> None:
        if "worker" in facts:
            self.worker = str(facts["worker"])
            self.ready_at = time.monotonic()
        self.error = str(facts.get("error", self.error))
        self.done = bool(facts.get("done", self.done))

    def running(self) -> Running | None:
        """What the process runs; None when that cannot be told."""
        return self._record.read()

    def busy_since(self) -> float | None:
        """When the model call that runs began, on the monotonic clock; None when none runs."""
        running = self.running()
        return None if running is None or running.tasks == () else running.since_s

    def stopped_s(self, now: float) -> float:
        """Seconds for which it has been stopped, as by SIGSTOP; to be asked at each look."""
        return self._stops.stopped_s(now)

    def why(self, code: int, *, out_of_memory: bool) -> str:
        """Why it has ended, in words; code: its exit status."""
        return in_words(code, out_of_memory=out_of_memory)

    def code(self) -> int | None:
        """The exit status, minus the signal that ended it; None while it lives.

        What it has started and left behind ends with it.
        """
        if self._process.returncode is None:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            # Before it is waited for: until then nobody else can have its number.
            self._kill_group()
            self._process.wait()
        return self._process.returncode

    def drain(self) -> None:
        """Ask it to finish what it runs and end."""
        self.told_to_drain = True
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and the programs it started, now."""
        if self.code() is None:
            self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let go of what is held for it; if it still lives, it is killed."""
        self.kill()
        self._process.wait()
        self._lifeline.cut()
        self._close_lines()

    def _close_lines(self) -> None:
        os.close(self.status)

    def last_lines(self) -> str:
        """The end of what this incarnation wrote to its log."""
        with self.log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(self._log_began, file.tell() - LAST_BYTES))
            text = file.read().decode(errors="replace")
        return "\n".join(text.rstrip().splitlines()[-LAST_LINES:])


def python(module: str) -> list[str]:
    """The words of a command line that runs a module of farm's."""
    # -P: a file of the user's called like a module of farm's is not taken for it.
    return [sys.executable, "-u", "-P", "-m", module]


def in_words(code: int, *, out_of_memory: bool) -> str:
    """An exit status as `Child.code` gives it, in words."""
    if code == EXIT_SERVER_GONE:
        return "its model server does not answer"
    if code >= 0:
        return f"exit code {code}"
    if code == -signal.SIGKILL and out_of_memory:
        return "killed (out of memory?)"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


class OutOfMemory:
    """Whether the kernel has ended some process of this machine for want of memory just now."""

    def __init__(self, counters: Path = Path("/proc/vmstat")) -> None:
        self._counters = counters
        self._samples = deque([(time.monotonic(), self._count())])

    def look(self) -> None:
        """Take a sample; to be called at least every few seconds."""
        now = time.monotonic()
        if now - self._samples[-1][0] > 1.0:
            self._samples.append((now, self._count()))
            while self._samples[1][0] < now - OOM_EVIDENCE_S:
                self._samples.popleft()

    def happened(self) -> bool:
        """Whether the kernel's count has risen within the last ten seconds or so."""
        return self._count() > self._samples[0][1]

    def _count(self) -> int:
        try:
            words = self._counters.read_text().split()
            return int(words[words.index("oom_kill") + 1])
        except (OSError, ValueError, IndexError):
            return 0
