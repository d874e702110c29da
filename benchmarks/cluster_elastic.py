"""Tasks in waves on SLURM: an elastic farm beside dask-jobqueue's `adapt` and job arrays.

    eval "$(slurm/dev-cluster up)" && .venv/bin/python benchmarks/cluster_elastic.py

Each system begins without a job, gets at most four nodes of four CPUs, and runs the same tasks,
which sleep for times of a lognormal distribution, cut at 0.1 and 2 s. A load is a number of waves:

    bursts  five waves, each a pause after the last answer of the one before, as the generations of
            a sampler; pauses of 5 and 20 s in turn: idle nodes are kept in the short ones
            and released in the long ones
    single  one wave
    tiny    waves of ten tasks with pauses of 2 s
    steady  a wave every second, about half of what four nodes can do

Figures: makespan, from the first submission to the last answer; the same without the pauses;
node-seconds, the sum over all jobs of (end - start) x CPUs / 4 as `scontrol` reports them, until
the system has released all nodes; work, the share of the node-seconds in which tasks ran; load, the
machine's load average. In brackets: the figure divided by that of the first system. The last line
has farm's makespan, with and without the pauses, divided by the best, and its node-seconds by
Dask's.

Farm and Dask have the same limits: four jobs, each a whole node; a target of 5 s for all waiting
tasks (backlog_s, target_duration); a decision to grow each second (grow_after_s, interval); idle
nodes are released after 10 s (idle_timeout_s, wait_count). Farm has a process for each CPU, Dask
one of four threads for each job, its fastest setting here; all else is as in their manuals. A job
array has a CPU for each task and runs `sleep` without an interpreter. On the development cluster
SLURM decides each second and has no other jobs, so arrays wait less than elsewhere, and so do new
nodes.

HyperQueue is not compared: its package on PyPI has no `hq` command, so it starts workers on its own
machine only.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cluster_jobs import JobRecord
from cluster_systems import Array, Dask, Farm, Size, System
from machine import versions

GROW_AFTER_S = 1.0
SIZE = Size(jobs=4, cpus=4, backlog_s=5.0, idle_s=10.0)
MEDIAN_S, SIGMA, SHORTEST_S, LONGEST_S = 0.5, 0.7, 0.1, 2.0


@dataclass(frozen=True)
class Wave:
    """Tasks that are submitted together, `pause_s` after the wave before.

    waits: the pause begins with the last answer of the wave before, not with its submission.
    """

    seconds: list[float]
    pause_s: float = 0.0
    waits: bool = True


def waves(load: str, count: int) -> list[Wave]:
    """Return a load of so many tasks, the same for each call."""
    rng = np.random.default_rng(14)
    drawn = rng.lognormal(np.log(MEDIAN_S), SIGMA, count)
    seconds = [round(float(s), 3) for s in np.clip(drawn, SHORTEST_S, LONGEST_S)]

    def split(size: int) -> list[list[float]]:
        return [seconds[first : first + size] for first in range(0, count, size)]

    match load:
        case "bursts":
            parts = split(-(-count // 5))
            return [Wave(part, (5.0, 20.0)[i % 2] * (i > 0)) for i, part in enumerate(parts)]
        case "single":
            return [Wave(seconds)]
        case "tiny":
            return [Wave(part, 2.0) for part in split(10)]
        case _:
            size = round(0.5 * SIZE.jobs * SIZE.cpus / float(np.mean(seconds)))
            return [Wave(part, 1.0, waits=False) for part in split(size)]


LOADS = ("bursts", "single", "tiny", "steady")


@dataclass(frozen=True)
class Figures:
    """The results of one system with one load. paused_s: time in which it had no task."""

    makespan_s: float
    paused_s: float
    node_s: float
    jobs: int

    @property
    def answering_s(self) -> float:
        """The makespan without the pauses."""
        return self.makespan_s - self.paused_s


def run(begin: Callable[[Path], System], load: list[Wave]) -> Figures:
    """Run a load on a system."""
    jobs = JobRecord()
    with (
        tempfile.TemporaryDirectory(dir=Path.home(), ignore_cleanup_errors=True) as name,
        begin(Path(name)) as system,
    ):
        begun = submitted = time.monotonic()
        paused_s = 0.0
        for number, wave in enumerate(load):
            if number and wave.waits:
                system.wait()
                jobs.look()
                paused_s += wave.pause_s
                time.sleep(wave.pause_s)
            elif number:
                time.sleep(max(0.0, submitted + wave.pause_s - time.monotonic()))
            submitted = time.monotonic()
            system.submit(wave.seconds)
        system.wait()
        ended = time.monotonic()
        jobs.wait_for_ends()
    jobs.wait_for_ends()
    return Figures(ended - begun, paused_s, jobs.cpu_seconds() / SIZE.cpus, len(jobs.ran))


def report(title: str, got: Figures, mine: Figures, work_s: float) -> None:
    """Print one line of the table."""

    def beside(figure: float, other: float) -> str:
        return f"{figure:10.1f} s ({figure / other:4.2f})"

    cells = (
        beside(got.makespan_s, mine.makespan_s),
        beside(got.answering_s, mine.answering_s),
        beside(got.node_s, mine.node_s),
        f"{work_s / SIZE.cpus / got.node_s:8.2f}{got.jobs:7d}{os.getloadavg()[0]:7.1f}",
    )
    print(f"  {title:16}" + "".join(cells), flush=True)


def conclude(found: Mapping[str, Figures]) -> None:
    """Print farm's ratios to the best makespans and to Dask's node-seconds."""
    mine = found["farm"]
    makespan = mine.makespan_s / min(got.makespan_s for got in found.values())
    answering = mine.answering_s / min(got.answering_s for got in found.values())
    node_s = mine.node_s / found["dask"].node_s
    print(f"  farm: {makespan:.2f} and {answering:.2f} of the best, {node_s:.2f} of Dask's nodes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=2000, help="number of tasks of a load")
    parser.add_argument("--loads", default="bursts", help=f"some of {','.join(LOADS)}")
    parser.add_argument("--systems", default="farm,dask,array", help="the first is compared with")
    parser.add_argument("--rounds", type=int, default=2, help="times that each system runs a load")
    parser.add_argument("--processes", type=int, default=1, help="of a Dask job")
    options = parser.parse_args()
    if shutil.which("sbatch") is None or "SLURM_CONF" not in os.environ:
        raise SystemExit('needs a SLURM cluster: eval "$(slurm/dev-cluster up)"')
    systems: dict[str, Callable[[Path], System]] = {
        "farm": lambda folder: Farm(folder, SIZE, GROW_AFTER_S),
        "dask": lambda folder: Dask(folder, SIZE, options.processes),
        "array": lambda folder: Array(folder, SIZE),
    }
    print(versions("numpy", "pyzmq", "distributed", "dask-jobqueue"))
    print(f"at most {SIZE.jobs} nodes of {SIZE.cpus} CPUs")
    for name in options.loads.split(","):
        load = waves(name, options.tasks)
        work_s = sum(sum(wave.seconds) for wave in load)
        print(f"\n{name}: {options.tasks} tasks in {len(load)} waves, {work_s:.0f} s of work")
        print(f"{'makespan':>37}{'without pauses':>19}{'node-seconds':>19}", end="")
        print(f"{'work':>8}{'jobs':>7}{'load':>7}")
        for _ in range(options.rounds):
            found: dict[str, Figures] = {}
            for title in options.systems.split(","):
                found[title] = run(systems[title], load)
                report(title, found[title], next(iter(found.values())), work_s)
            if "farm" in found and "dask" in found:
                conclude(found)


if __name__ == "__main__":
    main()
