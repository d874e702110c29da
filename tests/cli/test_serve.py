"""`farm serve`, run as a user does: start, discovery, shutdown, refusals with reasons."""

from __future__ import annotations

import json
import re
import shlex
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import urllib3

from tests.cli.conftest import assert_one_line
from tests.support.dask_cluster import dask_cluster
from tests.support.dispatcher_farm import (
    BEAM,
    LIMIT_S,
    Served,
    farm_command,
    run_farm,
    run_here,
    serving,
)
from tests.support.front_door import read_answer
from tests.support.running_farm import wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "beam.py").write_text(BEAM)
    return tmp_path


@pytest.fixture
def served(folder: Path) -> Iterator[Served]:
    with serving(folder, "beam.py") as farm:
        yield farm


def evaluate(
    url: str, e: Sequence[float] = (1, 2, 4), load: float = 8
) -> tuple[int, dict[str, object]]:
    body = {"name": "beam", "input": [[*e], [load]], "config": {}}
    answer = urllib3.request("POST", f"{url}/Evaluate", json=body, timeout=LIMIT_S, retries=False)
    return answer.status, answer.json()


def test_it_answers_as_options_and_settings_say_and_stops_cleanly(folder: Path) -> None:
    (folder / "farm.toml").write_text('non_finite = "null"\nworkers = 2\n')
    options = ("--config", "farm.toml", "--workers", "1", "--unix", "farm.sock")
    with serving(folder, "beam.py", *options) as served:
        url, file = served.connection.url, served.folder / "farm.json"
        assert evaluate(url) == (200, {"output": [[8.0, 4.0, 2.0]]})
        assert evaluate(url, e=[1, 2, 0], load=0) == (200, {"output": [[0.0, 0.0, None]]})
        _, out, _ = run_farm("status", "--json", "--to", "run", cwd=folder)
        assert len(json.loads(out)["workers"]) == 1
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(LIMIT_S)
            connection.connect(str(folder / "farm.sock"))
            connection.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: farm\r\n\r\n")
            assert read_answer(connection)[0] == 200
        assert file.stat().st_mode & 0o777 == 0o600
        assert served.connection.grpc == ""
        status, out, errors = served.stop()
    assert (status, "Traceback" in errors) == (0, False)
    assert f"farm serves beam at {url}" in out
    assert f"HTTP at unix:{folder / 'farm.sock'}" in out
    assert "gRPC" not in out
    assert not file.exists()
    assert not (folder / "farm.sock").exists()


@pytest.mark.slow
def test_running_calls_finish_before_it_ends(served: Served, folder: Path) -> None:
    begun = folder / "begun"
    config = json.dumps({"begun": str(begun), "sleep": 1.0})
    words = ("call", "1,2,4", "8", "--config", config, "--json", "--to", "run")
    with farm_command(*words, cwd=folder) as caller:
        wait_until(begun.exists, "the call runs")
        status, _, _ = served.stop()
        answer, _ = caller.communicate(timeout=LIMIT_S)
    assert status == 0
    assert json.loads(answer)["outputs"] == {"bent": [8.0, 4.0, 2.0]}


@pytest.mark.slow
def test_one_run_folder_has_one_farm(served: Served, folder: Path) -> None:
    status, _, errors = run_farm("serve", "beam.py", "--port", "0", "--dir", "run", cwd=folder)
    assert status == 2
    assert f"process {served.process.pid}" in errors
    assert evaluate(served.connection.url)[0] == 200


def test_a_taken_port_is_said(served: Served, folder: Path) -> None:
    port = served.connection.url.rpartition(":")[2]
    status, _, errors = run_farm("serve", "beam.py", "--port", port, "--dir", "other", cwd=folder)
    assert status == 2
    assert port in errors
    assert "--port 0" in errors
    assert "Traceback" not in errors
    assert not (folder / "other" / "farm.json").exists()


def test_a_model_that_cannot_be_loaded_is_said(folder: Path) -> None:
    (folder / "broken.py").write_text("import farm\n\nimport no_such_module_here\n")
    status, _, errors = run_farm("serve", "broken.py", "--port", "0", cwd=folder)
    assert status == 2
    assert "no_such_module_here" in errors
    assert errors.strip().splitlines()[-1].startswith("farm: error: ")
    assert not (folder / "farm-run" / "farm.json").exists()
    status, _, errors = run_farm("serve", "nosuch.py", "--port", "0", cwd=folder)
    assert (status, "Traceback" in errors) == (2, False)
    assert re.search(r"^farm: error: .*nosuch\.py.*\n\Z", errors, re.MULTILINE)


@pytest.mark.slow
def test_policies_of_models_come_from_a_file_or_options(folder: Path) -> None:
    (folder / "farm.toml").write_text("[model.bean]\nreserve = 1\n")
    arguments = ["serve", "beam.py", "--port", "0", "--config", "farm.toml"]
    status, _, errors = run_farm(*arguments, cwd=folder)
    assert status == 2
    assert errors == "farm: error: reserve or priority of model 'bean'; farm serves beam\n"
    with serving(folder, *arguments[1:2], "--config", "farm.toml", "--reserve", "beam=25%") as farm:
        assert evaluate(farm.connection.url)[0] == 200


def test_a_dry_run_prints_the_scripts_of_all_kinds_and_starts_nothing(folder: Path) -> None:
    (folder / "cluster.toml").write_text('[[workers]]\n[[workers]]\nname = "big"\ncpus = 8\n')
    arguments = ["serve", "beam.py", "--slurm", "cluster.toml", "--dir", "run", "--dry-run"]
    status, out, errors = run_here(*arguments, cwd=folder)
    assert (status, errors) == (0, "")
    assert out.count("#!/bin/bash") == 2
    assert "#SBATCH --job-name=farm-w1" in out
    assert "#SBATCH --cpus-per-task=8" in out
    assert f"--to {folder}/run/farm.json" in out
    assert not (folder / "run").exists()


def test_it_serves_without_workers_of_its_own(folder: Path) -> None:
    with (
        serving(folder, "--workers", "0") as farm,
        farm_command("worker", "beam.py", "--to", "run", "-n", "2", cwd=folder) as worker,
    ):
        assert worker.stderr is not None
        assert worker.stderr.readline() == "2 workers ready\n"
        farm.wait_for_workers(2)  # a worker that has loaded a model may not have joined yet
        assert evaluate(farm.connection.url) == (200, {"output": [[8.0, 4.0, 2.0]]})
    assert worker.returncode == 0


@pytest.mark.slow
def test_a_dask_cluster_runs_the_model(folder: Path) -> None:
    with dask_cluster(folder) as cluster:
        cluster.add_worker(2)
        with serving(folder, "beam.py", "--dask", cluster.address) as served:
            assert evaluate(served.connection.url) == (200, {"output": [[8.0, 4.0, 2.0]]})
            _, out, _ = run_farm("status", "--json", "--to", "run", cwd=folder)
            (worker,) = json.loads(out)["workers"]
            assert worker["host"] == cluster.address
            (row,) = json.loads(out)["dask"]
            assert (row["threads"], row["done"]) == (2, 1)
            status, _, errors = served.stop()
        assert (status, errors) == (0, "farm stops; Ctrl-C again to hurry\n")
        assert cluster.tasks() == []
        (folder / "bad.py").write_text("import no_such_module_anywhere\n")
        status, _, errors = run_farm(
            "serve", "bad.py", "--port", "0", "--dask", "scheduler.json", cwd=folder
        )
        assert status == 2
        assert "ModuleNotFoundError" in errors
        assert re.search(
            r"^farm: error: Dask worker tcp://\S+ cannot load the models", errors, re.M
        )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("beam.py --reserve beam=many", "has 'beam=many'; expected NAME="),
        ("beam.py --model-priority beam=2000", "has 'beam=2000'; expected NAME="),
        ("beam.py --dry-run", "--dry-run needs --cluster"),
        ("beam.py --dry-run --slurm typo.toml", "sets 'partion', which is none of: account, "),
        ("beam.py --dry-run --slurm empty.toml", "has no [[workers]] table"),
        ("beam.py --dry-run --slurm template.toml", "none.in cannot be read"),
        ("--dask tcp://x:1", "missing MODEL"),
        ("beam.py --dask nowhere", "neither a scheduler file of Dask nor an address"),
        ("beam.py --mpi 2 --mpi-launch 'sruhn -n {ranks}'", "there is no launcher 'sruhn' here"),
        ('beam.py --mpi 2 --mpi-launch "mpiexec \'a"', "no command (No closing quotation)"),
        ("beam.py --mpi 2 --mpi-launch ' '", "--mpi-launch is ' ', which is no command"),
        (
            "beam.py --grpc-port 0 --grpc-tls-cert beam.py --grpc-tls-key beam.py",
            "certificate beam.py with key beam.py cannot be used",
        ),
        ("beam.py --mip beam=9000", "expected NAME=HOST:PORT"),
        ("beam.py --mip beam=0.0.0.0:0", "or add --insecure"),
    ],
)
def test_a_mistake_is_one_line(folder: Path, words: str, complaint: str) -> None:
    (folder / "typo.toml").write_text('[[workers]]\npartion = "x"\n')
    (folder / "empty.toml").touch()
    (folder / "template.toml").write_text('[[workers]]\ntemplate = "none.in"\n')
    found = run_here("serve", *shlex.split(words), "--port", "0", cwd=folder)
    assert_one_line(found, complaint)


@pytest.mark.slow
def test_a_dask_cluster_that_does_not_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT", "1s")
    words = ("serve", "beam.py", "--dask", "tcp://127.0.0.1:1", "--port", "0")
    status, _, errors = run_farm(*words, cwd=folder)
    assert status == 2
    assert "no Dask cluster at tcp://127.0.0.1:1" in errors
    assert "Traceback" not in errors


def test_workers_that_join_and_calls_that_fail_are_logged(served: Served, folder: Path) -> None:
    (folder / "two.py").write_text(BEAM.replace('name = "beam"', 'name = "plate"'))
    with farm_command("worker", "two.py", "--to", "run", cwd=folder):
        served.wait_for_workers(2)
        wrong = json.dumps({"raise": "no root"})
        words = ["--model", "plate", "--config", wrong, "--to", "run"]
        for _ in range(3):
            assert run_farm("call", "1,2,4", "8", *words, cwd=folder)[0] != 0
    _, _, errors = served.stop()
    lines = [line for line in errors.splitlines() if "farm.monitoring.news: " in line]
    said = [re.sub(r"[^\s:]+/[^\s:]+", "W", line.partition("news: ")[2]) for line in lines]
    assert said[:2] == [
        "worker W joined: plate; the farm has 2 workers",
        "a call of model 'plate' failed on worker W: ModelFailed: ValueError: no root",
    ]
    assert all(line.endswith(": ModelFailed: ValueError: no root") for line in said[2:])
