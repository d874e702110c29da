"""Time spans as text for people: one format for terminal, pages, reports and messages."""

from __future__ import annotations

import math

MINUTE, HOUR, DAY = 60, 3600, 86400


def timespan(seconds: float | None) -> str:
    """Return a time span as text: 31 us, 250 ms, 12.3 s, 4 min 05 s, 3 h 20 min, 2 d 04 h.

    A negative one, as clocks of two machines may give, is `0 s`; an unknown or endless one is `?`.
    """
    if seconds is None or not math.isfinite(seconds):
        return "?"
    if seconds <= 0:
        return "0 s"
    digits = float(f"{seconds:.3g}")  # rounded first, so that 999.9 ms is 1 s
    if digits < 2 * MINUTE:
        unit, scale = ("s", 1.0) if digits >= 1 else ("ms", 1e3) if digits >= 1e-3 else ("us", 1e6)
        return f"{digits * scale:.3g} {unit}"
    whole = round(seconds)
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE:02d} s"
    if whole < 2 * DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE:02d} min"
    return f"{whole // DAY} d {whole % DAY // HOUR:02d} h"
