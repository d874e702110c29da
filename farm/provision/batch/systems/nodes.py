"""What a job of one kind needs on each of its nodes, where farm itself starts the MPI ranks."""

from __future__ import annotations

from farm.provision.batch.kinds import WorkerKind
from farm.settings import SettingsError


def processes_per_node(kind: WorkerKind) -> int:
    """Return the number of ranks, or of model processes, on each node."""
    if kind.ranks:
        return -(-kind.workers * kind.ranks // kind.nodes)
    return kind.workers_per_node


def one_node_without_ranks(kind: WorkerKind) -> None:
    """Raise SettingsError for several nodes without MPI ranks.

    The system's signals reach only the first node of a job, so the others could not be drained.
    """
    if kind.nodes > 1 and not kind.ranks:
        raise SettingsError(
            f"nodes is {kind.nodes}: expected 1, except for MPI (ranks); jobs of one node do the "
            "same, see max_jobs, or start the workers by a launcher of the site in a template"
        )
