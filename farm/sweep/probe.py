"""One evaluation before a sweep begins, so that a mistake costs one point and not a thousand."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError
from dataclasses import dataclass

from farm.call import NO_HINTS, Hints, Result
from farm.errors import FarmError, InvalidOutput
from farm.sweep.errors import SweepError
from farm.sweep.journal import Row
from farm.sweep.plan import Plan
from farm.sweep.run import Evaluator, numbers_of, row_of
from farm.sweep.store import Store


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """The first point of a sweep, evaluated; its outcome is as good as any other."""

    point: int
    results: list[Result]
    given: float
    answered: float

    def put(self, store: Store) -> Row:
        """Store the outcome, and give it."""
        row = row_of(
            store.plan,
            self.point,
            self.results,
            None,
            attempt=1,
            worker=store.worker_id(self.results[0].worker),
            given=self.given,
            answered=self.answered,
        )
        store.add(row)
        return row


def probe(plan: Plan, evaluator: Evaluator, hints: Hints = NO_HINTS) -> Probe:
    """Evaluate the first point and check its sizes. Raises SweepError when that fails."""
    point = int(plan.order()[0])
    given = time.time()
    try:
        futures = [evaluator.submit(call, hints) for call in plan.calls(point)]
        results = [future.result() for future in futures]
        numbers_of(plan, results)
    except (FarmError, InvalidOutput, CancelledError) as error:
        raise SweepError(
            f"point {point}, tried before the sweep begins, failed: {type(error).__name__}: "
            f"{error} (--no-probe begins all the same)",
            detail=getattr(error, "detail", ""),
        ) from error
    return Probe(point, results, given, time.time())
