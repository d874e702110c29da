"""The MPI world of a process, with a real mpiexec."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import farm
from farm.worker.mpi.world import SEGMENTS, WorldError, launcher_path, told_size
from tests.support import open_mpi
from tests.support.open_mpi import needs_open_mpi
from tests.support.time_limits import scaled

LIMIT_S = scaled(30.0)


@pytest.mark.parametrize(
    ("environment", "size"),
    [
        ({}, 1),
        ({"SLURM_NTASKS": "8"}, 1),
        ({"SLURM_STEP_NUM_TASKS": "8"}, 8),
        ({"SLURM_STEP_NUM_TASKS": "2", "PMI_SIZE": "64"}, 64),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, 4),
        ({"PMI_SIZE": "many"}, 1),
    ],
)
def test_how_many_the_launcher_says_there_are(environment: dict[str, str], size: int) -> None:
    assert told_size(environment) == size


def test_the_launcher_beside_python_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mpiexec", "other"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launcher_path("mpiexec") == str(Path(sys.executable).parent / "mpiexec")
    assert launcher_path("other") == str(tmp_path / "other")
    with pytest.raises(WorldError, match=r"no launcher 'sruhn' here.*modelfarm\[mpi\]"):
        launcher_path("sruhn")


@pytest.mark.parametrize(
    ("environment", "library"),
    [({}, "MPICH"), pytest.param(open_mpi.ENVIRONMENT, "Open MPI", marks=needs_open_mpi)],
)
def test_the_library_beside_python_comes_first_unless_another_is_named(
    environment: dict[str, str], library: str
) -> None:
    """In whatever order they were installed: Debian's Open MPI is not in Python's folders."""
    program = "from mpi4py import MPI; print(MPI.Get_library_version())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout.startswith(library)


JOIN = """
import sys
from farm.worker.mpi.world import WorldError, join_world
try:
    comm = join_world(int(sys.argv[1]), size=int(sys.argv[2]))
except WorldError as error:
    sys.exit(f"{error}")
total = comm.allreduce(comm.rank)
sys.stdout.write(f"{comm.rank} of {comm.size}: {total}\\n")
"""


def joined(processes: int, ranks: int, size: int) -> tuple[list[str], str]:
    """Return the sorted lines and the errors that `count` processes print when they join groups."""
    command = [launcher_path("mpiexec"), "-n", str(processes), sys.executable, "-c", JOIN]
    done = subprocess.run(
        [*command, str(ranks), str(size)], capture_output=True, text=True, timeout=LIMIT_S
    )
    return sorted(done.stdout.splitlines()), done.stderr


def test_neighbours_of_a_world_form_groups() -> None:
    assert joined(4, 2, 4)[0] == ["0 of 2: 1"] * 2 + ["1 of 2: 1"] * 2


KILLED = """
import os, signal, sys
from pathlib import Path
from farm.worker.mpi.world import SEGMENTS, join_world
comm = join_world(2, size=2)
from mpi4py import MPI
lines = Path("/proc/self/maps").read_text().splitlines()
names = [line.split()[5] for line in lines if SEGMENTS in line]
sys.stdout.write("".join(f"{name}\\n" for name in [*names, MPI.Get_library_version()]))
sys.stdout.flush()
assert comm.allreduce(1) == 2  # messages still arrive
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs Linux")
def test_killed_ranks_leave_no_shared_memory() -> None:
    command = [launcher_path("mpiexec"), "-n", "2", sys.executable, "-c", KILLED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    names = {line for line in done.stdout.splitlines() if line.startswith(SEGMENTS)}
    assert done.returncode == 9, done.stderr
    assert names or "MPICH Version:      4" in done.stdout  # which removes them itself
    assert [name for name in names if Path(name).exists()] == []


def test_a_world_of_the_wrong_size_is_refused() -> None:
    lines, errors = joined(1, 4, 4)
    assert lines == []
    assert "this MPI world has 1 rank, expected 4" in errors
    assert "MPICH" in errors
    assert "--mpi=pmi2" in errors


def test_a_world_that_does_not_divide_is_refused() -> None:
    assert "3 MPI processes cannot form groups of 2; start a multiple of 2" in joined(3, 2, 3)[1]


WITHOUT = """
import sys
sys.modules["mpi4py"] = None
from farm.worker.mpi.world import WorldError, join_world
try:
    join_world(1, size=1)
except WorldError as error:
    print(error)
"""


def test_without_mpi4py_the_extra_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert 'pip install "modelfarm[mpi]"' in done.stdout


HUNG = """
import ctypes
ctypes.PyDLL(None).sleep(60)  # holds Python's lock, as MPI does while it starts
"""
JOINS = """
from farm.worker.mpi import world
world.STARTS_WITHIN_S = 0.5
world.join_world(2, size=2)
"""


def test_a_process_whose_mpi_does_not_start_ends_with_its_stack(tmp_path: Path) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").touch()
    (tmp_path / "mpi4py" / "MPI.py").write_text(HUNG)
    path = os.pathsep.join([str(tmp_path), str(Path(farm.__file__).parents[1])])
    ended = subprocess.run(
        [sys.executable, "-c", JOINS],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("Timeout (0:00:00.500000)!")
    assert "in join_world" in ended.stderr
