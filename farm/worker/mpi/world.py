"""The MPI world of a process: check that it has the requested size, and split it into groups."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.wording import counted

MISSING = 'MPI models need mpi4py and an MPI library: pip install "modelfarm[mpi]"'

SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
"""Variables in which launchers set the number of processes. SLURM's is last: inside a job mpiexec
may start its own daemons by srun, one per node, and the ranks inherit that number.
"""

EXIT_STUCK = 70
"""Exit status of rank 0 when ranks hang in MPI (EX_SOFTWARE)."""

STARTS_WITHIN_S = 60.0
"""Time for MPI to start and to form the groups; a process that takes longer ends.

MPI waits for ever for a rank that the launcher has lost, or whose address arrived damaged. The time
begins with the process, not with the launcher, which may wait for resources.
"""

SEGMENTS = "/dev/shm/mpich_shm_"
"""Beginning of the paths of shared memory that the ranks of a machine use from their start."""


class WorldError(Exception):
    """The MPI world has the wrong size or MPI is missing; the one-line message says what to do."""


def told_size(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of processes that a launcher reports for this world; else 1."""
    for name in SIZES:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    return 1


def check_installed() -> None:
    """Raise WorldError, before anything is started, if mpi4py is not installed."""
    if importlib.util.find_spec("mpi4py") is None:
        raise WorldError(MISSING)


def join_world(ranks: int, *, size: int) -> Any:
    """Return the communicator of this process's group: `ranks` neighbours of a world of `size`.

    Initialises MPI; the process ends if that takes longer than `STARTS_WITHIN_S`. Raises WorldError
    if the world has another size. This happens with a launcher that does not work with this MPI
    library: then every process is alone in a world of its own.
    """
    # MPI may hang with Python's lock (GIL) held: no thread or signal handler of Python would run.
    faulthandler.dump_traceback_later(STARTS_WITHIN_S, exit=True)  # with the stacks on stderr
    try:
        return _join(ranks, size)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _join(ranks: int, size: int) -> Any:
    mpi = _mpi()
    world = mpi.COMM_WORLD
    if world.size != size:
        library = mpi.Get_library_version().split("\n")[0].strip("\0 \t")
        raise WorldError(
            f"this MPI world has {counted(world.size, 'rank')}, expected {size}: the launcher and "
            f"the MPI library of mpi4py ({library}) do not understand each other; under srun try "
            "--mpi=pmi2 for MPICH and Intel MPI, --mpi=pmix for Open MPI, otherwise the mpiexec "
            "of that library (docs/mpi.md)"
        )
    if size % ranks:
        raise WorldError(
            f"{size} MPI processes cannot form groups of {ranks}; start a multiple of {ranks}"
        )
    group = world.Split(world.rank // ranks, world.rank)
    world.Barrier()  # all have opened what they share
    _unlink_segments()
    return group


def _unlink_segments() -> None:
    """Remove the names of shared memory that MPICH 5 keeps until its end; ranks have it open.

    A killed rank would leave the memory to the machine until it reboots, and a later world with the
    same id, such as a job step whose number comes again, would read it as its own and abort.
    Earlier releases of MPICH remove the names themselves.
    """
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:  # a system without /proc
        return
    for path in {line.split(maxsplit=5)[-1] for line in lines if SEGMENTS in line}:
        with contextlib.suppress(OSError):  # another rank was first
            os.unlink(path)


def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: no MPI library is found
        raise WorldError(f"{MISSING} ({' '.join(str(error).split())})") from None
    return MPI


def launcher_path(word: str) -> str:
    """Return the path of a launcher such as `mpiexec`, first beside Python. Raises WorldError.

    An MPI library from PyPI is in Python's own environment, and so is its mpiexec; a different one
    earlier in PATH would start worlds that this library does not see.
    """
    beside = str(Path(sys.executable).parent)
    found = shutil.which(word, path=beside) or shutil.which(word)
    if found is None:
        raise WorldError(
            f"there is no launcher {word!r} here; {MISSING}, or name one: "
            '--mpi-launch "srun --mpi=pmi2 -K --exact -n {ranks}"'
        )
    return found
