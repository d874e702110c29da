"""Processor time to import farm, to print its help, and to start a worker process.

    make install && .venv/bin/python benchmarks/starting.py

Each is compared with what it cannot do without: Python alone, the import of numpy, the help of a
program of click. All run in turn, each in a process of its own, so that other work on the machine
affects all of them alike. Times are user plus system time: the median, and the median of the
differences. The last two rows are elapsed time, from the start of a worker until it is ready.
"""

from __future__ import annotations

import argparse
import os
import resource
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from farm.machine.fork_parent import ForkParent
from farm.provision.local.child import MODULE, Child
from machine import versions

PYTHON = [sys.executable, "-P"]

HELP_OF_CLICK = (
    "import click\n"
    "@click.group(context_settings={'help_option_names': ['-h', '--help']})\n"
    "@click.option('-v', '--verbose', count=True)\n"
    "def cli(verbose): 'A program.'\n"
    "cli(['--help'])"
)

HELP_OF_FARM = "from farm.cli import main; main(['--help'])"

MODEL = """
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def double(x):
    return 2 * x
"""


def ready_after(parent: ForkParent | None, model: Path, run: Path) -> float:
    """Return how many milliseconds after its start a worker process is ready."""
    arguments = [str(model), "--connect", str(run / "workers.json")]
    began = time.monotonic()
    child = Child(arguments, log=run / "log", environment=os.environ, parent=parent)
    try:
        while child.talks and child.status.ready_at is None:
            select.select([child], [], [])
            child.listen()
        if child.status.ready_at is None:
            raise SystemExit(f"the worker did not start: {child.last_lines()}")
        return 1000 * (child.status.ready_at - began)
    finally:
        child.close()


def used_by_forked(parent: ForkParent, model: Path, run: Path) -> float:
    """Return the processor time of a forked worker process and its killing, in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ready_after(parent, model, run)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


@contextmanager
def warm_parent(model: Path, run: Path) -> Iterator[ForkParent]:
    """Start the process that workers are forked from."""
    words = [str(model), "--connect", str(run / "workers.json")]
    with closing(ForkParent(MODULE, words, os.environ)) as parent:
        while not parent.look(time.monotonic()):
            select.select([parent], [], [])
        yield parent


def spent(process: subprocess.Popen[bytes]) -> float:
    """Return the processor time of a process that ends, in milliseconds."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return 1000 * (usage.ru_utime + usage.ru_stime)


def of_code(code: str) -> float:
    """Return the processor time of Python running `code`."""
    process = subprocess.Popen([*PYTHON, "-c", code], stdout=subprocess.DEVNULL)
    used = spent(process)
    if process.returncode:
        raise SystemExit(f"exit status {process.returncode} of: {code}")
    return used


def of_worker(model: Path, run: Path) -> float:
    """Return the processor time of a worker process until it reports that it is ready."""
    read, write = os.pipe()
    words = ["-u", "-m", "farm.provision.local.process", "--status", str(write)]
    words += [str(model), "--connect", str(run / "workers.json")]
    process = subprocess.Popen([*PYTHON, *words], pass_fds=[write])
    os.close(write)
    with open(read, "rb") as status:
        said = status.readline()
        process.send_signal(signal.SIGKILL)
        used = spent(process)
    if b'"worker"' not in said:
        raise SystemExit(f"the worker did not start: {said!r}")
    return used


@contextmanager
def farm_without_workers(model: Path, run: Path) -> Iterator[None]:
    """Serve, for the length of the block, a model whose workers are started elsewhere."""
    words = ["-m", "farm", "serve", str(model), "--workers", "0", "--port", "0", "--dir", str(run)]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([*PYTHON, *words], stdout=quiet, stderr=quiet)
    try:
        while not (run / "workers.json").exists():
            if process.poll() is not None:
                raise SystemExit("the farm did not start")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=25)
    runs = parser.parse_args().runs
    print(versions("click", "numpy"))
    with tempfile.TemporaryDirectory() as folder:
        model, run = Path(folder, "model.py"), Path(folder, "run")
        model.write_text(MODEL)
        kinds: dict[str, Callable[[], float]] = {
            "python": lambda: of_code("pass"),
            "import numpy": lambda: of_code("import numpy"),
            "click's --help": lambda: of_code(HELP_OF_CLICK),
            "import farm": lambda: of_code("import farm"),
            "farm.Model": lambda: of_code("import farm; farm.Model"),
            "farm --help": lambda: of_code(HELP_OF_FARM),
            "worker ready": lambda: of_worker(model, run),
        }
        with farm_without_workers(model, run), warm_parent(model, run) as parent:
            kinds |= {
                "forked worker": lambda: used_by_forked(parent, model, run),
                "wait, worker": lambda: ready_after(None, model, run),
                "wait, forked": lambda: ready_after(parent, model, run),
            }
            times: dict[str, list[float]] = {kind: [] for kind in kinds}
            for turn in range(runs + 1):
                for kind, measure in kinds.items():
                    used = measure()
                    if turn:  # the first one writes the compiled files
                        times[kind].append(used)
    medians = {kind: statistics.median(values) for kind, values in times.items()}
    print(f"\n{'':16}{'ms':>8}{'more than':>18}{'by ms':>8}{'at most':>9}")
    for kind, base, most in (
        ("python", "", 0),
        ("import numpy", "python", 0),
        ("click's --help", "python", 0),
        ("import farm", "python", 40),
        ("farm.Model", "import numpy", 40),
        ("farm --help", "click's --help", 60),
        ("worker ready", "import numpy", 150),
        ("forked worker", "", 100),
        ("wait, worker", "", 0),
        ("wait, forked", "wait, worker", 100),
    ):
        more = statistics.median(
            a - b for a, b in zip(times[kind], times[base or kind], strict=True)
        )
        by = f"{base:>18}{more:8.1f}" if base else " " * 26
        print(f"{kind:16}{medians[kind]:8.1f}{by}{most or '':>9}".rstrip())


if __name__ == "__main__":
    main()
