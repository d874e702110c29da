"""`--mpi`: models on groups of MPI ranks, and errors for unsupported combinations."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
import urllib3

from tests.support.dispatcher_farm import BEAM, FARM, environment, run_farm, run_here, serving

NORM = """
import farm

@farm.model(inputs={"x": 2}, outputs={"norm": 1, "ranks": 1})
def norm(x):
    mine = x[norm.comm.rank :: norm.comm.size]
    return norm.comm.allreduce(mine @ mine) ** 0.5, norm.comm.size
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "beam.py").write_text(BEAM)
    return tmp_path


@pytest.mark.slow
def test_groups_of_mpi_ranks_run_the_model(folder: Path) -> None:
    (folder / "norm.py").write_text(NORM)
    with serving(folder, "norm.py", "--mpi", "2") as served:
        body = {"name": "norm", "input": [[3, 4]]}
        answer = urllib3.request("POST", f"{served.connection.url}/Evaluate", json=body)
        assert answer.json() == {"output": [[5.0], [2.0]]}
        assert served.stop()[::2] == (0, "farm stops; Ctrl-C again to hurry\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mpi", "2", "--mpi-launch", "sruhn -n {ranks}"], "there is no launcher 'sruhn' here"),
        (["--mpi", "2", "--mpi-launch", "mpiexec 'a"], "is no command (No closing quotation)"),
        (["--mpi", "2", "--mpi-launch", " "], "--mpi-launch is ' ', which is no command"),
    ],
)
def test_groups_that_cannot_be_had(folder: Path, arguments: list[str], message: str) -> None:
    status, _, errors = run_farm("serve", "beam.py", "--port", "0", *arguments, cwd=folder)
    assert status == 2
    assert message in errors
    assert errors.startswith("farm: error: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("verb", "options", "message"),
    [
        ("serve", ["--mpi", "2", "--workers", "0"], "mpi is 2; expected workers on this machine"),
        (
            "serve",
            ["--mpi", "2", "--dask", "tcp://x:1"],
            "mpi is 2; expected workers on this machine",
        ),
        ("serve", ["--mpi-launch", "mpiexec"], "expected it to come with mpi, the number of ranks"),
        ("worker", ["--mpi-launch", "mpiexec"], "--mpi-launch needs --mpi RANKS"),
        ("worker", ["--mpi", "2", "-n", "2"], "processes that farm starts; under srun or mpiexec"),
    ],
)
def test_options_of_mpi_that_do_not_fit(
    folder: Path, verb: str, options: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    status, _, errors = run_here(verb, "beam.py", *options, cwd=folder)
    assert status == 2
    assert message in errors
    assert errors.startswith("farm: error: ")
    assert errors.count("\n") == 1


def test_more_ranks_than_there_may_be_connections(folder: Path) -> None:
    command = f"ulimit -n 300; exec {shlex.join(FARM)} serve beam.py --port 0 --mpi 50 -n 4"
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "200 MPI ranks needs 320 open files, this process may have 300" in done.stderr
