"""The batch systems that farm knows, each in a module of its own."""

from __future__ import annotations

from farm.provision.batch.system import BatchSystem
from farm.provision.batch.systems.slurm import Slurm

SYSTEMS: dict[str, type[BatchSystem]] = {"slurm": Slurm}
"""The values of `system` in the file of `farm serve --cluster`."""
