"""Statistics of the models' calls in KServe's form, for both HTTP and gRPC.

Source: Triton's statistics extension. Its three parts of a computation are one here: decoding
inputs and encoding outputs is not part of the model's run, and counts as no time. Its cache is the
farm's record: hits and misses are counted in rows, without their time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from farm.dispatcher.statistics import Duration, ModelStatistics
from farm.protocols.kserve.versions import Numbered

NOTHING = ModelStatistics()


def statistics_of(
    models: Iterable[Numbered], known: Mapping[str, ModelStatistics]
) -> dict[str, list[dict[str, Any]]]:
    """Return the statistics of these models, with zeros for models without calls."""
    return {"model_stats": [_model(m, known.get(m.served_as, NOTHING)) for m in models]}


def _model(model: Numbered, told: ModelStatistics) -> dict[str, Any]:
    compute = _duration(told.compute)
    idle = {"count": compute["count"], "ns": 0}
    return {
        "name": model.name,
        "version": model.version,
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
            "cache_hit": {"count": told.reused, "ns": 0},
            "cache_miss": {"count": told.missed, "ns": 0},
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
    # Calls of one run each count their share of it, so that sums are exact except for rounding.
    return {"count": round(told.count), "ns": round(told.seconds * 1e9)}
