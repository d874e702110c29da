"""The number of CPUs that this process may use, and the threads of its numerical libraries."""

from __future__ import annotations

import os
from collections.abc import Mapping


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
