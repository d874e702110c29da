"""The scheduler's state as JSON data, for `farm status` and the status page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from farm.scheduler.placement import NO_END
from farm.scheduler.queues import ModelQueues
from farm.scheduler.state import Worker


def snapshot(
    workers: Iterable[Worker], models: Iterable[ModelQueues], now: float
) -> dict[str, Any]:
    """`workers`: one row each; `queues`: one row per model and operation that was ever used."""
    return {
        "workers": [
            {
                "name": w.id,
                "models": sorted(w.pool.models),
                "slots": w.slots,
                "in_flight": len(w.held),
                "busy_s": None if w.busy_since is None else now - w.busy_since,
                "done": w.done,
                "ends_in_s": None if w.ends_at == NO_END else w.ends_at - now,
            }
            for w in workers
        ],
        "queues": [
            {
                "model": model.name,
                "operation": queue.operation.value,
                "queued": queue.size + queue.to_come,
                "in_flight": queue.in_flight,
                "done": queue.done,
                "failed": queue.failed,
                "run_time_mean_s": queue.run_times.mean,
                "run_time_p50_s": queue.run_times.quantile(0.5),
                "run_time_p95_s": queue.run_times.quantile(0.95),
                "round_trip_s": queue.run_times.round_trip_s,
                "prefetch": queue.run_times.prefetch,
            }
            for model in models
            for queue in model.by_operation.values()
            if queue.size or queue.to_come or queue.in_flight or queue.done or queue.failed
        ],
    }
