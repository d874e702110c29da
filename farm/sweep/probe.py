"""A look before a sweep begins, so that a mistake costs a point or three and not a thousand."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError, wait

from farm.call import NO_HINTS, Hints
from farm.errors import FarmError, Overloaded, Unavailable
from farm.sweep.errors import SweepError
from farm.sweep.flight import Evaluator, Flight, numbers_of, send
from farm.sweep.plan import Plan

TRIES = 3
"""A point may fail in its own right; that the first three do means that all do."""

PATIENCE_S = 10.0
"""Mistakes show soon. A model that runs longer than this must not keep other workers waiting."""


def probe(
    plan: Plan, evaluator: Evaluator, hints: Hints = NO_HINTS, *, patience_s: float = PATIENCE_S
) -> list[Flight]:
    """The first points, given to the farm: until one is answered well, or takes longer to answer.

    They are part of the sweep, which goes on with them. Raises SweepError when they all fail, and
    FarmError when the farm takes nothing.
    """
    flights: list[Flight] = []
    failure: Exception | None = None
    until = time.monotonic() + patience_s
    for point in plan.order()[:TRIES].tolist():
        flight = send(evaluator, plan, point, hints)
        flights.append(flight)
        if wait(flight.futures, max(0.0, until - time.monotonic())).not_done:
            return flights
        try:
            numbers_of(plan, [future.result() for future in flight.futures])
        except (Overloaded, Unavailable):
            for each in flights:
                each.cancel()
            raise
        except (FarmError, CancelledError) as error:
            failure = error
        else:
            return flights
    raise SweepError(
        f"a try of the first {len(flights)} points failed, the last with "
        f"{type(failure).__name__}: {failure} (--no-probe begins all the same)",
        detail=getattr(failure, "detail", ""),
    ) from failure
