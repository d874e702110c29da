"""The blocks of docs/slurm.md, docs/clusters.md, docs/mpi.md and slurm/README.md that need SLURM.

Sizes are those of the cluster here; names of queues, too. test_launcher_installed.py has the lines
about the launcher, and tests/worker/mpi and tests/provision/batch the blocks without SLURM.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import h5py
import pytest

from tests.slurm.cluster import PROGRAM, Cluster, free_ports, wait_for
from tests.slurm.launched import FARM, workers_of
from tests.slurm.test_launcher_installed import SURROGATE, Shell
from tests.support import open_mpi
from tests.support.shown_blocks import blocks, text_of
from tests.support.shown_lines import BEAM, LIMIT_S, ROOT, changed, lines, shell_blocks
from tests.test_readme import TIP

LAPTOP, _, _, _, _, OWN_JOB, ELASTIC, TEMPLATE = shell_blocks("docs/slurm.md")
ON_ANY = shell_blocks("docs/clusters.md")[0]
CLUSTER, NETNS = (b for b in shell_blocks("slurm/README.md") if "dev-cluster up" in b)
CALLS = """
import farm
with farm.connect('farm-run') as client:
    print([float(y[0]) for y in client.model().map([[2.0] * 1000] * 8)])
"""
ANSWER = f"= [{TIP:.8f}]"


def settings(page: str, *changes: tuple[str, str]) -> str:
    """Return the first file of settings on a page, for the queues and nodes here."""
    shown = blocks(text_of(f"docs/{page}"))
    text = next(b.text for b in shown if b.language == "toml")
    return changed(text, ('"standard"', '"cpu"'), ("workers = 16 ", "workers = 2 "), *changes)


@pytest.fixture
def shell(cluster: Cluster, tmp_path: Path) -> Shell:
    (tmp_path / "beam.py").write_text(BEAM)
    shell = Shell(cluster, tmp_path, FARM)
    shell.variables.append("FARM_PORT=0")
    return shell


@contextlib.contextmanager
def going(shell: Shell, line: str) -> Iterator[subprocess.Popen[str]]:
    """Run a line on the login node beside the block, which may end it; its exit status is 0."""
    command = ["env", *shell.variables, "bash", "-euc", f"exec env {line}"]
    with shell.cluster.start(command, cwd=shell.folder) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            said, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, said + errors


def call(shell: Shell, words: str) -> str:
    return shell.run(f"farm call --wait {LIMIT_S} {words}")


def test_the_laptop(shell: Shell) -> None:
    shell.run(lines(LAPTOP)[0])
    with h5py.File(shell.folder / "beam.h5") as file:
        assert file["status"][:].tolist() == [1] * 256


def test_workers_in_a_job_of_your_own(shell: Shell) -> None:
    (shell.folder / "model.py").write_text(BEAM)
    (shell.folder / "job.sh").write_text("#!/bin/bash\n" + OWN_JOB)
    job = shell.submitted("sbatch -N 2 --exclusive --export=ALL -o farm-%j.out job.sh")
    rows = workers_of(shell.cluster, shell.folder / "run", 2, lambda: shell.output(job))
    assert len({row["host"] for row in rows}) == 2
    assert ANSWER in call(shell, "--to run 500 0.02")
    shell.run("farm stop --to run")
    assert shell.exit_code(job) == "0:0", shell.output(job)


def test_an_elastic_farm_of_two_kinds_with_a_template_of_its_own(shell: Shell) -> None:
    (shell.folder / "surrogate.py").write_text(SURROGATE)
    shell.run(TEMPLATE)
    template = shell.folder / "site.sh.in"
    template.write_text(template.read_text() + "# of this site\n")
    text = settings(
        "slurm.md", ('"60G"', '"2G"'), ("gpus = 4 ", "gpus = 2 "), ("module load cuda", "true")
    )
    (shell.folder / "cluster.toml").write_text('template = "site.sh.in"\n' + text)
    (serve,) = lines(ELASTIC)
    assert "# of this site" in shell.run(f"{serve} --dry-run")
    checked = f"{serve} --dry-run | sbatch --test-only 2>&1"
    assert re.search(r"to start at .* in partition cpu", shell.run(checked))
    with going(shell, serve):
        assert ANSWER in call(shell, "--model Beam 500 0.02")
        assert re.search(r"device = \[[01]\.\]", call(shell, "--model surrogate 1"))
    assert shell.cluster.run(["squeue", "-h"]) == ""


def test_a_farm_on_any_batch_system_is_one_on_slurm(shell: Shell) -> None:
    (shell.folder / "cluster.toml").write_text(settings("clusters.md"))
    (serve,) = lines(ON_ANY)
    with going(shell, serve):
        assert ANSWER in call(shell, "500 0.02")
    assert shell.cluster.run(["squeue", "-h"]) == ""


@open_mpi.needs_pmix
def test_groups_of_ranks_join_a_running_farm(shell: Shell) -> None:
    """A world of srun, and steps of a job for each group, with MPICH and with Open MPI."""
    page = blocks((ROOT / "docs" / "mpi.md").read_text())
    (norm,) = (b.text for b in page if "class Norm" in b.text)
    (shell.folder / "norm.py").write_text(norm)
    shown = [x for block in shell_blocks("docs/mpi.md") for x in lines(block) if "srun" in x]
    pmi2, world, pmix = shown
    steps = [changed(line, ("--mpi 16", "--mpi 2")) for line in (pmi2, pmix)]
    started = f"{steps[0]} &\nMPI4PY_LIBMPI=libmpi.so.40 {steps[1]} &\n"
    (shell.folder / "job.sh").write_text(f"#!/bin/bash\nset -e\n{started}wait -n\nwait -n\n")
    with going(shell, "farm serve --workers 0 --host 0.0.0.0"):
        wait_for((shell.folder / "farm-run" / "farm.json").exists, "the farm")
        job = shell.submitted("sbatch -N 1 -n 4 --export=ALL -o farm-%j.out job.sh")
        with going(shell, changed(world, ("-n 64", "-n 4"), ("--mpi 4", "--mpi 2"))) as ranks:
            run = shell.folder / "farm-run"
            workers_of(shell.cluster, run, 4, lambda: shell.output(job), 60)
            assert shell.run(f'python -c "{CALLS}"') == f"{[4000.0**0.5] * 8}\n"
            shell.run("farm stop")
            ranks.wait(LIMIT_S)
        assert shell.exit_code(job) == "0:0", shell.output(job)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a shell that brings up a cluster of its own, in a clone of farm."""
    (tmp_path / "slurm").symlink_to(ROOT / "slurm")
    state = Path(tempfile.mkdtemp(prefix="farm-slurm-"))
    foreign = ("FARM_", "SLURM_", "SBATCH_", "DEV_CLUSTER_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    environment |= {"DEV_CLUSTER_STATE": str(state), "DEV_CLUSTER_PORT": str(free_ports())}
    yield environment
    subprocess.run([PROGRAM, "down", "--purge"], env=environment, check=True, capture_output=True)
    shutil.rmtree(state, ignore_errors=True)


def typed(text: str, folder: Path, environment: dict[str, str]) -> str:
    ended = subprocess.run(
        ["bash", "-euc", text],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_a_development_cluster_comes_and_goes(tmp_path: Path, own: dict[str, str]) -> None:
    said = typed(CLUSTER, tmp_path, own)
    assert re.search(r"^Submitted batch job \d+$", said, re.M), said
    assert re.search(r"^scavenge +up .* cpu\[1-4\],gpu\[1-2\]$", said, re.M), said
    assert re.search(r"^up: .* own host names, ports \d+-\d+", said, re.M), said
    assert not Path(own["DEV_CLUSTER_STATE"]).exists()


def test_a_development_cluster_of_separate_hosts(tmp_path: Path, own: dict[str, str]) -> None:
    job = "#!/bin/sh\nhostname -i >address.new\nmv address.new address\n"
    (tmp_path / "job.sh").write_text(job)
    assert re.fullmatch(r"Submitted batch job \d+\n", typed(NETNS, tmp_path, own))
    wait_for((tmp_path / "address").exists, "the job's output")
    assert (tmp_path / "address").read_text() == "10.77.0.11\n"
