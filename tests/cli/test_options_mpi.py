"""`--mpi`: models on groups of MPI ranks, and errors for unsupported combinations."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
import urllib3

from tests.support.dispatcher_farm import BEAM, FARM, environment, serving

NORM = """
import farm

@farm.model(inputs={"x": 2}, outputs={"norm": 1, "ranks": 1})
def norm(x):
    mine = x[norm.comm.rank :: norm.comm.size]
    return norm.comm.allreduce(mine @ mine) ** 0.5, norm.comm.size
"""


@pytest.mark.slow
def test_groups_of_mpi_ranks_run_the_model(tmp_path: Path) -> None:
    (tmp_path / "norm.py").write_text(NORM)
    with serving(tmp_path, "norm.py", "--mpi", "2") as served:
        body = {"name": "norm", "input": [[3, 4]]}
        answer = urllib3.request("POST", f"{served.connection.url}/Evaluate", json=body)
        assert answer.json() == {"output": [[5.0], [2.0]]}
        assert served.stop()[::2] == (0, "farm stops; Ctrl-C again to hurry\n")


def test_more_ranks_than_there_may_be_connections(tmp_path: Path) -> None:
    (tmp_path / "beam.py").write_text(BEAM)
    command = f"ulimit -n 300; exec {shlex.join(FARM)} serve beam.py --port 0 --mpi 50 -n 4"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "200 MPI ranks needs 320 open files, this process may have 300" in done.stderr
