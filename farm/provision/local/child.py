"""One model process from its supervisor's side: start, status, end and cause of death."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farm.machine.fork_parent import ForkParent, ModuleProcess
from farm.machine.lifeline import TiedProcess
from farm.machine.private import private_opener
from farm.machine.programs import in_words, tail_of
from farm.provision.local.rank_lines import RankLines
from farm.provision.local.record import Running, RunRecord
from farm.provision.local.stops import ChildStops

MODULE = "farm.provision.local.process"

LAST_LINES = 30

OOM_EVIDENCE_S = 10.0
"""A process killed by the kernel for lack of memory may take seconds to disappear."""


@dataclass(slots=True)
class ChildStatus:
    """The facts that a model process has reported about itself.

    worker: its name as a worker once it has loaded its models, otherwise ""; ready_at: when that
    was reported, on the monotonic clock. joined: whether the farm has accepted it. error: why it
    could not load its models. done: whether it is about to exit.
    """

    worker: str = ""
    ready_at: float | None = None
    joined: bool = False
    error: str = ""
    done: bool = False

    def reported(self, facts: Mapping[str, object]) -> None:
        """Note the facts of one message."""
        if "worker" in facts:
            self.worker = str(facts["worker"])
            self.ready_at = time.monotonic()
        self.joined = bool(facts.get("joined", self.joined))
        self.error = str(facts.get("error", self.error))
        self.done = bool(facts.get("done", self.done))


class StatusPipe:
    """The end of a pipe from which a process's messages are read. over: no more will arrive."""

    def __init__(self, read_end: int) -> None:
        os.set_blocking(read_end, False)
        self.over = False
        self._read_end = read_end
        self._unread = b""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._read_end

    def read(self) -> Iterator[dict[str, object]]:
        """Yield the messages that have arrived since the last call."""
        while not self.over:
            try:
                data = os.read(self._read_end, 4096)
            except BlockingIOError:
                return
            self.over = not data
            *lines, self._unread = (self._unread + data).split(b"\n")
            yield from map(json.loads, lines)

    def cut(self) -> None:
        """Close it."""
        os.close(self._read_end)


class Child:
    """One start of a model process (`process.py` beside this file): process group, log and pipes.

    status: what it has reported. The supervisor sets doom, why the process is being killed, or the
    process says why it is to be replaced; and the supervisor sets kill_at, when it will be killed,
    on the monotonic clock.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        parent: ForkParent | None = None,
    ) -> None:
        """Start the program with `arguments`. Raises OSError.

        parent: where it is forked from; None: it is a fresh interpreter. Raises ParentLost, too.
        """
        self.status = ChildStatus()
        self.doom = ""
        self.kill_at: float | None = None
        self.told_to_drain = False
        self.log = log
        self._parent = parent
        with open(log, "ab", opener=private_opener) as output:
            self._log_began = output.tell()
            self._process = self._started(arguments, output.fileno(), environment)
        self._stops = ChildStops(self.pid)

    @property
    def pid(self) -> int:
        """The process's id, and that of its group."""
        return self._process.pid

    def _started(
        self, arguments: Sequence[str], output: int, environment: Mapping[str, str]
    ) -> TiedProcess:
        """Open the pipe from the process, and start it."""
        self._record = RunRecord.create()
        read_end, status_write = os.pipe()
        self._lines: StatusPipe | RankLines = StatusPipe(read_end)
        try:
            return ModuleProcess(
                MODULE,
                arguments,
                environment=environment,
                output=output,
                descriptors={"status": status_write, "record": self._record.descriptor},
                parent=self._parent,
            )
        except BaseException:
            self._lines.cut()
            raise
        finally:
            os.close(status_write)
            self._record.close()

    def fileno(self) -> int:
        """Return a descriptor that is readable when `listen` has something to read."""
        return self._lines.fileno()

    @property
    def talks(self) -> bool:
        """Whether more status messages may arrive."""
        return not self._lines.over

    def listen(self) -> None:
        """Read the process's status messages."""
        for facts in self._lines.read():
            self._heard(facts)

    def _heard(self, facts: Mapping[str, object]) -> None:
        self.status.reported(facts)
        self.doom = str(facts.get("doom", self.doom))

    def running(self) -> Running | None:
        """Return the tasks that the process runs; None if that cannot be determined."""
        return self._record.read()

    def busy_since(self) -> float | None:
        """Return when the running model call began, on the monotonic clock; None if none runs."""
        running = self.running()
        return None if running is None or running.tasks == () else running.since_s

    def is_quiet(self) -> bool:
        """Whether it serves, and only a message or an event of its process asks for a look at it.

        Look at it again after each message, and whenever `stops.child_events` is true.
        """
        ending = self.status.done or self.doom or self.told_to_drain or self.kill_at is not None
        ready = self.status.ready_at is not None
        return ready and self.talks and not (ending or self._stops.stopped)

    def stopped_s(self, now: float) -> float:
        """Return the seconds since it was stopped, for example by SIGSTOP; call at each check."""
        return self._stops.stopped_s(now)

    def why(self, code: int, *, out_of_memory: bool) -> str:
        """Return a description of why it ended; code: its exit status."""
        return in_words(code, out_of_memory=out_of_memory)

    def was_killed_at_start(self, code: int) -> bool:
        """Whether a signal from outside has ended it before it had loaded its models."""
        loading = self.status.ready_at is None and not self.doom
        return loading and -code in (signal.SIGKILL, signal.SIGTERM)

    def crashed(self) -> bool:
        """Whether its model is known to have ended it, and its calls are tried only once more.

        A single process restarts in a moment: its calls get all the retries that any loss gets.
        """
        return False

    def code(self) -> int | None:
        """Return the exit status, or minus the signal that ended it; None while it lives.

        Also kills processes that it started and left behind.
        """
        return self._process.code()

    def drain(self) -> None:
        """Ask it to finish its running calls and end."""
        self.told_to_drain = True
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it and the programs it started, now."""
        self._process.kill()

    def close(self) -> None:
        """Release its resources; kill it if it still lives."""
        self._process.close()
        self._lines.cut()

    def last_lines(self) -> str:
        """Return the last lines that this process wrote to its log."""
        return "\n".join(self.last_text().rstrip().splitlines()[-LAST_LINES:])

    def last_text(self) -> str:
        """Return the last part of this process's log."""
        return tail_of(self.log, self._log_began)


class OutOfMemory:
    """Detects whether the kernel has just killed a process here for lack of memory."""

    def __init__(self, counters: Path | None = None) -> None:
        self._counters = counters or counters_here()
        self._samples = deque([(time.monotonic(), self._count())])

    def look(self) -> None:
        """Take a sample; call it at least every few seconds."""
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


def counters_here(root: Path = Path("/")) -> Path:
    """Return a file with the kernel's count, of the own group (cgroups(7)) or of the machine."""
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            folder = root / "sys/fs/cgroup" / ("memory" if controllers else "") / group.lstrip("/")
            file = folder / ("memory.oom_control" if controllers else "memory.events")
            if file.exists() and "oom_kill" in file.read_text().split():
                return file
    return root / "proc/vmstat"
