"""Many short tasks on two workers: farm, and the task executors of others, in alternating rounds.

    .venv/bin/python benchmarks/executors.py                      # 3 rounds of all: ten minutes
    .venv/bin/python benchmarks/executors.py --ms 1 --only farm-map process-pool --rounds 5

A task sleeps, 500 tasks for 20 ms and 5,000 for 1 ms. The table has the makespan over the ideal
one, tasks * duration / workers, and the processor time for each task of all processes, which
depends less on other load. "sleep" is how long the tasks really slept over how long they should:
no executor can be faster.

Each of the others is installed once into an environment of its own, with the versions below. One
that cannot be installed or started is named with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from executor_peers import PEERS, WORKERS
from machine import versions

PACKAGES = {
    "loky": "loky==3.7.0",
    "executorlib": "executorlib==1.11.0",
    "mpi4py": "mpi4py==4.1.2",
    "dask": "distributed==2026.8.0",
    "parsl": "parsl==2026.10.26",
    "ray": "ray==2.60.0",
}
"""By peer; all others run in farm's own environment."""

ENVIRONMENTS = Path.home() / ".cache" / "farm-benchmarks"
LOADS = {20: 500, 1: 5000}
"""Numbers of tasks, by the milliseconds that each sleeps."""
INSTALL_S, RUN_S = 900.0, 120.0

# Open MPI refuses to run as root, as in a container, or with more processes than cores otherwise.
MPIEXEC = ("mpiexec", "-n", str(WORKERS + 1))
MPI_VARIABLES = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


class Unable(Exception):
    """A peer that cannot be installed or run, with the reason."""


def installed(folder: Path, packages: Sequence[str]) -> Path:
    """Return the Python of an environment with these packages, made if it is not there yet."""
    python, mark = folder / "bin" / "python", folder / "installed"
    if not mark.exists() or mark.read_text().splitlines() != list(packages):
        venv.create(folder, with_pip=True, clear=True)
        answer([str(python), "-m", "pip", "install", "--quiet", *packages], limit_s=INSTALL_S)
        mark.write_text("\n".join(packages))
    return python


def answer(command: Sequence[str], *, limit_s: float) -> str:
    """Return the output of a command. Raises Unable with the last line of its errors."""
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | MPI_VARIABLES,
            start_new_session=True,
        )
    except OSError as error:
        raise Unable(str(error)) from None
    with process:
        try:
            output, errors = process.communicate(timeout=limit_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise Unable(f"no answer within {limit_s:.0f} s") from None
    if process.returncode:
        lines = [line for line in errors.splitlines() if line.strip()]
        raise Unable(lines[-1].strip()[:200] if lines else f"exit code {process.returncode}")
    return output


def measured(name: str, python: Path, count: int, seconds: float) -> dict[str, float]:
    """Return what one run of a peer printed."""
    script = str(Path(__file__).with_name("executor_peers.py"))
    program = [str(python), script]
    if name == "mpi4py":
        program = [*MPIEXEC, str(python), "-m", "mpi4py.futures", script]
    printed = answer([*program, name, str(count), str(seconds)], limit_s=RUN_S)
    found: dict[str, float] = json.loads(printed.splitlines()[-1])
    return found


def table(title: str, ideal_s: float, count: int, runs: dict[str, list[dict[str, float]]]) -> None:
    """Print one load's rows, the fastest first."""
    print(f"\n{title:32}{'makespan over ideal':>22}{'sleep':>8}{'processor time':>18}")
    print(f"{'':32}{'best':>11}{'median':>11}{'median':>8}{'median, a task':>18}")
    rows = []
    for name, found in runs.items():
        if found:
            over = sorted(run["makespan_s"] / ideal_s for run in found)
            slept = median(run["slept_s"] / WORKERS / ideal_s for run in found)
            cpu_us = median(run["cpu_s"] for run in found) / count * 1e6
            rows.append((median(over), over[0], slept, cpu_us, name))
    for middle, best, slept, cpu_us, name in sorted(rows):
        print(f"{name:32}{best:11.2f}{middle:11.2f}{slept:8.2f}{cpu_us:15.0f} us")


def main() -> None:
    """Install, run in rounds, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS)
    parser.add_argument("--ms", nargs="+", type=int, choices=list(LOADS), default=list(LOADS))
    options = parser.parse_args()
    print(versions("numpy", "pyzmq"))
    print(", ".join(PACKAGES[name] for name in options.only if name in PACKAGES))
    pythons: dict[str, Path] = {}
    for name in options.only:
        try:
            packages = PACKAGES.get(name)
            python = Path(sys.executable)
            if packages:
                python = installed(options.environments / name, [packages])
            measured(name, python, 2 * WORKERS, 0.01)
            pythons[name] = python
        except Unable as error:
            print(f"{name} is left out: {error}")
    for milliseconds in options.ms:
        count, seconds = LOADS[milliseconds], milliseconds / 1000
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in pythons}
        for _ in range(options.rounds):
            for name, python in pythons.items():
                try:
                    runs[name].append(measured(name, python, count, seconds))
                except Unable as error:
                    print(f"{name} failed once: {error}")
        title = f"{count:,} tasks of {milliseconds} ms"
        table(title, count * seconds / WORKERS, count, runs)


if __name__ == "__main__":
    main()
