"""One group of MPI ranks from its supervisor's side: a launcher, and a line from every rank."""

from __future__ import annotations

import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farm.machine.lifeline import TiedProcess
from farm.machine.programs import in_words
from farm.provision.local import rank_parent
from farm.provision.local.child import Child
from farm.provision.local.rank_lines import RankLines
from farm.provision.local.rank_parent import VARIABLE
from farm.provision.local.record import Running
from farm.provision.local.stops import ProcessStops
from farm.wording import worded
from farm.worker.mpi.world import EXIT_STUCK, WorldError, check_installed, launcher_path

NOTICE_WITHIN_S = 3.0
"""A launcher whose ranks were killed has this long to end by itself."""

ABORT = re.compile(
    r"^Abort\((?P<code>-?\d+)\) on node (?P<rank>\d+) .*application called MPI_Abort"
    r"|^MPI_ABORT was invoked on rank (?P<rank_2>\d+) in .*\n?.*with errorcode (?P<code_2>-?\d+)",
    re.MULTILINE,
)
"""Messages of MPICH and Open MPI when a program calls MPI_Abort."""

CRASH_SIGNALS = frozenset(
    {
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGSEGV,
        signal.SIGSYS,
        signal.SIGTRAP,
    }
)
"""Signals that a process brings upon itself."""

DEFAULT_LINE = "mpiexec -n {ranks}"

FILES_OF_A_GROUP, OTHER_FILES = 5, 100
"""Open files per group of MPI ranks, besides a connection to each rank; and for everything else."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a group of ranks.

    ranks: MPI processes of one group; line: the launcher and its options, with `{ranks}` for their
    number.
    """

    ranks: int
    line: str = DEFAULT_LINE

    def words(self) -> list[str]:
        """Return the words of the line. Raises WorldError if malformed, or without a launcher."""
        try:
            program, *options = shlex.split(self.line.replace("{ranks}", str(self.ranks)))
        except ValueError as error:  # an unclosed quotation, or no words at all
            option = worded("--mpi-launch", "mpi_launch")
            raise WorldError(
                f"{option} is {self.line!r}, which is no command ({error}); "
                f"expected something like: {DEFAULT_LINE}"
            ) from None
        return [launcher_path(program), *options]

    def check(self, groups: int, open_files: int) -> None:
        """Raise WorldError if so many groups cannot be started, or not by so many open files."""
        check_installed()
        self.words()
        needed = groups * (self.ranks + FILES_OF_A_GROUP) + OTHER_FILES
        if needed > open_files:
            raise WorldError(
                f"a connection to each of {groups * self.ranks} MPI ranks needs {needed} open "
                f"files, this process may have {open_files}: raise the hard limit (ulimit -Hn), or "
                "start fewer groups here and others by another farm worker"
            )


def launch_of(ranks: int | None, line: str | None) -> Launch | None:
    """Return the launch for the options `--mpi` and `--mpi-launch`; None without MPI."""
    return None if ranks is None else Launch(ranks, line or DEFAULT_LINE)


class Group(Child):
    """One start of a group; its process is the launcher, and it ends when all ranks have ended."""

    _lines: RankLines

    def __init__(
        self,
        launch: Launch,
        arguments: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        loopback: bool,
    ) -> None:
        """Start `rank.py` with `arguments` as all ranks. Raises OSError, WorldError.

        loopback: the farm is reached on this host only, so all ranks are here.
        """
        self._launch = launch
        self._loopback = loopback
        self._running: Running | None = Running((), time.monotonic())
        self._told_code: int | None = None
        self._kill_launcher_at: float | None = None
        self._host = socket.gethostname()
        self._ranks_here: dict[int, ProcessStops] = {}
        super().__init__(arguments, log=log, environment=environment)

    def _started(
        self, arguments: Sequence[str], output: int, environment: Mapping[str, str]
    ) -> TiedProcess:
        command = [*self._launch.words(), *rank_parent.command()]
        command += ["--ranks", str(self._launch.ranks), *arguments]
        self._lines = RankLines(loopback=self._loopback, ranks=self._launch.ranks)
        try:
            return TiedProcess(  # the launcher; the ranks have lifelines of their own
                lambda lifeline: command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**environment, VARIABLE: self._lines.address},
            )
        except OSError:
            self._lines.cut()
            raise

    def _heard(self, facts: Mapping[str, object]) -> None:
        if "running" in facts:
            tasks = facts["running"]
            assert isinstance(tasks, list)
            row = facts.get("row", 0)
            assert isinstance(row, int)
            self._running = Running(tuple(tasks), time.monotonic(), row)
        pid = facts.get("pid")
        if isinstance(pid, int) and facts.get("host") == self._host:
            self._ranks_here[pid] = ProcessStops(pid)
        if isinstance(facts.get("code"), int):
            self._told_code = int(str(facts["code"]))
        super()._heard(facts)

    def running(self) -> Running | None:
        """Return the tasks that the group runs, as far as reported."""
        return self._running

    def is_quiet(self) -> bool:
        """Return False: the launcher, not this process, is the parent of its ranks."""
        return False

    def stopped_s(self, now: float) -> float:
        """Return for how many seconds one of its ranks on this host has been stopped."""
        return max((stops.stopped_s(now) for stops in self._ranks_here.values()), default=0.0)

    def why(self, code: int, *, out_of_memory: bool) -> str:
        """Return why it has ended, in words."""
        if self._told_code == EXIT_STUCK:
            return "a rank failed while others waited for it in MPI"
        if self._told_code is not None:
            return in_words(code, out_of_memory=out_of_memory)
        size, failed, aborted = self._launch.ranks, self._lines.failed, self._aborted()
        if aborted is not None:
            rank, error_code = aborted
            return f"rank {rank} of {size} called MPI_Abort with error code {error_code}"
        if failed is not None:
            name = "a rank" if failed.rank is None else f"rank {failed.rank}"
            return f"{name} of {size} died: {in_words(failed.status, out_of_memory=out_of_memory)}"
        reason = in_words(code, out_of_memory=False)
        return f"the launcher ended its {size} ranks: {reason}" if self._lines.gone else reason

    def was_killed_at_start(self, code: int) -> bool:
        """Whether such a signal has ended a rank or the launcher."""
        failed = self._lines.failed
        return super().was_killed_at_start(code if failed is None else failed.status)

    def crashed(self) -> bool:
        """Whether a rank called MPI_Abort, or ended by itself and by no signal from outside.

        A rank that SLURM or the kernel killed, or that was lost with its host, has not crashed.
        """
        failed = self._lines.failed
        if failed is None or self._told_code is not None:
            return self._aborted() is not None
        return failed.status >= 0 or -failed.status in CRASH_SIGNALS

    def _aborted(self) -> tuple[str, str] | None:
        """Return the rank that called MPI_Abort and its error code, as its MPI library wrote them.

        Its parent may be killed before it can report the end.
        """
        found = ABORT.search(self.last_text())
        return (
            None
            if found is None
            else (found["rank"] or found["rank_2"], found["code"] or found["code_2"])
        )

    def kill(self) -> None:
        """Kill the ranks, now; their launcher gets a moment to notice.

        Killing srun itself would leave its step behind, and with it the step's processors.
        """
        if self.code() is None and self._kill_launcher_at is None:
            self._cut()
            self._kill_launcher_at = time.monotonic() + NOTICE_WITHIN_S
            self._process.send_signal(signal.SIGTERM)

    def code(self) -> int | None:
        """Return the exit status reported by rank 0, else the launcher's; None while that lives."""
        if not self._process.has_ended():
            due = self._kill_launcher_at
            if due is not None and time.monotonic() >= due:
                self._cut()
                self._process.kill()
            return None
        self._cut()  # first: what a rank has reported decides the status
        code = self._process.code()
        return code if self._told_code is None else self._told_code

    def drain(self) -> None:
        """Ask rank 0 to finish the group's running calls and end the group."""
        self.told_to_drain = True
        self._lines.drain()

    def _cut(self) -> None:
        self.listen()  # closing the lines would lose messages that have arrived
        self._lines.cut()

    def close(self) -> None:
        """Release its resources; if it still lives, kill it together with its launcher."""
        self._cut()
        super().close()
