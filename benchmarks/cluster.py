"""200 evaluations of a 50 ms model on SLURM: farm beside the usual ways to run them.

    eval "$(slurm/dev-cluster up)" && .venv/bin/python benchmarks/cluster.py

Measured on 4 nodes with 4 CPUs each, from `sbatch` to the last answer: farm in one job, a Dask
cluster in one job, one job per evaluation, a job array. On the development cluster all nodes share
this machine's cores, so starting an interpreter, which jobs do for each evaluation, costs more than
on a real cluster. Waiting for SLURM costs less, because its scheduler runs every second there and
there are no other users' jobs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from machine import versions

NODES, CPUS = 4, 4
LIMIT_S = 600.0
HERE = Path(__file__).resolve().parent

MODEL = """
import time
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def slow(x):
    time.sleep(0.05)
    return 2 * x
"""

FARM_CLIENT = """
import json, sys, time
import numpy as np
import farm

slow = farm.connect().model("slow")
points = np.arange(float(sys.argv[1]))[:, None]
slow(points[0])
first = time.time()
assert (slow.map(points) == 2 * points).all()
json.dump([first, time.time()], open("times", "w"))
"""

DASK_CLIENT = """
import json, sys, time
from distributed import Client

def slow(x):
    time.sleep(0.05)
    return 2 * x

with Client(scheduler_file="scheduler.json") as client:
    client.wait_for_workers(1)
    client.submit(slow, 0, pure=False).result()
    first = time.time()
    points = range(int(sys.argv[1]))
    assert client.gather(client.map(slow, points, pure=False)) == [2 * i for i in points]
    json.dump([first, time.time()], open("times", "w"))
"""

DASK_JOB = """#!/bin/bash
cd {folder}
{bin}/dask scheduler --scheduler-file scheduler.json --port 0 --no-dashboard &
srun --overlap --mem=0 {bin}/dask worker --scheduler-file scheduler.json --nthreads 1 \\
    --no-dashboard --no-nanny --local-directory {folder} &
{bin}/python client.py {count}
kill %1 %2
"""

ONE = "import time, numpy; time.sleep(0.05); open('done.%s', 'w').write(str(2 * %s))"
"""The program of a job with one evaluation; the farm's model imports numpy too."""


def sbatch(folder: Path, *words: str) -> str:
    """Submit a job; return its id."""
    command = ["sbatch", "--parsable", "--output=/dev/null", f"--chdir={folder}", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def wait_until(condition: Callable[[], bool]) -> float:
    """Wait until the condition holds; return the time at which it did."""
    limit = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > limit:
            raise RuntimeError(f"not done within {LIMIT_S:g} s")
        time.sleep(0.02)
    return time.time()


def times_of(folder: Path) -> tuple[float, float]:
    """Return when a client in a job got its first and its last answer."""
    wait_until(lambda: (folder / "times").exists() and bool((folder / "times").read_text()))
    first, last = json.loads((folder / "times").read_text())
    return first, last


def by_farm(folder: Path, count: int) -> tuple[float, float]:
    """Run farm in one job."""
    (folder / "model.py").write_text(MODEL)
    (folder / "client.py").write_text(FARM_CLIENT)
    size = (f"--nodes={NODES}", f"--ntasks={NODES * CPUS}")
    os.environ["FARM"] = str(Path(sys.executable).parent / "farm")
    command = (sys.executable, "client.py", str(count))
    sbatch(folder, *size, str(HERE.parent / "launchers" / "farm.sh"), "model.py", "--", *command)
    return times_of(folder)


def by_dask(folder: Path, count: int) -> tuple[float, float]:
    """Run a Dask cluster in one job."""
    (folder / "client.py").write_text(DASK_CLIENT)
    job = DASK_JOB.format(folder=folder, bin=Path(sys.executable).parent, count=count)
    (folder / "job.sh").write_text(job)
    sbatch(folder, f"--nodes={NODES}", f"--ntasks={NODES * CPUS}", str(folder / "job.sh"))
    return times_of(folder)


def by_jobs(folder: Path, count: int) -> tuple[float, float]:
    """Run one job per evaluation, all submitted at once."""
    for i in range(count):
        sbatch(folder, "--wrap", f'{sys.executable} -c "{ONE % (i, i)}"')
    return files_of(folder, count)


def by_array(folder: Path, count: int) -> tuple[float, float]:
    """Run a job array."""
    task = "$SLURM_ARRAY_TASK_ID"
    sbatch(
        folder, f"--array=0-{count - 1}", "--wrap", f'{sys.executable} -c "{ONE % (task, task)}"'
    )
    return files_of(folder, count)


def files_of(folder: Path, count: int) -> tuple[float, float]:
    """Return when the first and the last result file appeared."""
    wait_until(lambda: len(list(folder.glob("done.*"))) == count)
    written = [path.stat().st_mtime for path in folder.glob("done.*")]
    return min(written), max(written)


def idle() -> bool:
    """Whether SLURM has no job."""
    return not subprocess.run(["squeue", "-h"], capture_output=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="evaluations")
    options = parser.parse_args()
    if shutil.which("sbatch") is None or "SLURM_CONF" not in os.environ:
        raise SystemExit('needs a SLURM cluster: eval "$(slurm/dev-cluster up)"')
    print(versions("numpy", "pyzmq", "distributed"))
    print(f"\n{options.count} evaluations{'first answer':>28}{'last answer':>16}{'farm takes':>16}")
    mine = 0.0
    for title, run in (
        ("farm, one job", by_farm),
        ("Dask, one job", by_dask),
        ("a job array", by_array),
        ("a job for each", by_jobs),
    ):
        with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
            begun = time.time()
            first, last = run(Path(folder), options.count)
            wait_until(idle)
        mine = mine or last - begun
        ratio = f"{mine / (last - begun):.2f}x"
        print(f"{title:27}{first - begun:12.1f} s{last - begun:14.1f} s{ratio:>16}", flush=True)


if __name__ == "__main__":
    main()
