"""Groups of MPI ranks on a real SLURM, over two nodes: steps, worlds, the launcher script."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import NODES, Cluster
from tests.support.open_mpi import needs_pmix

FARM = Path(sys.executable).parent / "farm"
FARM_SH = Path(__file__).parents[2] / "launchers" / "farm.sh"

MODEL = """
import os, signal, socket
import numpy as np
import farm

class Total(farm.Model):
    inputs = {"x": 2}
    outputs = {"y": 2, "hosts": 1}

    def evaluate(self, inputs, config):
        if config.get("kill") == self.comm.rank:
            os.kill(os.getpid(), signal.SIGKILL)
        if config.get("abort") == self.comm.rank:
            self.comm.Abort(3)
        hosts = set(self.comm.allgather(socket.gethostname()))
        return self.comm.allreduce(inputs["x"]), len(hosts)
"""

BEGIN = """#!/bin/bash
# Groups whose MPI does not start, as on a very busy node, are started again.
workers() {
    for i in $(seq 1500); do
        [ "$(@farm status --to run --json 2>/dev/null | grep -o '"pid"' | wc -l)" = "$1" ] && return
        sleep 0.1
    done
    echo "there were never $1 workers"
}
call() {
    timeout 30 @farm call 1,2 --to run --json "$@" 2>&1 | grep -oE '"(y|hosts)":[^]]*|error.*'
}
@farm serve --workers 0 --host 0.0.0.0 --port 0 --dir run > serve.log 2>&1 & serve=$!
for i in $(seq 300); do [ -s run/farm.json ] && break; sleep 0.1; done
"""
END = "kill $serve; wait $serve\n"


def said(cluster: Cluster, folder: Path, script: str, *options: str) -> str:
    """Run a farm and this script in a job on two nodes; return the job's output."""
    (folder / "model.py").write_text(MODEL)
    job = folder / "job.sh"
    job.write_text((BEGIN + script + END).replace("@farm", str(FARM)))
    output = folder / "out.txt"
    command = ["sbatch", "--parsable", "-N2", "-n4", f"--output={output}", *options, str(job)]
    cluster.wait_for_job(cluster.run(command, cwd=folder).strip(), "COMPLETED", limit_s=250)
    return output.read_text()


OPEN_MPI = "export MPI4PY_LIBMPI=libmpi.so.40"

libraries = pytest.mark.parametrize(
    ("mpi_type", "environment"),
    [("pmi2", ""), pytest.param("pmix", OPEN_MPI, marks=needs_pmix)],
    ids=["mpich", "openmpi"],
)


@libraries
def test_a_group_is_a_step_over_the_nodes_and_is_replaced(
    cluster: Cluster, tmp_path: Path, mpi_type: str, environment: str
) -> None:
    for name in NODES[:2]:  # restarted daemons load their plugins again
        cluster.node("stop", name)
        cluster.node("start", name)
    killed = "call --config '{\"kill\": 3}'; call;" if mpi_type == "pmi2" else ""
    text = said(
        cluster,
        tmp_path,
        environment
        + """
        @farm worker model.py --to run --mpi 4 --time-limit 60 \\
            --mpi-launch "srun --mpi=@type -K --exact -N2 -n {ranks}" & worker=$!
        workers 1; call; @killed call --config '{"abort": 2}'; call
        kill -TERM $worker; wait $worker; echo "worker ended with $?"
        """.replace("@type", mpi_type).replace("@killed", killed),
        "--exclusive",
        f"--nodelist={NODES[0]},{NODES[1]}",
    )
    answered = 3 if killed else 2
    assert text.count('"y":[4.0,8.0') + text.count('"y": [4.0, 8.0') == answered
    assert text.count('"hosts":[2.0') + text.count('"hosts": [2.0') == answered
    assert ("lost 4 times" in text) == bool(killed)
    assert ("rank 3 of 4 died: signal SIGKILL" in text) == bool(killed)
    assert "lost 2 times" in text
    assert re.search("rank 2 of 4 (called MPI_Abort with error code 3|died: exit code 3)", text)
    assert "worker ended with 0" in text


def test_a_step_of_many_ranks_forms_groups(cluster: Cluster, tmp_path: Path) -> None:
    text = said(
        cluster,
        tmp_path,
        """
        srun --mpi=pmi2 -K --overlap -n4 @farm worker model.py --to run --mpi 2 & world=$!
        workers 2; call
        scancel --signal=TERM $SLURM_JOB_ID.0; wait $world; echo "world ended with $?"
        srun --mpi=none -K --overlap -n4 @farm worker model.py --to run --mpi 2
        """,
        "--exclusive",
    )
    assert "never" not in text
    assert "[2.0" in text
    assert "world ended with 0" in text
    assert "this MPI world has 1 rank, expected 4" in text


@libraries
def test_the_launcher_makes_as_many_groups_as_fit(
    cluster: Cluster, tmp_path: Path, mpi_type: str, environment: str
) -> None:
    text = said(
        cluster,
        tmp_path,
        f"""{environment}
        job=$(MPI_TYPE={mpi_type} FARM=@farm sbatch --parsable -N2 -n4 -o mpi.txt {FARM_SH} \\
            --mpi 2 --to run model.py)
        workers 2; call; call; scancel $job; workers 0; @farm status --to run --json
        """,
        "-n1",
        "-N1",
    )
    assert "never" not in text
    assert text.count('"y":[2.0') + text.count('"y": [2.0') == 2
    assert text.count('"text": "drained"') == 2
