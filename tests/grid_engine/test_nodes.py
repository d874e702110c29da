"""Jobs over several nodes and groups of MPI ranks on a real Grid Engine."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.grid_engine.cluster import ONE_KIND, GridFarm
from tests.slurm.elastic import FARM

MPIEXEC = Path(sys.executable).with_name("mpiexec")

RANKS = """
import os; os.environ["FARM_JOB"]
import socket
import farm

class Total(farm.Model):
    name = "total"
    inputs = {"x": 2}
    outputs = {"y": 2, "hosts": 1}

    def evaluate(self, inputs, config):
        hosts = set(self.comm.allgather(socket.gethostname()))
        return self.comm.allreduce(inputs["x"]), len(hosts)
"""


def test_a_job_on_two_nodes_has_workers_on_both_and_they_drain(farm: GridFarm) -> None:
    one_job = 'max_jobs = 1\nnodes = 2\nworkers = 2\noptions = ["-pe nodes 2"]\ntime = 10'
    farm.serve(ONE_KIND.replace("max_jobs = 3", one_job))
    rows = farm.wait_for_workers(4)
    assert len({row["host"] for row in rows}) == 2
    assert len({row["job"] for row in rows}) == 1
    assert {row["kind"] for row in rows} == {"small"}
    assert all(500 < row["ends_in_s"] <= 600 for row in rows)
    with farm.calling("double", 20, 0.2) as answers:
        assert answers() == [2.0 * n for n in range(20)]
    farm.wait_for_no_jobs()
    account = farm.grid.account(rows[0]["job"])
    assert (account["failed"], account["exit_status"]) == ("0", "0")
    farm.stop()


def test_ranks_run_on_the_nodes_of_the_job(farm: GridFarm) -> None:
    (farm.folder / "total.py").write_text(RANKS)
    # The virtual nodes share a kernel, which MPICH notices, but no memory.
    launch = f'mpi_launch = "{MPIEXEC} -n {{ranks}}"\nsetup = ["export UCX_TLS=tcp,self"]'
    plan = ONE_KIND.replace("double.py", "total.py").replace(
        "max_jobs = 3", f'max_jobs = 1\nranks = 2\nnodes = 2\noptions = ["-pe nodes 2"]\n{launch}'
    )
    assert shutil.which(MPIEXEC), "the environment has no mpiexec of its own"
    farm.serve(plan)
    said = farm.run(*FARM, "call", "1,2", "--to", "run")
    assert "y = [2. 4.]" in said
    assert "hosts = [2.]" in said
    farm.wait_for_no_jobs()
    farm.stop()
