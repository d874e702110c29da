"""Jobs of the launcher on a test cluster: submit them, look at them, wait for their ends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from farm.cli.launcher import script
from tests.slurm.cluster import LIMIT_S, Cluster, wait_for

FARM = Path(sys.executable).parent / "farm"

MODEL = """
import os, socket, time
import farm

@farm.model(inputs={"x": 2}, outputs={"y": 1})
def total(x, config):
    time.sleep(config.get("sleep", 0.0))
    return x.sum()

@farm.model(inputs={"x": 1}, outputs={"device": 1})
def device(x):
    return float(os.environ["CUDA_VISIBLE_DEVICES"])
"""
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


def write_files(folder: Path) -> None:
    """Write the launcher, as `farm.sh`, and `model.py` into a folder that the nodes see."""
    (folder / "farm.sh").write_text(script(FARM))
    (folder / "model.py").write_text(MODEL)


class Launched:
    """A job of the launcher that was submitted from `folder`."""

    def __init__(self, cluster: Cluster, folder: Path, *words: str) -> None:
        """Submit the job. words: those after `sbatch`, which name the launcher.

        Raises CalledProcessError.
        """
        self.cluster = cluster
        self.folder = folder
        output = folder / "%j.out"
        command = ["sbatch", "--parsable", f"--output={output}", *words]
        self.id = cluster.run(command, cwd=folder).strip()
        self.run_folder = folder / f"farm-{self.id}"

    def output(self) -> str:
        """Return the job's output so far."""
        path = self.folder / f"{self.id}.out"
        return path.read_text() if path.exists() else ""

    def ended(self, limit_s: float = 60.0) -> dict[str, str]:
        """Wait until the job has ended; return SLURM's record of it."""
        try:
            return self.cluster.wait_for_job(self.id, *ENDED, limit_s=limit_s)
        except AssertionError as error:
            error.add_note(self.output())
            raise

    def exit_code(self, limit_s: float = 60.0) -> str:
        """Wait until the job has ended; return its exit code as SLURM writes it."""
        return self.ended(limit_s)["ExitCode"]

    def workers(self, count: int, limit_s: float = LIMIT_S) -> list[dict[str, Any]]:
        """Wait until the job's farm has this many workers; return their rows of `farm status`."""
        return workers_of(self.cluster, self.run_folder, count, self.output, limit_s)

    def cancel(self) -> None:
        """Cancel the job, and wait until it has ended and has removed its connection file."""
        self.cluster.run(["scancel", self.id])
        assert self.ended()["JobState"] == "CANCELLED"
        wait_for(lambda: not (self.run_folder / "farm.json").exists(), "the farm's end")


def workers_of(
    cluster: Cluster, run_folder: Path, count: int, output: Any = str, limit_s: float = LIMIT_S
) -> list[dict[str, Any]]:
    """Wait until a farm has this many workers; return their rows of `farm status`."""
    rows: list[dict[str, Any]] = []

    def there() -> bool:
        try:
            rows[:] = cluster.farm_status(run_folder)["workers"]
        except ConnectionError:  # it is not up yet
            return False
        return len(rows) == count

    try:
        wait_for(there, f"{count} workers", limit_s)
    except AssertionError as error:
        error.add_note(f"workers: {[row['name'] for row in rows]}")
        error.add_note(output())
        raise
    return rows


def host_of(row: dict[str, Any]) -> str:
    """Return the host of a worker, from its row of `farm status`."""
    return str(row["name"]).partition("/")[0]
