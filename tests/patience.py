"""How long tests wait for what should happen soon: longer where the machine does other work too.

These limits end tests that hang. What takes a second on an idle machine takes many where ten
processes share a core, and a test that fails then tells nothing.
"""

from __future__ import annotations

import os

MOST = 12.0


def crowding() -> float:
    """Processes that want to run, for each processor; at least 1, at most `MOST`."""
    wanted = max(os.getloadavg()[0], _running())
    return min(MOST, max(1.0, wanted / (os.cpu_count() or 1)))


def _running() -> float:
    """Processes that run or want to at this moment, where the system tells."""
    try:
        with open("/proc/loadavg", encoding="ascii") as file:
            return float(file.read().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return 0.0


CROWDING = crowding()


def scaled(limit_s: float) -> float:
    """`limit_s` of an idle machine, in seconds, as it is here."""
    return limit_s * CROWDING
