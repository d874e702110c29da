"""The commands of docs/mpi.md that need no SLURM run as shown, with MPICH and with Open MPI.

Groups have two ranks here, as each rank is a process that imports mpi4py. tests/slurm has the lines
with `srun` and `sbatch`.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import farm
from tests.support import open_mpi
from tests.support.running_farm import wait_until
from tests.support.shown_blocks import blocks
from tests.support.shown_lines import (
    LIMIT_S,
    ROOT,
    changed,
    going,
    lines,
    shell_blocks,
    terminal_in,
)

PAGE = (ROOT / "docs" / "mpi.md").read_text()
LINES = [line for block in shell_blocks("docs/mpi.md") for line in lines(block)]
"""All commands of the page, of which those of SLURM run in tests/slurm."""
SMALLER = ("--mpi 4", "--mpi 2")
X = np.arange(1000.0)


@pytest.mark.slow
@pytest.mark.timeout(600)
@open_mpi.needs_open_mpi
def test_the_commands(tmp_path: Path) -> None:
    terminal = terminal_in(tmp_path / "work")
    (norm,) = [b.text for b in blocks(PAGE) if "class Norm" in b.text]
    (terminal.folder / "norm.py").write_text(norm)
    run = terminal.folder / "farm-run"
    here = [line for line in LINES if "srun" not in line and "sbatch" not in line]
    assert [line for line in here if "--mpi" not in line] == [
        'pip install "modelfarm[mpi]"',
        "farm launcher > farm.sh",
    ]
    one, two, sweep, more, world, other = (
        changed(line, SMALLER) for line in here if "--mpi" in line
    )

    def serves(client: farm.Client, groups: int) -> None:
        wait_until(lambda: len(client.status()["workers"]) == groups, f"{groups} groups")
        futures = [client.model().submit(X) for _ in range(2 * groups)]
        assert all(abs(f.result(LIMIT_S)[0] / np.linalg.norm(X) - 1.0) < 1e-12 for f in futures)

    with going(terminal, one), farm.connect(run, wait=LIMIT_S) as client:
        serves(client, 1)
        with going(terminal, more):
            serves(client, 3)
        with going(terminal, changed(world, ("-n 8", "-n 4"))):
            serves(client, 3)
        by_name = changed(other, ('"mpiexec ', '"mpiexec.openmpi '))
        mpich = terminal.environment
        terminal.environment = mpich | open_mpi.ENVIRONMENT
        with going(terminal, by_name):
            serves(client, 2)
        terminal.environment = mpich
    with going(terminal, two), farm.connect(run, wait=LIMIT_S) as client:
        serves(client, 2)
    terminal.type(sweep)
    with h5py.File(terminal.folder / "norm.h5") as file:
        theta, value = file["theta"][:], file["out_0"][:, 0]
        assert file["status"][:].tolist() == [1] * 100
    assert np.allclose(np.linalg.norm(theta, axis=1), value)
