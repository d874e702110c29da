"""The limit on open files and connections of a process."""

from __future__ import annotations

import resource

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
