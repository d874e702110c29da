"""Time limits of tests, scaled with the load of the machine.

These limits end tests that hang. Work of a second on an idle machine takes many seconds where ten
processes share a core, and a test that fails for that reason proves nothing.
"""

from __future__ import annotations

import os

MOST = 12.0


def crowding() -> float:
    """Runnable processes per processor; at least 1, at most `MOST`."""
    wanted = max(os.getloadavg()[0], _running())
    return min(MOST, max(1.0, wanted / (os.cpu_count() or 1)))


def _running() -> float:
    """Number of processes that are runnable now, if the system reports it."""
    try:
        with open("/proc/loadavg", encoding="ascii") as file:
            return float(file.read().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return 0.0


CROWDING = crowding()


def scaled(limit_s: float) -> float:
    """Scale `limit_s` seconds of an idle machine to the present load."""
    return limit_s * CROWDING
