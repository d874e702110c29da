"""A running `tests/grid_engine/dev-cluster` for tests, and a farm on it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.slurm.cluster import LIMIT_S, Cluster, wait_for
from tests.slurm.elastic import FARM, MODEL, Elastic

PROGRAM = Path(__file__).with_name("dev-cluster")
NODES = ("node1", "node2", "node3")

IN_JOBS_ONLY = "import os; os.environ['FARM_JOB']\n"
"""The start of a model that the front door cannot describe, so the first job comes at once."""

ONE_KIND = """
system = "grid-engine"
backlog_s = 2
grow_after_s = 0.5
idle_timeout_s = 3

[[workers]]
name = "small"
models = ["double.py"]
queue = "main.q"
max_jobs = 3
"""


class GridCluster(Cluster):
    """A Grid Engine of the three `NODES`; its hosts share only files with this machine."""

    title = "Grid Engine"

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        foreign = ("FARM_", "SGE_", "GE_CLUSTER_")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
        self.environment["GE_CLUSTER_STATE"] = str(state)

    def dev_cluster(
        self, *arguments: str, cwd: Path | None = None, timeout_s: float = LIMIT_S
    ) -> str:
        """Run `dev-cluster` to its end; returns its output, raises CalledProcessError."""
        return self._call([str(PROGRAM), *arguments], cwd, timeout_s)

    def on(self, host: str, *command: str) -> list[str]:
        """Return the command line that runs `command` on a host."""
        return [str(PROGRAM), "on", host, *command]

    def reset(self) -> None:
        """Restore the cluster: no jobs, all daemons running."""
        self.up()
        with contextlib.suppress(subprocess.CalledProcessError):  # there are none
            self.run(["qdel", "-f", "-u", "root"])
        wait_for(lambda: not self.run(["qstat"]), "the jobs to end")

    def qsub(self, *arguments: str) -> str:
        """Submit a job, as `qsub("-b", "y", "sleep", "10")`; returns its id."""
        output = self.folder / "$JOB_ID.out"
        return self.run(["qsub", "-terse", "-j", "y", "-o", str(output), *arguments]).strip()

    def states(self) -> dict[str, str]:
        """Return the jobs that have not ended, with their states."""
        rows = self.run(["qstat"]).splitlines()[2:]
        return {row.split()[0]: row.split()[4] for row in rows}

    @contextlib.contextmanager
    def jobs_stay(self) -> Iterator[None]:
        """In the block, jobs of a silent node are not started again on another, however long."""
        before = self.run(["qconf", "-sconf", "global"])
        settings = before.replace("\\\n", "").splitlines()[1:]  # after the title
        kept = [line for line in settings if not line.startswith("reschedule_unknown")]
        try:
            self._configure([*kept, "reschedule_unknown 00:00:00"])
            yield
        finally:
            self._configure(settings)

    def _configure(self, settings: Sequence[str]) -> None:
        path = self.folder / "global"  # qconf takes the file's name for the host
        path.write_text("\n".join(settings) + "\n")
        self.run(["qconf", "-Mconf", str(path)])

    def account(self, job: str) -> dict[str, str]:
        """Return the account of an ended job, without the parts on other nodes."""

        def found() -> dict[str, str]:
            with contextlib.suppress(subprocess.CalledProcessError):
                record = self.run(["qacct", "-j", job]).split("=====\n")[-1]
                return dict(re.findall(r"^(\w+) +(.*?) *$", record, re.MULTILINE))
            return {}

        return wait_for(found, f"the account of job {job}")


class GridFarm(Elastic):
    """A folder with models, and a farm that may run there, on a Grid Engine."""

    def __init__(self, cluster: GridCluster, folder: Path) -> None:
        super().__init__(cluster, folder)
        self.grid = cluster
        for name in ("double", "triple", "quadruple"):
            self.write_model(name, IN_JOBS_ONLY)

    def write_model(self, name: str, before: str = "") -> None:
        factor = {"double": 2, "triple": 3, "quadruple": 4}[name]
        text = before + MODEL.format(name=name, factor=factor)
        (self.folder / f"{name}.py").write_text(text)

    def jobs(self) -> dict[str, str]:
        """Return the pending and running jobs with their states."""
        return self.grid.states()

    def status_text(self) -> str:
        """Return `farm status`, on one line."""
        return " ".join(self.run(*FARM, "status", "--to", "run").split())
