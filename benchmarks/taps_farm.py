"""Applications of TaPS, the task performance suite, with farm and with the suite's own executors.

    .venv/bin/python benchmarks/taps_farm.py                       # all, 3 rounds: ten minutes
    .venv/bin/python benchmarks/taps_farm.py --apps cholesky --executors farm process-pool

TaPS (https://github.com/proxystore/taps, MIT) is not on PyPI: pip fetches it, at the commit below,
into an environment of its own, with Dask, Parsl, Ray and farm. `--suite` names another source, such
as a clone: `git+file:///home/me/taps`. If it cannot be installed, this program says so and stops.

TaPS calls functions, farm runs models. So `FarmExecutor` pickles a function with its arguments,
and the model, which unpickles and calls it, has bytes as input and output. That suits a benchmark
on one machine: whoever can call such a model can run any program on its workers.

Every executor has two workers. An application runs twice in each process, in folders of its own,
and the time of the second run counts: by then the workers have started and have imported it. That
time is the application's from its start to its end, without that of creating its data.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from concurrent.futures import Executor, Future
from pathlib import Path
from statistics import median
from typing import Any

from executor_peers import WORKERS, served
from machine import versions

# TaPS and what it needs are in an environment of their own only.
# mypy: disable-error-code="import-not-found, unused-ignore"

SUITE = "git+https://github.com/proxystore/taps@6167964ad4c536de3f21e29f5f481bb682f218a3"
RUN_S = 180.0

APPS = {
    "cholesky": "--app.matrix-size 2048 --app.block-size 256",
    "mapreduce": "--app.data-dir words --app.generate true --app.generated-files 65"
    " --app.generated-words 5000 --app.map-tasks 33",
    "synthetic": "--app.structure bag --app.task-count 1000 --app.task-data-bytes 1000"
    " --app.task-sleep 0.005 --app.bag-max-running 16",
}
EXECUTORS = {
    "farm": "",
    "process-pool": f"--engine.executor.max-processes {WORKERS}",
    "thread-pool": f"--engine.executor.max-threads {WORKERS}",
    "dask": f"--engine.executor.workers {WORKERS}",
    "parsl-local": f"--engine.executor.workers {WORKERS}",
    "ray": f"--engine.executor.num-cpus {WORKERS}",
}

MODEL = """
import pickle
import farm
import numpy as np
import taps.apps.cholesky, taps.apps.mapreduce, taps.apps.synthetic

class Function(farm.Model):
    inputs = {"pickled": farm.TensorInfo("pickled", (-1,), "uint8")}
    outputs = {"result": farm.TensorInfo("result", (-1,), "uint8")}

    def evaluate(self, inputs, config):
        function, args, kwargs = pickle.loads(inputs["pickled"])
        result = function(*args, **kwargs)
        return np.frombuffer(pickle.dumps(result, pickle.HIGHEST_PROTOCOL), "uint8")
"""


class FarmExecutor(Executor):
    """A concurrent.futures executor whose functions run on a farm's workers.

    A function must be importable there, and one that raises an exception fails with `ModelFailed`.
    The model imports the applications when a worker starts. That takes seconds; within a call it
    would look like a call that hangs, which farm copies to another worker and ends.
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._model = self._stack.enter_context(served(MODEL))

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run `fn(*args, **kwargs)` on a worker."""
        import pickle

        import numpy as np

        future: Future[Any] = Future()

        def settle(answer: Future[Any]) -> None:
            error = answer.exception()
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(pickle.loads(answer.result()))

        pickled = pickle.dumps((fn, args, kwargs), pickle.HIGHEST_PROTOCOL)
        self._model.submit(np.frombuffer(pickled, "uint8")).add_done_callback(settle)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop the farm."""
        self._stack.close()


def run(arguments: list[str]) -> None:
    """Run an application twice, in the suite's environment; print the second run's seconds."""
    from typing import Literal

    from taps.executor import ExecutorConfig
    from taps.executor.utils import FutureDependencyExecutor
    from taps.plugins import register
    from taps.run.parse import parse_args_to_config

    @register("executor")
    class FarmConfig(ExecutorConfig):  # type: ignore[misc]  # of a package without types here
        name: Literal["farm"] = "farm"

        def get_executor(self) -> Executor:
            # It runs a task when the futures among its arguments are there.
            executor: Executor = FutureDependencyExecutor(FarmExecutor())
            return executor

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        seconds = 0.0
        with parse_args_to_config(arguments).engine.get_engine() as engine:
            for name in ("first", "second"):
                Path(name).mkdir()
                with contextlib.chdir(name):
                    app = parse_args_to_config(arguments).app.get_app()  # paths are of this folder
                    tasks = engine.tasks_executed
                    start = time.perf_counter()
                    app.run(engine=engine, run_dir=Path.cwd())
                    seconds = time.perf_counter() - start
                    tasks = engine.tasks_executed - tasks
                    app.close()
    print(json.dumps({"seconds": seconds, "tasks": tasks}))


def main() -> None:
    """Install the suite, run in rounds, and print one table."""
    if sys.argv[1:2] == ["run"]:
        return run(sys.argv[2:])
    from executors import ENVIRONMENTS, Unable, answer, installed

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--apps", nargs="+", choices=list(APPS), default=list(APPS))
    parser.add_argument("--executors", nargs="+", choices=list(EXECUTORS), default=list(EXECUTORS))
    parser.add_argument("--suite", default=SUITE)
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS)
    options = parser.parse_args()
    print(versions("numpy", "pyzmq"))
    root = Path(__file__).resolve().parent.parent
    try:
        # Code of farm is read from here, so that a change of it needs no installation.
        packages = [options.suite, f"--editable={root}"]
        python = installed(options.environments / "taps", packages)
    except Unable as error:
        print(f"TaPS cannot be installed: {error}")
        return
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"  # a task has one core
    os.environ["PATH"] = f"{python.parent}{os.pathsep}{os.environ['PATH']}"  # Parsl's programs
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    failed: dict[str, Unable] = {}
    for _ in range(options.rounds):
        for app in options.apps:
            for name in options.executors:
                chosen = f"--app {app} {APPS[app]} --engine.executor {name} {EXECUTORS[name]}"
                program = [str(python), str(Path(__file__).resolve()), "run", *chosen.split()]
                try:
                    one = json.loads(answer(program, limit_s=RUN_S).splitlines()[-1])
                    print(f"{app}, {name}: {one['seconds']:.2f} s", file=sys.stderr)
                    found.setdefault((name, app), []).append(one)
                except Unable as error:
                    failed[f"{name}, {app}"] = error
    print(f"\n{'best / median of rounds, s':28}" + "".join(f"{app:>20}" for app in options.apps))
    for name in options.executors:
        cells = []
        for app in options.apps:
            times = [one["seconds"] for one in found.get((name, app), [])]
            cells.append(f"{min(times):.2f} / {median(times):.2f}" if times else "failed")
        print(f"{name:28}" + "".join(f"{cell:>20}" for cell in cells))
    tasks = {app: one["tasks"] for (_, app), all_of in found.items() for one in all_of}
    print(f"{'tasks':28}" + "".join(f"{tasks.get(app, 0):20}" for app in options.apps))
    for which, reason in failed.items():
        print(f"{which} failed: {reason}")


if __name__ == "__main__":
    main()
