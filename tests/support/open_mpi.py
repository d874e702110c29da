"""Open MPI beside the MPICH of this environment: how tests start groups of ranks with it.

mpi4py finds MPICH, which is installed beside Python, unless MPI4PY_LIBMPI names another library.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

ENVIRONMENT = {
    "MPI4PY_LIBMPI": "libmpi.so.40",  # that of MPICH is libmpi.so.12
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}

LINE = "mpiexec.openmpi -n {ranks} --map-by :OVERSUBSCRIBE --bind-to none -x FARM_SUPERVISOR"

needs_open_mpi = pytest.mark.skipif(
    shutil.which("mpiexec.openmpi", path=os.defpath) is None,
    reason="Open MPI is not installed: apt install openmpi-bin",
)

needs_pmix = pytest.mark.skipif(
    shutil.which("mpiexec.openmpi", path=os.defpath) is None
    or not list(Path("/usr/lib").glob("*/libpmix.so")),
    reason="Open MPI and PMIx are not installed: apt install openmpi-bin libpmix-dev",
)
