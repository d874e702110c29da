"""What a job of one kind needs on each of its nodes, where farm itself starts the MPI ranks."""

from __future__ import annotations

from farm.provision.batch.kinds import WorkerKind


def processes_per_node(kind: WorkerKind) -> int:
    """Return the number of ranks, or of model processes, on each node."""
    if kind.ranks:
        return -(-kind.workers * kind.ranks // kind.nodes)
    return kind.workers_per_node
