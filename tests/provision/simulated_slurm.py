"""A simulated SLURM at the level of its commands' texts, with the truth about its jobs.

It may answer as real ones do: late, not at all, from a cache, with banners, with rows left out or
cut off. It does not lie in two ways that no real one does: scontrol says that it knows no such job
only of jobs that have ended, and scancel reports success only if it had its effect.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from farm.provision.batch.system import BatchError
from farm.provision.batch.systems.slurm import HEADER, UNKNOWN_ID

TIMEOUT_S = 60.0
KILL_S = 5.0
JOIN_S = 3.0
ENDED = ("COMPLETED", "CANCELLED", "FAILED", "NODE_FAIL")
BANNER = "*** maintenance on 2026-11-24 ***\n12\n\n"

SQUEUE = (
    *("fine", "nothing", "no rows", "old", "partial", "cut", "garbage", "banner"),
    *("fails", "hangs", "slow"),
)
SBATCH = (
    *("fine", "banner", "no id", "answer lost", "request lost", "refuses", "slow"),
    *("hangs before", "hangs after", "late"),
)
SCONTROL = ("fine", "banner", "fails", "hangs", "garbage", "nothing", "slow")
SCANCEL = ("fine", "fails", "answer lost", "hangs", "slow")


@dataclass(eq=False)
class TrueJob:
    """A job as it is. requeues: a job that completes and will be in the queue again.

    is_cut_off: its workers have no connection to the farm. is_stuck: it drains without an end.
    """

    id: str
    name: str
    state: str = "PENDING"
    since: float = 0.0
    requeues: bool = False
    drains: bool = False
    is_cut_off: bool = False
    is_stuck: bool = False

    @property
    def lives(self) -> bool:
        return self.state not in ENDED

    @property
    def is_doomed(self) -> bool:
        """Whether it ends by itself for good."""
        return not self.lives or (self.state == "COMPLETING" and not self.requeues)


@dataclass
class SimulatedSlurm:
    """Runs commands; `step` lets time pass. Modes are words of the tables above."""

    chance: random.Random
    squeue: str = "fine"
    sbatch: str = "fine"
    scontrol: str = "fine"
    scancel: str = "fine"
    age_s: float = 100.0
    delay_s: float = 20.0
    kept_s: float = 300.0
    has_accounts: bool = False
    jobs: dict[str, TrueJob] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    submitted: int = 0
    _history: list[tuple[float, list[str]]] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    # Commands

    async def run(self, *command: str, feed: str = "") -> str:
        """Return a command's output. Raises BatchError, as `Commands.run`."""
        name = command[0]
        mode = "fine" if name == "sacct" else getattr(self, name)
        if mode == "fails":
            await asyncio.sleep(self.chance.choice((0.0, 9.0)))
            raise BatchError(f"{name}: error: Unable to contact slurm controller")
        if mode == "hangs":
            await self._hang(name)
        if mode == "nothing":
            return ""
        if mode == "garbage":
            return "".join(chr(self.chance.randrange(256)) for _ in range(60)) + "|end\n\0"
        text: str = await getattr(self, f"_{name}")(command[1:], feed, mode)
        if mode == "slow":
            await asyncio.sleep(self.delay_s)
        return f"{BANNER}{text}{BANNER}" if mode == "banner" and name != "sbatch" else text

    async def _hang(self, name: str) -> None:
        await asyncio.sleep(TIMEOUT_S)
        raise BatchError(f"{name} did not answer in 60 s")

    async def _sbatch(self, _arguments: tuple[str, ...], script: str, mode: str) -> str:
        found = re.search(r"#SBATCH --job-name=(\S+)", script)
        assert found is not None
        name = found[1]
        if mode == "refuses":
            raise BatchError("sbatch: error: Batch job submission failed: Invalid account")
        if mode == "request lost":
            raise BatchError(
                "sbatch: error: Batch job submission failed: "
                "Socket timed out on send/recv operation"
            )
        if mode == "hangs before":
            await self._hang("sbatch")
        if mode == "late":
            self._later(TIMEOUT_S + self.delay_s / 2, name)
            await self._hang("sbatch")
        job = self._new(name)
        if mode == "hangs after":
            await self._hang("sbatch")
        if mode == "answer lost":
            raise BatchError(
                "sbatch: error: Batch job submission failed: Zero Bytes were transmitted"
            )
        if mode == "no id":
            return "welcome\n"
        return f"motd: 3 jobs\n{job.id}\nsee you\n" if mode == "banner" else f"{job.id}\n"

    def _later(self, delay_s: float, name: str) -> None:
        async def arrive() -> None:
            await asyncio.sleep(delay_s)
            self._new(name)

        task = asyncio.get_running_loop().create_task(arrive())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _squeue(self, _arguments: tuple[str, ...], _feed: str, mode: str) -> str:
        rows = list(self._rows())
        if mode == "no rows":
            rows = []
        elif mode == "old":
            at = _now() - self.age_s
            rows = next((rows for since, rows in reversed(self._history) if since <= at), [])
        elif mode == "partial":
            rows = [row for row in rows if self.chance.random() < 0.5]
        text = "".join(f"{row}\n" for row in (HEADER, *rows))
        return text[: self.chance.randrange(len(text))] if mode == "cut" else text

    async def _scontrol(self, arguments: tuple[str, ...], _feed: str, _mode: str) -> str:
        job = self.jobs.get(arguments[-1])
        if job is None or not self._is_kept(job):
            raise BatchError(f"slurm_load_jobs error: {UNKNOWN_ID}")
        return (
            f"JobId={job.id} JobName={job.name} UserId=me({os.getuid()}) JobState={job.state} "
            "Reason=None ReqNodeList=(null) NodeList=n1\n"
        )

    async def _sacct(self, arguments: tuple[str, ...], _feed: str, _mode: str) -> str:
        if not self.has_accounts:
            raise BatchError("Slurm accounting storage is disabled")
        job = self.jobs.get(arguments[arguments.index("-j") + 1])
        if job is None:
            return ""
        state = "RUNNING" if _now() - job.since < 20.0 else job.state
        state = "CANCELLED by 0" if state == "CANCELLED" else state
        return f"{job.id}|{state}|0:0|{job.name}\n"

    async def _scancel(self, arguments: tuple[str, ...], _feed: str, mode: str) -> str:
        for job in list(self.jobs.values()):
            if f"--name={job.name}" in arguments or job.id in arguments:
                if "--signal=TERM" in arguments:
                    job.drains = job.drains or job.state == "RUNNING"
                else:
                    self.cancel(job)
        if mode == "answer lost":
            raise BatchError("scancel: error: Kill job error: Socket timed out")
        return ""

    # The truth

    def _new(self, name: str) -> TrueJob:
        self.submitted += 1
        job = TrueJob(str(100 + self.submitted), name, since=_now())
        self.jobs[job.id] = job
        self._changed()
        return job

    def cancel(self, job: TrueJob) -> None:
        """End a job as scancel does: one that is in the queue at once, others soon."""
        job.requeues = False
        if job.state == "PENDING":
            self.set(job, "CANCELLED")
        elif job.state == "RUNNING":
            self.set(job, "COMPLETING")

    def set(self, job: TrueJob, state: str) -> None:
        """Change the state of a job."""
        if job.lives:
            job.state, job.since = state, _now()
            if state in ("PENDING", "RUNNING"):
                job.drains = job.is_cut_off = False
            self._changed()

    def requeue(self, job: TrueJob) -> None:
        """Requeue a running job; until it has left its nodes, SLURM calls it COMPLETING."""
        if job.state == "RUNNING":
            self.set(job, "COMPLETING")
            job.requeues = True

    def step(self) -> None:
        """Let jobs begin, finish and end whose time has come."""
        for job in list(self.jobs.values()):
            for_s = _now() - job.since
            if job.state == "COMPLETING" and for_s >= KILL_S:
                self.set(job, "PENDING" if job.requeues else "CANCELLED")
                job.requeues = False
            elif job.state == "PENDING" and for_s >= 4.0 and self.chance.random() < 0.2:
                self.set(job, "RUNNING")
            elif job.state == "RUNNING" and job.drains and not job.is_stuck:
                self.set(job, "COMPLETED")
        self._changed()

    def alive(self) -> list[TrueJob]:
        return [job for job in self.jobs.values() if job.lives]

    def workers(self) -> list[dict[str, object]]:
        """The dispatcher's rows of the jobs' workers."""
        return [
            {
                **{"name": f"n1/{job.id}", "job": job.id, "kind": "small", "host": "n1"},
                "models": ["beam"],
                **{"slots": 0 if job.drains else 1, "in_flight": 0, "done": 0},
                **{"ends_in_s": None, "busy_s": None},
            }
            for job in self.jobs.values()
            if job.state == "RUNNING" and not job.is_cut_off and _now() - job.since > JOIN_S
        ]

    def drain(self, worker: str) -> None:
        """Ask a worker to leave, as the dispatcher does over its connection."""
        job = self.jobs[worker.removeprefix("n1/")]
        job.drains = job.drains or job.state == "RUNNING"

    def _is_kept(self, job: TrueJob) -> bool:
        return job.lives or _now() - job.since < self.kept_s

    def _rows(self) -> Iterator[str]:
        for job in self.jobs.values():
            if self._is_kept(job):
                yield f"farm|{job.id}|{job.state}|n1|{job.name}|None|N/A|end"

    def _changed(self) -> None:
        rows = list(self._rows())
        if not self._history or self._history[-1][1] != rows:
            self._history.append((_now(), rows))


def _now() -> float:
    return asyncio.get_running_loop().time()
