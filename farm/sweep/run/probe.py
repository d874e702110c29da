"""Test evaluation before a sweep, so that a mistake costs up to three points, not thousands."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError, wait

from farm.call import NO_HINTS, Hints
from farm.errors import FarmError, Overloaded, Unavailable
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.run.in_flight import CallEvaluator, PointInFlight, numbers_of, submit_point
from farm.wording import worded

TRIES = 3
"""Points to try: a single point may fail by itself, but if the first three fail, all will."""

PATIENCE_S = 10.0
"""Longest wait in seconds. Mistakes show early; a slow model must not leave workers idle."""


def probe(
    plan: Plan, evaluator: CallEvaluator, hints: Hints = NO_HINTS, *, patience_s: float = PATIENCE_S
) -> list[PointInFlight]:
    """Submit the first points until one succeeds or `patience_s` have passed, and return them.

    They are part of the sweep, which continues with them. Raises SweepError if all of them fail,
    and FarmError if the farm does not accept calls.
    """
    started: list[PointInFlight] = []
    failure: Exception | None = None
    until = time.monotonic() + patience_s
    for point in plan.mixed()[:TRIES].tolist():
        sent = submit_point(evaluator, plan, point, hints)
        started.append(sent)
        if wait(sent.futures, max(0.0, until - time.monotonic())).not_done:
            return started
        try:
            numbers_of(plan, [future.result() for future in sent.futures])
        except (Overloaded, Unavailable):
            for each in started:
                each.cancel()
            raise
        except (FarmError, CancelledError) as error:
            failure = error
        else:
            return started
    option = worded("--no-probe", "probe=False")
    raise SweepError(
        f"the first {len(started)} points failed, the last with "
        f"{type(failure).__name__}: {failure} ({option} skips this test)",
        detail=getattr(failure, "detail", ""),
    ) from failure
