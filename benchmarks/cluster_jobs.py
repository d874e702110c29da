"""The jobs of a benchmark as SLURM reports them: their CPUs, and the time that they held them.

`scontrol show job` lists ended jobs for MinJobAge seconds, so `look` more often than that.
"""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import dataclass

WORDS = re.compile(r"\b(JobId|JobState|StartTime|EndTime|NumCPUs)=(\S+)")
LIVE = frozenset({"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED"})
WAIT_S = 900.0


@dataclass(frozen=True)
class Held:
    """CPUs that a job held; Unix times in whole seconds. live: the end is not yet known."""

    live: bool
    cpus: int
    begin: float
    end: float


class JobRecord:
    """All jobs submitted since this object was made."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._before = set(_listed())

    def look(self) -> None:
        """Update the record."""
        for job_id, held in _listed().items():
            if job_id not in self._before:
                self._held[job_id] = held

    def wait_for_ends(self) -> None:
        """Wait until all jobs have ended. Raises RuntimeError on timeout."""
        limit = time.monotonic() + WAIT_S
        self.look()
        while any(held.live for held in self._held.values()):
            if time.monotonic() > limit:
                raise RuntimeError(f"jobs still run {WAIT_S:g} s later")
            time.sleep(0.5)
            self.look()

    @property
    def ran(self) -> list[Held]:
        """The jobs that had CPUs; call `wait_for_ends` before."""
        return [held for held in self._held.values() if held.begin]

    def cpu_seconds(self) -> float:
        """Return the sum over all jobs of their CPUs times (end - start)."""
        return sum(held.cpus * (held.end - held.begin) for held in self.ran)


def setting(name: str) -> str:
    """Return a value of `scontrol show config`."""
    found = re.search(rf"^{name}\s*= (.*)$", _scontrol("show", "config"), re.MULTILINE)
    return found[1].strip() if found else ""


def _listed() -> dict[str, Held]:
    found = {}
    for line in _scontrol("-o", "show", "job").splitlines():
        words = dict(WORDS.findall(line))
        if "JobId" not in words:
            continue
        state = words["JobState"]
        began = state != "PENDING" and words["StartTime"] != "Unknown"
        found[words["JobId"]] = Held(
            live=state in LIVE,
            cpus=int(words["NumCPUs"].split("-")[0]),
            begin=_seconds(words["StartTime"]) if began else 0.0,
            end=_seconds(words["EndTime"]) if began else 0.0,
        )
    return found


def _seconds(text: str) -> float:
    if text == "Unknown":
        return time.time()
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))


def _scontrol(*words: str) -> str:
    return subprocess.run(("scontrol", *words), check=True, capture_output=True, text=True).stdout
