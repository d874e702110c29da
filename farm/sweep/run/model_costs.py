"""Asks the workers what each point of a sweep costs, by the model's own method `cost`."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import replace
from itertools import islice

import numpy as np

from farm.call import RUN_BYTES, Array, Call, Hints, Operation, Result, canonical_config
from farm.errors import FarmError, InvalidOutput, ModelFailed
from farm.sweep.design.cost import checked_costs
from farm.sweep.design.plan import AUTO, Plan
from farm.sweep.errors import SweepError
from farm.sweep.order.given import MODEL
from farm.sweep.run.evaluator import CallEvaluator

log = logging.getLogger(__name__)

ROWS_A_CALL = 1000
"""Most points in one call: their costs are to take a moment, as a worker answers nothing else."""

OPEN_CALLS = 64
"""Most calls at once; points that differ in their config need one each."""

SILENT_S = 10.0
"""Longest wait for the next answer in seconds: the workers may be busy for hours."""

PATIENCE_S = 60.0
"""Longest wait for all answers in seconds."""


def with_asked_costs(
    plan: Plan,
    evaluator: CallEvaluator,
    hints: Hints,
    *,
    silent_s: float = SILENT_S,
    patience_s: float = PATIENCE_S,
) -> Plan:
    """Return the plan with the costs that workers report, or as it is if they report none.

    They report none if the model has no method `cost`, if the workers do not answer in time, or if
    the calls are lost: the sweep then learns the costs. Raises SweepError if the method fails.
    """
    if plan.order != AUTO or Operation.COST not in plan.info.operations:
        return plan
    name = plan.info.name
    try:
        costs = _asked(plan, evaluator, hints, silent_s, patience_s)
    except (ModelFailed, InvalidOutput) as error:
        raise SweepError(
            f"cost(inputs, config) of model {name!r} failed: {error}; correct it, give the cost "
            "yourself, or choose the order 'shuffled'",
            detail=error.detail,
        ) from error
    except (FarmError, CancelledError, TimeoutError) as error:
        why = str(error) or type(error).__name__
        log.warning("the cost of model %r is not known and will be learned: %s", name, why)
        return plan
    costs = checked_costs(costs, plan.size, f"cost of model {name!r}")
    return replace(plan, cost=costs, cost_rule=MODEL)


def _asked(
    plan: Plan, evaluator: CallEvaluator, hints: Hints, silent_s: float, patience_s: float
) -> Array:
    """Return the cost of each point. Raises FarmError, CancelledError, TimeoutError."""
    costs = np.full(plan.size, np.nan)
    calls = _calls(plan)
    open_: dict[Future[Result], list[int]] = {}
    until = time.monotonic() + patience_s
    try:
        while True:
            for points, call in islice(calls, OPEN_CALLS - len(open_)):
                open_[evaluator.submit(call, hints)] = points
            if not open_:
                return costs
            left_s = until - time.monotonic()
            done = wait(open_, min(silent_s, left_s), FIRST_COMPLETED).done if left_s > 0 else None
            if not done:
                known = np.count_nonzero(np.isfinite(costs))
                raise TimeoutError(
                    f"the workers, which may be busy, have told {known} of {plan.size} in time"
                )
            for future in done:
                points = open_.pop(future)
                costs[points] = _numbers(future.result(), len(points), plan.info.name)
    finally:
        for future in open_:
            future.cancel()


def _calls(plan: Plan) -> Iterator[tuple[list[int], Call]]:
    """Yield groups of points of one config, and the call that asks for their costs."""
    row_bytes = sum(array.nbytes for array in plan.inputs_of(0)) if plan.size else 0
    most = max(1, min(ROWS_A_CALL, RUN_BYTES // max(1, row_bytes)))
    for config, points in _groups(plan, most):
        inputs = plan.inputs_at(np.array(points))
        yield points, Call(plan.info.name, Operation.COST, inputs, config, rows=len(points))


def _groups(plan: Plan, most: int) -> Iterator[tuple[str, list[int]]]:
    """Yield at most `most` points of one config at a time, with that config."""
    if not plan.varies_config:
        config = canonical_config(plan.config_of(0)) if plan.size else ""
        for points in _parts(range(plan.size), most):
            yield config, points
        return
    by_config: dict[str, list[int]] = {}
    for point in range(plan.size):
        by_config.setdefault(canonical_config(plan.config_of(point)), []).append(point)
    for config, alike in by_config.items():
        for points in _parts(alike, most):
            yield config, points


def _parts(points: Iterable[int], most: int) -> Iterator[list[int]]:
    rest = iter(points)
    while part := list(islice(rest, most)):
        yield part


def _numbers(result: Result, size: int, name: str) -> Array:
    """Return the costs in an answer, one for each row. Raises InvalidOutput."""
    shapes = [array.shape for array in result.outputs]
    if shapes != [(size, 1)]:
        raise InvalidOutput(
            f"the costs of model {name!r} have the shapes {shapes}, expected [({size}, 1)]"
        )
    return result.outputs[0][:, 0]
