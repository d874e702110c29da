"""What becomes of memory that arrays have left: kept for the next ones, within limits."""

from __future__ import annotations

import ctypes
import os

KEPT_BYTES = 64 << 20
"""Free memory that a process keeps for its next arrays, in each of the C library's heaps."""

LARGE_BYTES = 32 << 20
"""Arrays from this size on have memory of their own, which goes back at once; glibc's most."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Have glibc keep what arrays of up to 32 MiB have left; whether it does.

    Otherwise each array of a call comes and goes as pages that the system clears one by one: with
    0.8 MB each way that takes more time than all else in the call. Other C libraries, and what the
    user says by the variables of glibc, are left alone.
    """
    if any(name in os.environ for name in _VARIABLES):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_MMAP_THRESHOLD, LARGE_BYTES))
