"""`farm worker`: joins a running farm, drains on a signal, refuses wrong options."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

import farm
from farm.provision.batch.systems import BUILT_IN
from farm.transports.connection import Connection, write_connection
from farm.wording import counted
from tests.cli.conftest import assert_one_line
from tests.support.batch_jobs import JOBS
from tests.support.dispatcher_farm import (
    BEAM,
    FARM,
    LIMIT_S,
    Served,
    environment,
    farm_command,
    run_farm,
    run_here,
    serving,
)
from tests.support.running_farm import wait_until
from tests.support.shown_blocks import text_of
from tests.support.warm_parents import parents_among

PAGE = text_of("docs/clusters.md")


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Served]:
    """Run a farm without workers."""
    (folder / "beam.py").write_text(BEAM)
    with serving(folder, "--workers", "0") as served:
        yield served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with started(tmp_path_factory.mktemp("farm")) as served:
        yield served


def start(
    *words: str | Path, cwd: Path, told: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start `farm worker`."""
    return subprocess.Popen(
        [*FARM, "worker", *map(str, words)],
        cwd=cwd,
        env=environment() | dict(told or {}),
        stderr=subprocess.PIPE,
        text=True,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    """Return its next line of errors."""
    assert process.stderr is not None
    return process.stderr.readline()


@contextlib.contextmanager
def worker_of(
    served: Served, *options: str, told: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run `farm worker` for the block; afterwards the farm knows that it left."""
    target = "--to", str(served.folder)
    with start("beam.py", *target, *options, cwd=served.folder.parent, told=told) as process:
        try:
            yield process
        finally:
            process.terminate()
    wait_until(lambda: served.process.poll() is not None or not workers(served), "it has left")


@pytest.fixture
def worker(served: Served) -> Iterator[subprocess.Popen[str]]:
    with worker_of(served, "-n", "1") as process:
        assert "1 worker ready" in line_of(process)
        yield process


def workers(served: Served) -> list[dict[str, Any]]:
    with farm.connect(served.folder) as client:
        found: list[dict[str, Any]] = client.status()["workers"]
        return found


def test_who_is_stopped_while_models_load_was_never_ready(served: Served, tmp_path: Path) -> None:
    loading = tmp_path / "loading"
    (tmp_path / "slow.py").write_text(
        f"import time\nopen({str(loading)!r}, 'w').close()\ntime.sleep({LIMIT_S})\n{BEAM}"
    )
    with start(tmp_path / "slow.py", "--to", served.folder, cwd=tmp_path) as process:
        wait_until(loading.exists, "the model loads")
        process.terminate()
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert "ready" not in errors


SOON = "import sys, farm.wording; farm.wording.JOIN_S = 1; from farm.__main__ import main; main()"


def test_who_has_not_joined_says_so_with_the_address_and_is_not_ready(tmp_path: Path) -> None:
    (tmp_path / "beam.py").write_text(BEAM)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        (server, _), (public, secret) = zmq.curve_keypair(), zmq.curve_keypair()
        keys = server.decode(), public.decode(), secret.decode()
        write_connection(tmp_path / "workers.json", Connection(address, *keys))
        with subprocess.Popen(
            [sys.executable, "-c", SOON, "worker", "beam.py", "--to", str(tmp_path), "-n", "2"],
            cwd=tmp_path,
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            expected = "2 workers expected, 0 have joined after 1 s; they try"
            line = line_of(process)
            process.terminate()
            _, more = process.communicate()
            assert line == f"{expected} {address}\n"
            assert "ready" not in more


def test_a_signal_drains_the_running_call_is_finished(
    served: Served, worker: subprocess.Popen[str], tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    config = json.dumps({"begun": str(begun), "sleep": 0.5})
    words = ("call", "1,2,4", "8", "--config", config, "--json", "--to", str(served.folder))
    with farm_command(*words, cwd=tmp_path) as caller:
        wait_until(begun.exists, "the call runs")
        worker.send_signal(signal.SIGTERM)
        answer, _ = caller.communicate(timeout=LIMIT_S)
    assert json.loads(answer)["outputs"] == {"bent": [8.0, 4.0, 2.0]}
    assert worker.wait(LIMIT_S) == 0
    wait_until(lambda: workers(served) == [], "the farm knows that it left")
    assert list((served.folder / "logs").glob("*.log"))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere none is forked")
@pytest.mark.parametrize(
    ("option", "count"), [("--fork", 1), pytest.param("--no-fork", 0, marks=pytest.mark.slow)]
)
def test_processes_are_forked_unless_that_is_turned_off(
    served: Served, option: str, count: int
) -> None:
    with worker_of(served, "-n", "2", option) as worker:
        assert "2 workers ready" in line_of(worker)
        assert len(parents_among(psutil.Process(worker.pid).children())) == count


def test_a_running_farm_gets_more_workers_by_the_command_of_the_page(tmp_path: Path) -> None:
    (command,) = re.findall(r"^farm (worker .* --to farm-run -n 8) +#", PAGE, re.MULTILINE)
    words = command.replace("farm-run -n 8", "run --workers 2").split()
    (tmp_path / "beam.py").write_text(BEAM)
    with (
        serving(tmp_path, "beam.py", "--workers", "1") as served,
        farm.connect(served.folder) as client,
    ):

        def names() -> set[str]:
            return {worker["name"] for worker in client.status()["workers"]}

        served.wait_for_workers(1)
        (first,) = names()
        with start(*words[1:], cwd=tmp_path) as more:
            try:
                assert "2 workers ready" in line_of(more)
                one, other = names() - {first}
                status, _, errors = run_here("drain", one, "--to", "run", cwd=tmp_path)
                assert status == 0, errors
                wait_until(lambda: names() == {first, other}, "one of them leaves")
                more.send_signal(signal.SIGINT)
                assert more.wait(LIMIT_S) == 0
            finally:
                more.kill()
        wait_until(lambda: names() == {first}, "the other leaves, too")
        assert client.model("beam")([[1.0, 2.0, 4.0], [8.0]]).tolist() == [8.0, 4.0, 2.0]


def test_the_end_of_the_farm_ends_its_workers(tmp_path: Path) -> None:
    with started(tmp_path) as served, worker_of(served) as worker:
        assert "1 worker ready" in line_of(worker)
        served.stop()
        assert worker.wait(LIMIT_S) == 0


def test_a_model_that_cannot_be_loaded_is_said(served: Served) -> None:
    folder = served.folder.parent
    (folder / "broken.py").write_text("import no_such_module_here\n")
    status, _, errors = run_farm("worker", "broken.py", "--to", "run", cwd=folder)
    assert status == 2
    assert "no_such_module_here" in errors
    assert errors.strip().splitlines()[-1].startswith("farm: error: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "told", "count", "devices"),
    [
        (("--cpus", "2"), {"SLURM_CPUS_ON_NODE": "5"}, 2, {""}),
        (("--cpus", "8"), {"SLURM_CPUS_ON_NODE": "4"}, 1, {""}),
        (("--gpus", "auto", "-n", "2"), {"CUDA_VISIBLE_DEVICES": "4,7"}, 4, {"4", "7"}),
        (("--gpus", "1"), {"CUDA_VISIBLE_DEVICES": "4,7"}, 1, {"7"}),
    ],
)
def test_as_many_processes_as_there_is_room_for(
    served: Served, options: tuple[str, ...], told: dict[str, str], count: int, devices: set[str]
) -> None:
    with worker_of(served, *options, told=told) as process:
        assert f"{counted(count, 'worker')} ready" in line_of(process)
        wait_until(lambda: len(workers(served)) == count, f"{count} workers")
        assert {row["device"] for row in workers(served)} == devices


@pytest.mark.gpu
def test_each_gpu_has_a_process_that_sees_it_alone(served: Served) -> None:
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    uuids = set(re.findall(r"\(UUID: (GPU-[^)]+)\)", listed))
    assert uuids
    with worker_of(served, "--gpus", "auto", "-n", "2") as process:
        assert f"{2 * len(uuids)} workers ready" in line_of(process)
        wait_until(lambda: len(workers(served)) == 2 * len(uuids), "all workers")
        assert sorted(str(row["device"]) for row in workers(served)) == sorted([*uuids, *uuids])


@pytest.mark.slow
@pytest.mark.parametrize("system", [system.name for system in BUILT_IN])
def test_in_a_job_a_worker_waits_for_a_farm_that_is_about_to_start(
    system: str, tmp_path: Path
) -> None:
    (tmp_path / "beam.py").write_text(BEAM)
    told, job = JOBS[system].variables, JOBS[system].id
    with start("beam.py", "--to", "run/farm.json", cwd=tmp_path, told=told) as process:
        try:
            assert line_of(process) == "waiting for run/workers.json\n"
            with serving(tmp_path, "--workers", "0") as served:
                wait_until(lambda: len(workers(served)) == 1, "the worker")
                assert workers(served)[0]["job"] == job
        finally:
            process.terminate()


def test_outside_a_job_a_missing_farm_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "beam.py").write_text(BEAM)
    status, _, errors = run_farm("worker", "beam.py", "--to", "run", cwd=tmp_path)
    assert status != 0
    assert "waiting for" not in errors


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "ends"), [("echo 1:00:00", True), ("exit 1", False)])
def test_slurm_is_asked_once_when_the_job_ends(
    served: Served, tmp_path: Path, answer: str, ends: bool
) -> None:
    """Each question may take 15 s where SLURM hangs, and all workers of a job wait for it."""
    squeue, asked = tmp_path / "squeue", tmp_path / "asked"
    squeue.write_text(f'#!/bin/sh\necho "$*" >> {asked}\n{answer}\n')
    squeue.chmod(0o755)
    told = {"PATH": f"{tmp_path}:{environment()['PATH']}", "SLURM_JOB_ID": "7"}
    with worker_of(served, "-n", "2", told=told):
        wait_until(lambda: len(workers(served)) == 2, "both workers")
        assert [row["ends_in_s"] is not None for row in workers(served)] == [ends, ends]
    assert asked.read_text() == "-h -j 7 -o %L\n"


def ends_in_s(farm: Served) -> list[float]:
    return [float(str(row["ends_in_s"])) for row in workers(farm)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["--time-left", "--ends-at", "FARM_ENDS_AT"])
def test_any_site_can_say_when_the_job_ends(served: Served, how: str) -> None:
    end = str(int(time.time()) + 5000)
    told = {how: end} if how.isupper() else {}
    options = [how, "5000" if how == "--time-left" else end] if not told else []
    with worker_of(served, *options, told={**told, "SLURM_JOB_END_TIME": "1"}):
        wait_until(lambda: workers(served), "the worker")
        assert 4900 < ends_in_s(served)[0] <= 5000


def test_workers_drain_before_the_end(served: Served) -> None:
    with worker_of(served, "--time-left", "1000000", "--drain-before", "999998") as process:
        assert process.wait(LIMIT_S) == 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("--time-limit 0", "Invalid value for '--time-limit': 0"),
        ("--drain-before 5", "--drain-before needs --ends-at or --time-left"),
        ("--gpus all", "--gpus is 'all'; expected auto, per-node, or positions such as 0,1"),
        ("--gpus 0 --mpi 2", "--gpus assigns GPUs to single processes; assign those of ranks"),
        ("--mpi-launch srun", "--mpi-launch needs --mpi RANKS"),
    ],
)
def test_options_that_do_not_fit_are_one_line(served: Served, options: str, complaint: str) -> None:
    words = "worker", "beam.py", "--to", "run", *options.split()
    assert_one_line(run_here(*words, cwd=served.folder.parent), complaint)


def test_what_a_launcher_decides_is_no_option_of_its_ranks(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    words = "worker", "beam.py", "--to", "run", "--mpi", "2", "-n", "2"
    complaint = "processes that farm starts; under srun or mpiexec"
    assert_one_line(run_here(*words, cwd=served.folder.parent), complaint)
