"""Farms with a problem, as their users find them, for tests of page, terminal and Python."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any

import farm
from farm.client import Client
from tests.support.dispatcher_farm import FARM, Served, environment, farm_command, serving
from tests.support.running_farm import wait_until

MODEL = '''
import os, time
from pathlib import Path
import farm

HERE = Path(__file__).parent

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def beam(x, config):
    """Fails for a tenth of its inputs; the worker in place 0 dies if there is a file `broken`;
    an input below 0 never ends; one of 1000 and more waits for a file `open`."""
    print("solves for", x[0], flush=True)
    if (HERE / "broken").exists() and os.environ["FARM_REPLICA"] == "0":
        print("CUDA error: out of memory on device 0", flush=True)
        os._exit(3)
    while x[0] < 0 or x[0] >= 1000 and not (HERE / "open").exists():
        time.sleep(0.01)
    time.sleep(0.01)
    if x[0] % 10 == 3:
        raise ArithmeticError(f"no root in [{x[0]}, {x[0] + 1}]")
    return 2 * x
'''

ROOT = Path(__file__).parents[2]

SWEEP = (
    *("--param", "x=1000:2000", "--design", "random:60", "--no-probe"),
    *("--in-flight", "20", "--title", "survey", "-o", "s.h5"),
)


def sweeping(
    folder: Path, target: str | Path
) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """Run a sweep of 60 points in another process, with 20 calls at a time."""
    return farm_command("sweep", "--to", str(target), *SWEEP, cwd=folder)


@contextlib.contextmanager
def beams(folder: Path, workers: int, *arguments: str) -> Iterator[Served]:
    """Serve the model with this many workers, all of which have joined."""
    (folder / "beam.py").write_text(MODEL)
    with serving(folder, "beam.py", "--workers", str(workers), *arguments) as served:
        served.wait_for_workers(workers)
        yield served


def workers_of(client: Client) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.status()["workers"]
    return rows


@contextlib.contextmanager
def a_tenth_fails(folder: Path, calls: int = 200) -> Iterator[Served]:
    """A client `survey` has made calls, of which every tenth has failed."""
    with beams(folder, 3) as served, farm.connect(served.folder, client="survey") as client:
        outcomes = client.model().map([[float(i)] for i in range(calls)], return_errors=True)
        assert sum(isinstance(outcome, Exception) for outcome in outcomes) == calls // 10
        yield served


@contextlib.contextmanager
def a_worker_dies_again_and_again(folder: Path, times: int = 4) -> Iterator[Served]:
    """The worker in place 0 dies in each call and is started again; the calls succeed elsewhere.

    It has died `times` times, and another process is in its place.
    """
    with (
        beams(folder, 3, "--retries", "20") as served,
        farm.connect(served.folder, client="survey") as client,
    ):
        (folder / "broken").touch()
        stop = threading.Event()

        def call() -> None:
            model = client.model()
            while not stop.is_set():
                for value in model.map([[0.0]] * 6):
                    assert value[0] == 0.0

        calls = threading.Thread(target=call)
        calls.start()
        try:
            wait_until(lambda: _lost(client) >= times, f"it has died {times} times")
        finally:
            stop.set()
            calls.join()
        wait_until(lambda: len(workers_of(client)) == 3, "another one is in its place")
        yield served


def _lost(client: Client) -> int:
    return sum(loss.count for loss in client.losses())


@contextlib.contextmanager
def a_call_hangs(folder: Path) -> Iterator[tuple[Served, Future[Any]]]:
    """A call of the client `sampler`, chain `3`, never ends, and the farm says so of its worker."""
    with (
        beams(folder, 3) as served,
        farm.connect(served.folder, client="sampler", chain="3") as client,
    ):
        model = client.model()
        list(model.map([[10.0 * i] for i in range(60)]))
        call = model.submit([-1.0])
        wait_until(lambda: any(row["trouble"] for row in workers_of(client)), "it is noticed")
        yield served, call


@contextlib.contextmanager
def a_chain_waits_behind_a_sweep(
    folder: Path,
) -> Iterator[tuple[Served, subprocess.Popen[str], Future[Any]]]:
    """A sweep of another process has both workers, and a call of the client `sampler` waits."""
    with (
        beams(folder, 2) as served,
        farm.connect(served.folder, client="sampler", chain="3") as client,
        sweeping(folder, served.folder) as sweep,
    ):
        wait_until(lambda: any(row["kind"] == "sweep" for row in client.progress()), "a sweep runs")
        wait_until(lambda: all(row["running"] for row in workers_of(client)), "it has both workers")
        call = client.model().submit([0.0])
        wait_until(lambda: client.why()["phase"] == "queued", "the chain's call waits")
        wait_until(lambda: client.status()["waits"], "and for long enough to be shown")
        yield served, sweep, call


@contextlib.contextmanager
def a_thousand_workers(folder: Path) -> Iterator[Served]:
    """1,000 workers on 50 hosts have worked for a client: one is slow, in another a call hangs."""
    with told_in_a_file(folder, "--workers", "0") as served:
        words = [sys.executable, "-m", "tests.support.many_workers", str(served.folder)]
        program = subprocess.Popen(words, cwd=ROOT)
        try:
            with farm.connect(served.folder, client="survey") as client:
                wait_until(lambda: len(workers_of(client)) == 1000, "they have joined")
                model = client.model()

                def sick(how: str) -> int:
                    troubles = [" ".join(row["trouble"]) for row in workers_of(client)]
                    return sum(how in text for text in troubles)

                while not sick("its runs take"):
                    list(model.map([[0.0]] * 5000))
                model.submit([-1.0])
                # The farm sends a copy of a call that runs long to a second worker.
                wait_until(lambda: sick("its call runs") == 2, "the call that hangs is noticed")
                yield served
        finally:
            program.kill()
            program.wait()


@contextlib.contextmanager
def told_in_a_file(folder: Path, *arguments: str) -> Iterator[Served]:
    """Run `farm serve` with its output in a file: a full pipe would block it."""
    words = [*FARM, "serve", *arguments, "--port", "0", "--dir", "run"]
    with (folder / "told").open("w") as told:
        process = subprocess.Popen(
            words, cwd=folder, env=environment(), stdout=told, stderr=told, text=True
        )
    try:
        yield Served(process, folder / "run", cold=("--workers", "0") in pairwise(arguments))
    finally:
        process.kill()
        process.wait()
