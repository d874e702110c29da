"""The cost of each point: given by the user, from an earlier sweep, or from the model's `cost`.

    n**3             an expression of the parameters, fixed inputs and config keys
    column:hours     a column of the table of `--design file:points.csv`
    sweep:old.h5     the run times of an earlier sweep of the same model and config

A cost is an expected run time in any unit: only ratios matter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from farm.call import RUN_BYTES, Array, Call, Hints, Operation, Result, canonical_config
from farm.errors import FarmError, InvalidOutput, ModelFailed
from farm.expression import Expression
from farm.model import Config, Inputs
from farm.sweep.design.plan import AUTO, Plan
from farm.sweep.errors import SweepError
from farm.sweep.file.journal import PointStatus
from farm.sweep.file.point_columns import PointColumns
from farm.sweep.file.reading import known_of
from farm.sweep.order.neighbours import guesses, ranks
from farm.sweep.run.evaluator import CallEvaluator
from farm.sweep.space.parameters import Category
from farm.sweep.space.space import Scope, parsed
from farm.wording import worded

COLUMN, SWEEP, EXPRESSION = "column", "sweep", "expression"


@dataclass(frozen=True, slots=True)
class CostRule:
    """How the cost of each point is given. text: the column, the file or the expression."""

    kind: str
    text: str

    def __str__(self) -> str:
        return self.text if self.kind == EXPRESSION else f"{self.kind}:{self.text}"


def parse_cost(text: str) -> CostRule:
    """Parse `n**3`, `column:hours` or `sweep:old.h5`. Raises SweepError."""
    kind, sign, rest = text.partition(":")
    if sign and kind.strip() in (COLUMN, SWEEP):
        if not rest.strip():
            raise SweepError(f"{cost_option(text)}: expected {kind.strip()}:NAME")
        return CostRule(kind.strip(), rest.strip())
    _expression(text)
    return CostRule(EXPRESSION, text.strip())


def cost_option(text: str) -> str:
    """Return how a user gives this cost, for messages."""
    return worded(f"--cost {text}", f"cost={text!r}")


def checked_costs(costs: ArrayLike, size: int, where: str) -> Array:
    """Return costs as float64, one for each of `size` points. Raises SweepError otherwise."""
    try:
        numbers = np.array(costs, dtype=np.float64)
    except (TypeError, ValueError):
        raise SweepError(f"{where} is {costs!r}; expected a number for each point") from None
    if numbers.shape != (size,):
        raise SweepError(
            f"{where} has the shape {numbers.shape}; expected ({size},), a number for each point"
        )
    wrong = np.flatnonzero(~np.isfinite(numbers) | (numbers < 0))
    if len(wrong):
        k = int(wrong[0])
        raise SweepError(
            f"{where}: the cost of point {k} is {numbers[k]:g}; expected a finite number, 0 or more"
        )
    return numbers


def expression_costs(text: str, plan: Plan) -> Array:
    """Return the value of an expression at each point of a plan. Raises SweepError."""
    expression, scope = _expression(text), Scope(plan, texts=False)
    scope.check(expression, cost_option(text))
    costs = scope.numbers(expression, plan.theta)
    missing = sorted({plan.parameters[j].name for n in expression.names for j in scope.columns(n)})
    if np.any(np.isnan(costs)) and any(name in dict(plan.when) for name in missing):
        raise SweepError(
            f"{cost_option(text)}: it needs {', '.join(missing)}, which some points do not have; "
            "expected names that all points have"
        )
    return checked_costs(costs, plan.size, cost_option(text))


def _expression(text: str) -> Expression:
    return parsed(text, worded("--cost", "cost"), texts=False)


NUMBERS, MODEL = "numbers:given", "model:cost"
"""The rules of costs that come from Python: numbers, and a model's method."""

ENOUGH = 5
"""Finished points that an earlier sweep needs."""


def with_costs(plan: Plan, rule: CostRule) -> Plan:
    """Return the plan with the costs of a rule; a column is in the plan already.

    Raises SweepError.
    """
    if rule.kind == EXPRESSION:
        return replace(plan, cost=expression_costs(rule.text, plan), cost_rule=str(rule))
    if rule.kind == SWEEP:
        return replace(plan, cost=_earlier(Path(rule.text), plan), cost_rule=str(rule))
    return plan


def with_numbers(plan: Plan, costs: ArrayLike) -> Plan:
    """Return the plan with these costs, a number for each point. Raises SweepError."""
    return replace(plan, cost=checked_costs(costs, plan.size, "cost"), cost_rule=NUMBERS)


def with_model_costs(plan: Plan, cost: Callable[[Inputs, Config], float]) -> Plan:
    """Return the plan with the costs that a model's method returns. Raises SweepError."""
    names = [tensor.name for tensor in plan.info.inputs]
    costs = []
    for point in range(plan.size):
        inputs = Inputs(zip(names, plan.inputs_of(point), strict=True))
        try:
            costs.append(float(cost(inputs, plan.config_of(point))))
        except Exception as error:  # code of the user
            raise SweepError(
                f"cost(inputs, config) of model {plan.info.name!r} failed at point {point}: "
                f"{type(error).__name__}: {error}; correct it, or give cost= or order='shuffled'"
            ) from error
    where = f"cost of model {plan.info.name!r}"
    return replace(plan, cost=checked_costs(costs, plan.size, where), cost_rule=MODEL)


def extended(plan: Plan) -> Plan:
    """Return a plan that has become longer with costs for all its points, or with none.

    An expression is evaluated again. Other costs are dropped: the run times of the points that are
    there tell as much.
    """
    if plan.cost is None or len(plan.cost) == plan.size:
        return plan
    if plan.cost_rule in (NUMBERS, MODEL) or plan.cost_rule.startswith((f"{COLUMN}:", f"{SWEEP}:")):
        return replace(plan, cost=None, cost_rule="")
    return replace(plan, cost=expression_costs(plan.cost_rule, plan))


def timed(known: PointColumns) -> Array:
    """Return the points that are done and whose run time is known."""
    return np.flatnonzero((known.status == PointStatus.DONE) & (known.t_run > 0))


def _earlier(path: Path, plan: Plan) -> Array:
    """Return the run times of an earlier sweep at the points of `plan`. Raises SweepError."""
    old, known = known_of(path)
    where = cost_option(f"sweep:{path}")
    for what, then, now in (
        ("model", old.info.name, plan.info.name),
        ("config", dict(old.config), dict(plan.config)),
        ("parameters", _names(old), _names(plan)),
        ("fixed values", _fixed(old), _fixed(plan)),
        ("words", _words(old), _words(plan)),
    ):
        if then != now:
            raise SweepError(f"{where}: it has the {what} {then}, this sweep has {now}")
    done = timed(known)
    if len(done) < ENOUGH:
        raise SweepError(
            f"{where}: it has {len(done)} finished points with a run time; "
            f"expected {ENOUGH} or more"
        )
    column_of = {p.name: j for j, p in enumerate(old.parameters)}
    theta = old.theta[:, [column_of[p.name] for p in plan.parameters]]
    places = ranks(np.concatenate([theta[done], plan.theta]))
    run_s = known.t_run[done].astype(np.float64)
    return guesses(places[: len(done)], run_s, places[len(done) :])


def _names(plan: Plan) -> list[str]:
    return sorted(p.name for p in plan.parameters)


def _words(plan: Plan) -> dict[str, str]:
    """Return the words of parameters, by whose index a file has them, and fixed texts."""
    words = {p.name: str(p.spread) for p in plan.parameters if isinstance(p.spread, Category)}
    return words | {f"{i}[{entry}]": text for i, entry, text in plan.texts}


def _fixed(plan: Plan) -> list[list[float | None]]:
    """Return the entries of the inputs; None where a parameter has the value."""
    return [[None if np.isnan(v) else float(v) for v in array] for array in plan.fixed]


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
    open_: dict[Future[Result], Array] = {}
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


def _calls(plan: Plan) -> Iterator[tuple[Array, Call]]:
    """Yield groups of points of one config, and the call that asks for their costs."""
    row_bytes = sum(array.nbytes for array in plan.inputs_of(0)) if plan.size else 0
    most = max(1, min(ROWS_A_CALL, RUN_BYTES // max(1, row_bytes)))
    by_config: dict[str, list[int]] = {}
    if plan.varies_config:
        for point in range(plan.size):
            by_config.setdefault(canonical_config(plan.config_of(point)), []).append(point)
    elif plan.size:
        by_config[canonical_config(plan.config_of(0))] = list(range(plan.size))
    for config, alike in by_config.items():
        for start in range(0, len(alike), most):
            points = np.array(alike[start : start + most])
            inputs = plan.inputs_at(points)
            yield points, Call(plan.info.name, Operation.COST, inputs, config, rows=len(points))


def _numbers(result: Result, size: int, name: str) -> Array:
    """Return the costs in an answer, one for each row. Raises InvalidOutput."""
    shapes = [array.shape for array in result.outputs]
    if shapes != [(size, 1)]:
        raise InvalidOutput(
            f"the costs of model {name!r} have the shapes {shapes}, expected [({size}, 1)]"
        )
    return result.outputs[0][:, 0]
