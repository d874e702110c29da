"""The scheduler's state as JSON data, for `farm status` and the status page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from farm.call import Operation
from farm.scheduler.queues import Queue
from farm.scheduler.state import Worker


def snapshot(
    workers: Iterable[Worker], queues: Mapping[str, Mapping[Operation, Queue]], now: float
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
                "ends_in_s": None if w.pool.ends_at is None else w.pool.ends_at - now,
            }
            for w in workers
        ],
        "queues": [
            {
                "model": queue.model,
                "operation": queue.operation.value,
                "queued": queue.size,
                "in_flight": queue.in_flight,
                "done": queue.done,
                "failed": queue.failed,
                "run_time_mean_s": queue.run_times.mean,
                "run_time_p50_s": queue.run_times.quantile(0.5),
                "run_time_p95_s": queue.run_times.quantile(0.95),
                "round_trip_s": queue.run_times.round_trip_s,
                "prefetch": queue.run_times.prefetch(),
            }
            for by_operation in queues.values()
            for queue in by_operation.values()
            if queue.size or queue.in_flight or queue.done or queue.failed
        ],
    }
