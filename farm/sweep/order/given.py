"""The costs of a plan's points: evaluated, from an earlier sweep, or from the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from farm.call import Array
from farm.model import Config, Inputs
from farm.sweep.design.cost import (
    COLUMN,
    EXPRESSION,
    SWEEP,
    CostRule,
    checked_costs,
    cost_option,
    expression_costs,
)
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.file.journal import PointStatus
from farm.sweep.file.point_columns import PointColumns
from farm.sweep.file.reading import known_of
from farm.sweep.order.neighbours import guesses, ranks
from farm.sweep.space.category import Category

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
    kind = plan.cost_rule.partition(":")[0]
    if plan.cost_rule in (NUMBERS, MODEL) or kind in (COLUMN, SWEEP):
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
