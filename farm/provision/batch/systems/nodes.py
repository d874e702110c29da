"""Parts of the job scripts of systems in whose jobs farm itself starts the MPI ranks."""

from __future__ import annotations

from farm.provision.batch.kinds import WorkerKind


def processes_per_node(kind: WorkerKind) -> int:
    """Return the number of ranks, or of model processes, on each node."""
    if kind.ranks:
        return -(-kind.workers * kind.ranks // kind.nodes)
    return kind.workers_per_node


def spreads(kind: WorkerKind) -> bool:
    """Whether `farm worker` starts on each node; it starts MPI ranks from the first node alone."""
    return kind.nodes > 1 and not kind.ranks


def identified_by(variable: str) -> list[str]:
    """Return the preamble where this variable holds the job's id, the same after a restart."""
    return [f"export FARM_JOB=${variable}", "export FARM_JOB_RESTART=$(date +%s)"]
