"""The batch systems that farm knows, each in a module of its own."""

from __future__ import annotations

from farm.provision.batch.system import BatchSystem
from farm.provision.batch.systems.flux import Flux
from farm.provision.batch.systems.grid_engine import GridEngine
from farm.provision.batch.systems.lsf import Lsf
from farm.provision.batch.systems.pbs import Pbs
from farm.provision.batch.systems.slurm import Slurm

SYSTEMS: dict[str, type[BatchSystem]] = {
    "slurm": Slurm,
    "pbs": Pbs,
    "lsf": Lsf,
    "flux": Flux,
    "grid-engine": GridEngine,
}
"""The values of `system` in the file of `farm serve --cluster`."""
