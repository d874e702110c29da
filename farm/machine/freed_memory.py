"""Reuse of freed array memory: glibc keeps it for the next arrays, within limits."""

from __future__ import annotations

import ctypes
import os

KEPT_BYTES = 64 << 20
"""Free memory that a process keeps for its next arrays, in each of the C library's heaps."""

LARGE_BYTES = 32 << 20
"""Arrays from this size on get their own mapping, which is unmapped at once; glibc's maximum."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Make glibc keep the freed memory of arrays up to 32 MiB; return whether it does.

    Otherwise each array of a call is allocated as new pages that the system clears one by one: with
    0.8 MB each way this takes more time than the rest of the call. Other C libraries, and settings
    that the user makes by glibc's environment variables, are not changed.
    """
    if any(name in os.environ for name in _VARIABLES):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_MMAP_THRESHOLD, LARGE_BYTES))
