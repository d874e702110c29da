"""One executor runs sleeping tasks with two workers; prints what it took as JSON.

`executors.py` runs it in the environment of each executor, which has no other package of farm's:

    ENV/bin/python benchmarks/executor_peers.py NAME COUNT SECONDS

Without arguments it prints the names. `makespan_s` is the time from the first submission to the
last result, after a warm-up; `slept_s` is how long the tasks slept in sum, by their own clocks;
`cpu_s` is the processor time of all processes of the executor, the calling program's included.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

from process_use import processes, use

# Each peer is installed in an environment of its own only.
# mypy: disable-error-code="import-not-found, import-untyped, no-any-return, unused-ignore"

WORKERS = 2
START_S = 60.0

Run = Callable[[int, float], list[float]]
"""Takes the number of tasks and the seconds of each; returns how long each slept."""

MODEL = """
import time
import farm

@farm.model(inputs={"seconds": 1}, outputs={"slept": 1})
def nap(seconds):
    start = time.perf_counter()
    time.sleep(seconds[0])
    return time.perf_counter() - start
"""


def nap(seconds: float) -> float:
    """The task: sleep, and return the actual duration."""
    import time  # parsl sends the function without this module's names

    start = time.perf_counter()
    time.sleep(seconds)
    return time.perf_counter() - start


def by_map(executor: Executor) -> Run:
    """Return a run by `map`, without chunks."""
    return lambda count, seconds: list(executor.map(nap, [seconds] * count))


def by_submit(executor: Executor) -> Run:
    """Return a run by one `submit` for each task."""

    def run(count: int, seconds: float) -> list[float]:
        futures = [executor.submit(nap, seconds) for _ in range(count)]
        return [future.result() for future in futures]

    return run


@contextlib.contextmanager
def served(source: str) -> Iterator[Any]:
    """Run `farm serve` with the text of a model file; yield the model as the client sees it."""
    import farm

    with tempfile.TemporaryDirectory() as folder:
        path, run = Path(folder) / "model.py", Path(folder) / "run"
        path.write_text(source)
        options = ["--workers", str(WORKERS), "--port", "0", "--dir", str(run)]
        with subprocess.Popen(
            [sys.executable, "-m", "farm", "serve", str(path), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as server:
            try:
                while not (run / "farm.json").exists():
                    if server.poll() is not None:
                        raise RuntimeError(f"farm serve ended with {server.returncode}")
                    time.sleep(0.05)
                with farm.connect(run, wait=START_S) as client:
                    while len(client.status()["workers"]) < WORKERS:
                        time.sleep(0.05)
                    yield client.model()
            finally:
                server.terminate()


@contextlib.contextmanager
def farm_map() -> Iterator[Run]:
    """`RemoteModel.map` of an array of points."""
    import numpy as np

    with served(MODEL) as model:
        yield lambda count, seconds: model.map(np.full((count, 1), seconds)).ravel().tolist()


@contextlib.contextmanager
def farm_submit() -> Iterator[Run]:
    """One `RemoteModel.submit` for each task."""
    with served(MODEL) as model:

        def run(count: int, seconds: float) -> list[float]:
            futures = [model.submit([seconds]) for _ in range(count)]
            return [float(future.result()[0]) for future in futures]

        yield run


@contextlib.contextmanager
def process_pool() -> Iterator[Run]:
    """`concurrent.futures.ProcessPoolExecutor` of the standard library."""
    with ProcessPoolExecutor(WORKERS) as pool:
        yield by_map(pool)


@contextlib.contextmanager
def loky() -> Iterator[Run]:
    """`get_reusable_executor`, as joblib uses it."""
    from loky import get_reusable_executor

    pool = get_reusable_executor(WORKERS, timeout=None)
    yield by_map(pool)
    pool.shutdown(wait=True)


@contextlib.contextmanager
def executorlib() -> Iterator[Run]:
    """Workers that stay (block allocation)."""
    from executorlib import SingleNodeExecutor

    with SingleNodeExecutor(max_workers=WORKERS, block_allocation=True) as executor:
        yield by_submit(executor)


@contextlib.contextmanager
def mpi4py() -> Iterator[Run]:
    """`MPICommExecutor`'s workers: this program is rank 0 of `mpiexec -n 3 -m mpi4py.futures`."""
    from mpi4py.futures import MPIPoolExecutor

    with MPIPoolExecutor(WORKERS) as pool:
        yield by_map(pool)


@contextlib.contextmanager
def dask() -> Iterator[Run]:
    """A LocalCluster of two processes with a thread each, without its dashboard."""
    from distributed import Client, LocalCluster

    options = {"processes": True, "dashboard_address": None}
    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, **options) as cluster,
        Client(cluster) as client,
    ):
        yield lambda count, seconds: client.gather(client.map(nap, [seconds] * count, pure=False))


@contextlib.contextmanager
def parsl() -> Iterator[Run]:
    """The HighThroughputExecutor with a local manager."""
    from parsl.concurrent import ParslPoolExecutor
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    # It starts programs of its own by name.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        executor = HighThroughputExecutor(
            max_workers_per_node=WORKERS,
            cores_per_worker=0.5,
            address="127.0.0.1",
            loopback_address="127.0.0.1",
            provider=LocalProvider(init_blocks=1, max_blocks=1),
        )
        config = Config(executors=[executor], run_dir=folder, initialize_logging=False)
        with ParslPoolExecutor(config) as pool:
            yield by_submit(pool)


@contextlib.contextmanager
def ray() -> Iterator[Run]:
    """Remote functions on a local cluster of two CPUs, without its dashboard."""
    import ray

    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    task = ray.remote(nap)
    yield lambda count, seconds: ray.get([task.remote(seconds) for _ in range(count)])
    ray.shutdown()


PEERS: dict[str, Callable[[], contextlib.AbstractContextManager[Run]]] = {
    "farm-map": farm_map,
    "farm-submit": farm_submit,
    "process-pool": process_pool,
    "loky": loky,
    "executorlib": executorlib,
    "mpi4py": mpi4py,
    "dask": dask,
    "parsl": parsl,
    "ray": ray,
}


def cpu_s(root: int) -> float:
    """Return the processor time so far of a process and its descendants."""
    return sum(cpu_us for cpu_us, _ in use(processes(root)).values()) / 1e6


def main() -> None:
    """Run one peer; without arguments, print their names."""
    if len(sys.argv) == 1:
        print(*PEERS)
        return
    name, count, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    root = os.getppid() if name == "mpi4py" else os.getpid()  # its workers are mpiexec's children
    with PEERS[name]() as run:
        run(2 * WORKERS, 0.25)  # until all workers are there
        run(50 * WORKERS, seconds / 10)
        before = cpu_s(root)
        start = time.perf_counter()
        slept = run(count, seconds)
        makespan_s = time.perf_counter() - start
        found = {"makespan_s": makespan_s, "slept_s": sum(slept), "cpu_s": cpu_s(root) - before}
    if len(slept) != count or min(slept) < seconds:
        raise SystemExit(f"{name}: {len(slept)} results for {count} tasks, min {min(slept)} s")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
