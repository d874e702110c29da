"""Groups of MPI ranks in a real farm: answers, failures, deaths, limits, drains, idleness."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from farm.call import Call, Derivative, Operation, Result
from farm.errors import ModelFailed, TimeLimitExceeded, WorkerLost
from farm.provision.local.group import DEFAULT_LINE, Launch
from farm.provision.local.supervisor import Workers
from farm.wire.usage import ENDS_RUNS, Used
from farm.worker.mpi.world import launcher_path
from tests.provision.conftest import Start
from tests.support import open_mpi
from tests.support.dispatcher_farm import environment
from tests.support.open_mpi import needs_open_mpi
from tests.support.running_farm import LIMIT_S, Farm, wait_until

ENDS_AT = int(time.time()) + 3600

MODELS = """
import ctypes, os, signal, time
from pathlib import Path
import numpy as np
import farm
from farm.worker.mpi import group

HERE = Path(__file__).parent
group.STUCK_AFTER_S, group.LOOK_EVERY_S = 0.5, 0.2  # of rank 0, which loads this too

class Total(farm.Model):
    '''y = x summed over the ranks, each weighing its share; misbehaves where its config says.'''
    name = "total"
    inputs = {"x": 2}
    outputs = {"y": 2, "ranks": 1}

    def __init__(self, comm):
        self.given = comm

    def evaluate(self, inputs, config):
        comm = self.comm
        assert comm is self.given
        if config.get("raise") == comm.rank:
            raise ValueError("no convergence")
        if config.get("raise everywhere"):
            raise ValueError("x is negative")
        once = HERE / "once"
        if config.get("kill once") == comm.rank and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if config.get("kill") == comm.rank:
            os.kill(os.getpid(), signal.SIGKILL)
        if config.get("fails") == comm.rank:
            print("the mesh is inverted", flush=True)
            if config["how"] == "abort":
                comm.Abort(3)
            elif config["how"] == "exit":
                os._exit(3)
            os.kill(os.getpid(), int(config["how"]))
        if "sleep" in config:
            (HERE / "begun").touch()
            time.sleep(config["sleep"])
        held = HERE / "held"
        if "hold" in config or (config.get("hold once") == comm.rank and not held.exists()):
            held.touch()
            lock = ctypes.PyDLL(None).pthread_mutex_lock
            mutex = ctypes.create_string_buffer(64)
            lock(mutex)
            lock(mutex)  # for ever, with the interpreter held, and no signal ends it
        if config.get("alone"):
            return inputs["x"], comm.size
        y = np.empty(2)
        comm.Allreduce(inputs["x"] * (comm.rank + 1), y)
        return (y, comm.size) if comm.rank == 0 else None

    def gradient(self, out_wrt, in_wrt, inputs, sens, config):
        return self.comm.allreduce(self.comm.rank + 1) * sens
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return path


@pytest.fixture
def line() -> str:
    """Return the launch line of groups; `both_libraries` replaces it."""
    return DEFAULT_LINE


both_libraries = pytest.mark.parametrize(
    "line", [DEFAULT_LINE, pytest.param(open_mpi.LINE, marks=needs_open_mpi)], ids=["", "openmpi"]
)


@pytest.fixture
def start(begin: Start, models: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts groups of so many ranks."""
    if line == open_mpi.LINE:
        for name, text in open_mpi.ENVIRONMENT.items():
            monkeypatch.setenv(name, text)

    def start(ranks: int, *, count: int = 1, **more: Any) -> Workers:
        return begin([str(models)], count, Launch(ranks, line), **more)

    return start


def submit(farm: Farm, x: float, **config: Any) -> Future[Result]:
    inputs = (np.array([x, 1.0]),)
    call = Call("total", Operation.EVALUATE, inputs, json.dumps(config))
    return asyncio.run_coroutine_threadsafe(farm.dispatcher.submit(call), farm._loop)


def answer(farm: Farm, x: float, **config: Any) -> tuple[float, float]:
    outputs = submit(farm, x, **config).result(LIMIT_S).outputs
    return float(outputs[0][0]), float(outputs[1][0])


def failure(farm: Farm, **config: Any) -> Exception:
    error = submit(farm, 1.0, **config).exception(LIMIT_S)
    assert isinstance(error, Exception)
    return error


def ranks_of(workers: Workers) -> list[psutil.Process]:
    """The ranks that the supervisor's launchers have started."""
    return [
        process
        for pid in workers.pids()
        for process in psutil.Process(pid).children(recursive=True)
        if "farm.provision.local.rank" in process.cmdline() and "python" in process.cmdline()[0]
    ]


def gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow
@both_libraries
def test_groups_answer_and_drain(farm: Farm, start: Start, models: Path) -> None:
    workers = start(2, count=2)
    ranks = ranks_of(workers)
    assert len(ranks) == 4
    futures = [submit(farm, float(i)) for i in range(20)]
    assert [f.result(LIMIT_S).outputs[0][0] for f in futures] == [3.0 * i for i in range(20)]
    assert answer(farm, 5.0) == (15.0, 2.0)
    sens = np.array([2.0, 0.0])
    wrt = Derivative(0, 0, sens=sens)
    call = Call("total", Operation.GRADIENT, (np.zeros(2),), derivative=wrt)
    gradient = asyncio.run_coroutine_threadsafe(farm.dispatcher.submit(call), farm._loop)
    assert gradient.result(LIMIT_S).outputs[0].tolist() == [6.0, 0.0]
    running = submit(farm, 1.0, sleep=0.5)
    # A call that was only sent would be handed back, and no worker would be left for it.
    wait_until(models.with_name("begun").exists, "the call runs")
    workers.drain()
    assert running.result(LIMIT_S).outputs[0][0] == 3.0
    workers.ended.result(LIMIT_S)
    assert farm.losses() == []
    assert all(gone(rank) for rank in ranks)


def test_an_exception_on_any_rank_reaches_the_caller_and_idle_ranks_cost_nothing(
    farm: Farm, start: Start
) -> None:
    workers = start(3)
    ranks = ranks_of(workers)
    error = failure(farm, **{"raise": 1, "alone": True})
    assert isinstance(error, ModelFailed)
    assert str(error) == "rank 1 of 3: ValueError: no convergence"
    assert "raise ValueError" in error.detail
    error = failure(farm, **{"raise everywhere": True})
    assert "of 3: ValueError: x is negative" in str(error)
    assert answer(farm, 1.0) == (6.0, 3.0)
    assert ranks_of(workers) == ranks, "nobody waited in MPI: all live on"

    def used_s() -> float:
        return sum(sum(rank.cpu_times()[:2]) for rank in ranks)

    before = used_s()
    time.sleep(0.6)  # the duration is measured, this is no race
    assert used_s() - before < 0.2, "three ranks that waited in MPI would use one or more"


def test_a_group_reports_the_memory_of_all_its_ranks_and_can_be_restarted(
    farm: Farm, start: Start
) -> None:
    heard: list[Used] = []
    farm.dispatcher.on_used.append(lambda worker, used: heard.append(used))
    ranks = ranks_of(start(2))
    assert len(ranks) == 2

    def is_told() -> bool:
        resident = sum(rank.memory_info().rss for rank in ranks)
        return bool(heard) and heard[-1].memory_bytes == pytest.approx(resident, rel=0.2)

    wait_until(is_told, "it reports the memory of both")
    (name,) = farm.wait_for_workers(1)
    wait_until(lambda: farm.restart(name), "its supervisor is known by the name that the group has")
    wait_until(lambda: farm.losses() == ["restarted by the farm's owner"], "it is told")
    wait_until(lambda: farm.wait_for_workers(1) != [name], "another group")


@pytest.mark.slow
@both_libraries
def test_ranks_stuck_behind_an_exception_are_ended_and_the_call_is_not_repeated(
    farm: Farm, start: Start, tmp_path: Path
) -> None:
    start(2)
    error = failure(farm, **{"raise": 1})
    assert isinstance(error, ModelFailed)
    assert "rank 1 of 2: ValueError: no convergence (ranks that did not return" in str(error)
    assert answer(farm, 1.0) == (3.0, 2.0)
    logs = "".join(path.read_text() for path in (tmp_path / "logs").iterdir())
    assert logs.count("--- farm starts a worker process") == 2
    assert logs.count("failed: rank 1 of 2:") == 1


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_call_whose_rank_is_killed_runs_again(farm: Farm, start: Start, rank: int) -> None:
    start(2)
    assert answer(farm, 1.0, **{"kill once": rank}) == (3.0, 2.0)
    assert farm.losses() == [f"rank {rank} of 2 died: signal SIGKILL"]


@pytest.mark.slow
@both_libraries
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        # Open MPI's mpiexec may end before it has written that a rank called MPI_Abort.
        ("abort", "called MPI_Abort with error code 3|died: exit code 3"),
        ("exit", "died: exit code 3"),
        (str(int(signal.SIGSEGV)), "died: signal SIGSEGV"),
    ],
    ids=["abort", "exit", "signal"],
)
def test_a_call_whose_rank_crashes_is_tried_once_more(
    farm: Farm, start: Start, tmp_path: Path, how: str, reason: str
) -> None:
    start(3)
    error = failure(farm, fails=1, how=how)
    assert isinstance(error, WorkerLost)
    assert str(error).startswith("the call was lost 2 times, with ")
    losses = farm.losses()
    assert len(losses) == 2
    assert all(re.fullmatch(f"rank 1 of 3 ({reason})", loss) for loss in losses), losses
    assert "the mesh is inverted" in error.detail
    assert answer(farm, 1.0) == (6.0, 3.0)
    logs = "".join(path.read_text() for path in (tmp_path / "logs").iterdir())
    assert logs.count("--- farm starts a worker process") == 3


@pytest.mark.parametrize(
    ("rank", "config"),
    [
        pytest.param(0, {}, marks=pytest.mark.slow, id="0"),
        pytest.param(1, {}, marks=pytest.mark.slow, id="1"),
        pytest.param(1, {"hold once": 0}, marks=pytest.mark.slow, id="held"),
    ],
)
def test_a_rank_that_is_killed_ends_the_others_even_if_the_launcher_does_not(
    farm: Farm,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    rank: int,
    config: dict[str, int],
) -> None:
    """srun leaves the other ranks alone unless it is given -K."""
    monkeypatch.setattr("farm.provision.local.supervisor.GOODBYE_S", 0.2 if config else 60.0)
    workers = start(2)
    ranks = ranks_of(workers)
    (pid,) = workers.pids()
    launcher = psutil.Process(pid)
    parents = {rank.parent() for rank in ranks}
    launchers = {launcher, *launcher.children(recursive=True)} - {*ranks} - parents
    for process in launchers:
        process.suspend()
    call = submit(farm, 1.0, **{"kill once": rank}, **config)
    wait_until(lambda: all(gone(rank) for rank in ranks), "all ranks are gone")
    for process in launchers:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()
    assert call.result(LIMIT_S).outputs[0][0] == 3.0
    assert len(farm.losses()) == 1


@pytest.mark.parametrize("how", [pytest.param("sleep", marks=pytest.mark.slow), "hold"])
def test_the_time_limit_ends_the_whole_group(
    farm: Farm, start: Start, tmp_path: Path, how: str
) -> None:
    workers = start(2, time_limit_s=2.0)
    ranks = ranks_of(workers)
    assert isinstance(failure(farm, **{how: 1000}), TimeLimitExceeded)
    wait_until(lambda: all(gone(rank) for rank in ranks), "all ranks are gone")
    assert farm.losses() == ["time limit of 2 s"]
    assert answer(farm, 1.0) == (3.0, 2.0)


# --- a world that a user's launcher has started -----------------------------------------------


@pytest.fixture
def world(farm: Farm, models: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`mpiexec -n SIZE farm worker --mpi RANKS`, optionally as in a SLURM job."""
    started: list[subprocess.Popen[str]] = []

    def world(size: int, ranks: int, *words: str) -> subprocess.Popen[str]:
        command = [launcher_path("mpiexec"), "-n", str(size), sys.executable, "-m", "farm"]
        command += ["worker", str(models), "--to", str(farm.connect), "--mpi", str(ranks)]
        process = subprocess.Popen(
            [*command, *words],
            env=environment() | {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(ENDS_AT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield world
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, id="TERM"),
        pytest.param(signal.SIGINT, id="INT"),
    ],
)
def test_a_world_forms_groups_and_drains_on_signals(
    farm: Farm, models: Path, world: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    launcher = world(4, 2)
    assert len(set(farm.wait_for_workers(2))) == 2
    infos = farm.dispatcher._workers.values()
    assert not any(ENDS_RUNS in i.labels for i in infos), "a group would take too long to start"
    assert [(i.ends_at, i.labels["job"], i.labels["ranks"]) for i in infos] == [
        (ENDS_AT, "7", "2")
    ] * 2
    futures = [submit(farm, float(i)) for i in range(10)]
    assert [f.result(LIMIT_S).outputs[0][0] for f in futures] == [3.0 * i for i in range(10)]
    running = submit(farm, 1.0, sleep=0.5)
    wait_until(models.with_name("begun").exists, "the call runs")
    launcher.send_signal(number)
    assert running.result(LIMIT_S).outputs[0][0] == 3.0
    launcher.wait(LIMIT_S)
    farm.wait_for_workers(0)
    assert farm.losses() == []


@pytest.mark.slow
def test_the_time_limit_of_a_world_is_that_of_calls(
    farm: Farm, models: Path, world: Callable[..., subprocess.Popen[str]]
) -> None:
    models.write_text(f"import time\ntime.sleep(0.5)\n{MODELS}")
    launcher = world(2, 2, "--time-limit", "0.3")
    farm.wait_for_workers(1)
    assert isinstance(failure(farm, sleep=1000), TimeLimitExceeded)
    assert launcher.wait(LIMIT_S) != 0


@pytest.mark.slow
def test_a_world_of_the_wrong_size_is_refused(
    farm: Farm, world: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = world(3, 2)
    output, _ = launcher.communicate(timeout=LIMIT_S)
    assert launcher.returncode != 0
    assert "3 MPI processes cannot form groups of 2" in output


@pytest.mark.slow
def test_lone_worlds_under_a_step_of_several_tasks_are_refused(farm: Farm, models: Path) -> None:
    """As under `srun --mpi=none -n 4`."""
    command = [sys.executable, "-m", "farm", "worker", str(models), "--mpi", "2"]
    done = subprocess.run(
        [*command, "--to", str(farm.connect)],
        env={**environment(), "SLURM_STEP_NUM_TASKS": "4"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode != 0
    assert "this MPI world has 1 rank, expected 4" in done.stderr
    assert "Traceback" not in done.stderr
    assert os.environ.get("SLURM_STEP_NUM_TASKS") is None
