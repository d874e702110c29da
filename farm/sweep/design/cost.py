"""The cost of each point, as a user gives it: the grammar, the arithmetic and the checks.

    n**3             an expression of the parameters, fixed inputs and config keys
    column:hours     a column of the table of `--design file:points.csv`
    sweep:old.h5     the run times of an earlier sweep of the same model and config

A cost is an expected run time in any unit: only ratios matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from farm.call import Array
from farm.expression import Expression
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.space.scope import Scope, parsed
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
