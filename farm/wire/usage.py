"""The reports of workers on themselves: labels, and in a PROBE their memory and processors."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from farm.errors import InvalidRequest

SPLITS_RUNS = "splits"
"""Label of a worker that answers a batch of rows in parts: if a row takes long, it answers those
before it at once and leaves those behind it to others, see `farm.worker.runner`."""

ENDS_RUNS = "ends"
"""Label of a worker that can end a run whose answer is not needed: another process takes its place,
which starts sooner than a long run ends."""


class Used(NamedTuple):
    """memory_bytes: resident memory; processor: cores used lately. None: unknown."""

    memory_bytes: int | None = None
    processor: float | None = None


def decode_usage(data: Any) -> Used:
    """Return the report in a PROBE; keys of later versions are ignored. Raises InvalidRequest."""
    if not isinstance(data, dict):
        raise InvalidRequest(f"PROBE expects null or a report, got {data!r:.100}")
    memory, processor = data.get("memory_bytes"), data.get("processor")
    fits = memory is None or (type(memory) is int and memory >= 0)
    cores = processor is None or (
        isinstance(processor, int | float)
        and type(processor) is not bool
        and math.isfinite(processor)
        and processor >= 0
    )
    if not (fits and cores):
        raise InvalidRequest(
            "a report of usage expects memory_bytes and processor, both 0 or more or null, "
            f"got {memory!r:.40} and {processor!r:.40}"
        )
    return Used(memory, None if processor is None else float(processor))
