"""What became of the models' calls, as KServe clients read it: for HTTP and gRPC alike.

Source: Triton's statistics extension. Its three parts of a computation are one here: reading the
inputs and writing the outputs is not the model's, and counts as no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from farm.protocols.kserve import VERSION
from farm.scheduler.statistics import Duration, ModelStatistics

NOTHING = ModelStatistics()
NEVER = {"count": 0, "ns": 0}


def statistics_of(
    names: Iterable[str], known: Mapping[str, ModelStatistics]
) -> dict[str, list[dict[str, Any]]]:
    """The statistics of these models, with zeros for those that nobody has called."""
    return {"model_stats": [_model(name, known.get(name, NOTHING)) for name in names]}


def _model(name: str, told: ModelStatistics) -> dict[str, Any]:
    compute = _duration(told.compute)
    idle = {"count": compute["count"], "ns": 0}
    return {
        "name": name,
        "version": VERSION,
        "last_inference": round(told.last * 1000),
        "inference_count": told.rows,
        "execution_count": round(told.executions),
        "inference_stats": {
            "success": _duration(told.success),
            "fail": _duration(told.fail),
            "queue": _duration(told.queue),
            "compute_input": idle,
            "compute_infer": compute,
            "compute_output": idle,
            "cache_hit": NEVER,
            "cache_miss": NEVER,
        },
        "response_stats": {},
        "batch_stats": [_batch(rows, told.by_batch[rows]) for rows in sorted(told.by_batch)],
        "memory_usage": [],
    }


def _batch(rows: int, runs: Duration) -> dict[str, Any]:
    compute = _duration(runs)
    idle = {"count": compute["count"], "ns": 0}
    return {
        "batch_size": rows,
        "compute_input": idle,
        "compute_infer": compute,
        "compute_output": idle,
    }


def _duration(told: Duration) -> dict[str, int]:
    # Members of one run count for their shares of it, so that sums are whole but for rounding.
    return {"count": round(told.count), "ns": round(told.seconds * 1e9)}
