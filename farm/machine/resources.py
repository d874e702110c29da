"""The CPUs, memory and open files that this process may use, and the freed memory that it keeps."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Mapping
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
"""Files with a container's limit: of cgroup v2, and of v1."""


def cpus(environment: Mapping[str, str] = os.environ) -> int:
    """Return the CPUs for one model call: `OMP_NUM_THREADS` or the number the kernel allows.

    Libraries with their own thread pools are configured with this number, so that the model
    processes of a machine share its CPUs.
    """
    told = environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if told.isdecimal() and int(told):
        return int(told)
    return allowed_cpus()


def allowed_cpus() -> int:
    """Return the number of CPUs that the kernel allows this process, or else of the machine."""
    if hasattr(os, "sched_getaffinity"):  # macOS does not have it
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usable_memory(cgroups: Path = CGROUPS) -> int:
    """Return this machine's memory in bytes, or the limit of this process's container if lower."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([whole, *(limit for name in LIMITS if (limit := _read(cgroups / name)))])


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None


OPEN_FILES = 65_536
"""Requested limit; the soft limit of most systems is 1024."""


def allow_many_open_files() -> int:
    """Raise this process's limit towards `OPEN_FILES`, as far as allowed; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return OPEN_FILES if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


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
