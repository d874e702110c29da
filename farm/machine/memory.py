"""The amount of memory that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
"""Files with a container's limit: of cgroup v2, and of v1."""


def usable_memory(cgroups: Path = CGROUPS) -> int:
    """Return this machine's memory in bytes, or the limit of this process's container if lower."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([whole, *(limit for name in LIMITS if (limit := _read(cgroups / name)))])


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None
