"""A front door that is killed again and again on a SLURM: all ends right, and nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import psutil
import pytest

from tests.slurm.cluster import LIMIT_S, Cluster, wait_for
from tests.slurm.elastic import FARM, Elastic, front_door_of
from tests.slurm.launched import Launched, write_files

SAMPLERS = Path(__file__).parents[2] / ".venv-samplers" / "bin" / "python"

MODELS = """
import os; os.environ["SLURM_JOB_ID"]
import time
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def slow(x):
    time.sleep(0.2)  # with all others a minute of work for eight workers, so three kills
    return x**2

@farm.model(inputs={"x": 1}, outputs={"y": 1}, repeatable=False)
def once(x):
    with open("runs", "a") as runs:
        print(int(x[0]), file=runs)
    time.sleep(0.3)
    return x

@farm.model(inputs={"x": 2}, outputs={"logp": 1})
def gauss(x):
    time.sleep(0.02)
    return -0.5 * (x**2).sum()

@farm.model(inputs={"x": 1}, outputs={"y": 1}, repeatable=False)
def held(x):
    with open("held", "a") as runs:
        print(int(x[0]), file=runs)
    while not os.path.exists("go"):
        time.sleep(0.02)
    return 2 * x
"""

PLAN = """
backlog_s = 1
idle_timeout_s = 60

[[workers]]
name = "all"
models = ["models.py:slow", "models.py:once", "models.py:gauss"]
partition = "cpu"
cpus = 1
workers = 4
min_jobs = 2
max_jobs = 2
"""

CALLS = """
import farm
with farm.connect("run", wait=120) as client:
    model = client.model("slow")
    futures = [model.submit([float(n)]) for n in range(2000)]
    assert [float(f.result()[0]) for f in futures] == [float(n) ** 2 for n in range(2000)]
"""

ONCE = """
import farm
from farm.errors import Unavailable, WorkerLost
with farm.connect("run", wait=120) as client:
    model = client.model("once")
    lost = 0
    for n in range(150):
        try:
            assert float(model([float(n)])[0]) == n
        except (Unavailable, WorkerLost):
            lost += 1
    print(lost)
"""

EMCEE = """
import emcee, farm, numpy as np
start = np.random.default_rng(1).normal(size=(16, 2))
def chain(logp):
    np.random.seed(2)
    sampler = emcee.EnsembleSampler(16, 2, logp, vectorize=True)
    sampler.run_mcmc(start, 100)
    return sampler.get_chain()
with farm.connect("run", wait=120) as client:
    model = client.model("gauss")
    found = chain(lambda points: model.map(points)[:, 0])
assert np.array_equal(found, chain(lambda points: np.array([-0.5 * (x**2).sum() for x in points])))
"""


HELD = """
import json, sys
import farm
from farm.errors import WorkerLost
outcomes = {}
with farm.connect("run", wait=120) as client:
    model = client.model("held")
    points = [[float(n)] for n in range(256)]
    if sys.argv[1] == "submit":
        futures = [model.submit(point) for point in points]
        answers = ((n, f.exception() or f.result()) for n, f in enumerate(futures))
    else:
        answers = model.as_completed(points, return_errors=True)
    for n, answer in answers:
        assert n not in outcomes
        if isinstance(answer, WorkerLost):
            outcomes[n] = "lost"
        else:
            outcomes[n] = "right" if float(answer[0]) == 2 * n else repr(answer)
print(json.dumps(outcomes))
"""


@contextlib.contextmanager
def killed_every(seconds: float, folder: Path) -> Iterator[list[int]]:
    """Kill the front door with SIGKILL again and again within the block; yields the processes."""
    killed: list[int] = []
    over = threading.Event()

    def kill() -> None:
        while not over.wait(seconds):
            pid = front_door_of(folder)
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def killed_after(program: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a program after the block, if it still runs."""
    try:
        yield
    finally:
        program.kill()


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of all processes that work in a folder, by their directories."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if Path(process.cwd()) == folder and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
    return found


@pytest.mark.timeout(300)
def test_calls_chains_and_sweeps_outlive_a_front_door_that_dies_every_20_s(
    elastic: Elastic,
) -> None:
    (elastic.folder / "models.py").write_text(MODELS)
    for name, text in (("calls", CALLS), ("once", ONCE), ("emcee_chain", EMCEE)):
        (elastic.folder / f"{name}.py").write_text(text)
    elastic.serve(PLAN)
    elastic.wait_for_workers(8)
    jobs = elastic.jobs()
    sweep = [*FARM, "sweep", "--to", "run", "--model", "slow", "--param", "x=0:1"]
    sweep += ["--design", "sobol:512", "-o", "s.h5"]
    commands = [[sys.executable, "calls.py"], [sys.executable, "once.py"], sweep]
    if SAMPLERS.exists():
        commands.append([str(SAMPLERS), "emcee_chain.py"])
    began = time.monotonic()
    with killed_every(20.0, elastic.folder / "run") as killed:
        programs = [elastic.start(*command) for command in commands]
        outputs = [program.communicate(timeout=8 * LIMIT_S) for program in programs]
    print(f"{len(killed)} kills in {time.monotonic() - began:.0f} s")
    for program, (_, errors) in zip(programs, outputs, strict=True):
        assert program.returncode == 0, errors
    assert len(killed) >= 3
    runs = Counter((elastic.folder / "runs").read_text().split())
    assert set(runs.values()) == {1}, "what must not run twice has run once"
    assert 150 - int(outputs[1][0]) <= len(runs) <= 150
    with h5py.File(elastic.folder / "s.h5") as file:
        assert file["status"][:].tolist() == [1] * 512
        assert np.array_equal(file["out_0"][:, 0], file["theta"][:, 0] ** 2)
    wait_for(lambda: front_door_of(elastic.folder / "run") not in killed, "the last restart")
    assert elastic.status()["restarts"]["count"] == len(killed)
    assert elastic.jobs() == jobs, "the same jobs all the time"
    elastic.stop()
    assert elastic.jobs() == {}
    wait_for(lambda: not processes_of(elastic.folder), "the last process to end")


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("how", "end"), [("submit", "away"), ("as_completed", "back")])
def test_only_calls_that_had_begun_are_lost_with_the_front_door(
    elastic: Elastic, how: str, end: str
) -> None:
    """Of a model that must not run twice: of 256 calls, each of eight workers has begun one.

    These end between the two front doors, or when the other calls wait at the second one.
    """
    (elastic.folder / "models.py").write_text(MODELS)
    (elastic.folder / "held.py").write_text(HELD)
    elastic.serve(
        PLAN.replace('"models.py:slow", "models.py:once", "models.py:gauss"', '"models.py:held"')
    )
    elastic.wait_for_workers(8)
    # Later, when all workers are busy, none of them tells the next front door of its models.
    wait_for((elastic.folder / "run" / "jobs" / "models.json").exists, "the models to be saved")
    runs = elastic.folder / "held"

    def begun() -> list[int]:
        return [int(x) for x in runs.read_text().split()] if runs.exists() else []

    def queued() -> int:
        return sum(queue["queued"] for queue in elastic.status()["queues"])

    with elastic.start(sys.executable, "held.py", how) as program, killed_after(program):
        wait_for(lambda: len(begun()) == 8, "each worker to begin a call")
        before = set(begun())
        killed = front_door_of(elastic.folder / "run")
        os.kill(killed, signal.SIGKILL)
        if end == "back":
            wait_for(lambda: front_door_of(elastic.folder / "run") != killed, "the next one")
            wait_for(lambda: queued() == 248, "the calls that have not begun to be there")
        (elastic.folder / "go").touch()
        out, errors = program.communicate(timeout=4 * LIMIT_S)
    assert program.returncode == 0, errors
    outcomes = {int(n): outcome for n, outcome in json.loads(out).items()}
    assert sorted(outcomes) == list(range(256))
    assert set(outcomes.values()) <= {"right", "lost"}, outcomes
    lost = {n for n, outcome in outcomes.items() if outcome == "lost"}
    ran = Counter(begun())
    print(f"{len(lost)} of 256 calls lost, {len(ran)} ran")
    assert set(ran.values()) == {1}, "what must not run twice has run once"
    assert set(range(256)) - lost <= set(ran)
    assert lost <= before, "only what had begun is lost"
    elastic.stop()


@pytest.mark.timeout(180)
def test_a_job_of_the_launcher_goes_on_when_its_front_door_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    write_files(tmp_path)
    (tmp_path / "calls.py").write_text(
        "import os, farm\n"
        "with farm.connect(os.environ['FARM_CONNECTION']) as client:\n"
        "    model = client.model('total')\n"
        "    futures = [model.submit([n, 1], config={'sleep': 0.2}) for n in range(300)]\n"
        "    right = [float(f.result()[0]) for f in futures] == [n + 1 for n in range(300)]\n"
        "    print('right', right)\n"
    )
    words = ["model.py:total", "--", sys.executable, "calls.py"]
    job = Launched(cluster, tmp_path, "-N2", "-n4", "farm.sh", *words)
    job.workers(4)
    killed = []
    for _ in range(2):
        killed.append(front_door_of(job.run_folder))
        os.kill(killed[-1], signal.SIGKILL)
        wait_for(lambda: front_door_of(job.run_folder) not in killed, "another front door")
        job.workers(4)
    assert job.exit_code() == "0:0"
    text = job.output()
    assert "right True" in text
    assert text.count("was killed by signal 9 (SIGKILL); it is started again") == 2
    assert not re.search("Traceback|slurmstepd: error", text)
    assert not (job.run_folder / "farm.json").exists()
    wait_for(lambda: not processes_of(tmp_path), "the last process to end")


def test_a_stop_while_the_front_door_restarts_leaves_no_job(elastic: Elastic) -> None:
    (elastic.folder / "models.py").write_text(MODELS)
    elastic.serve(PLAN.replace("workers = 4", "workers = 1"))
    elastic.wait_for_workers(2)
    os.kill(front_door_of(elastic.folder / "run"), signal.SIGKILL)
    assert elastic.process is not None
    elastic.process.terminate()
    _, errors = elastic.process.communicate(timeout=4 * LIMIT_S)
    assert elastic.process.returncode in (0, 130), errors
    elastic.process = None
    assert elastic.jobs() == {}, errors
    wait_for(lambda: not processes_of(elastic.folder), "the last process to end")
