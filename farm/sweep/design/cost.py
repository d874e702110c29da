"""The cost of each point, as a user gives it: the grammar, the arithmetic and the checks.

    n**3             an expression of the parameters, fixed inputs and config keys
    column:hours     a column of the table of `--design file:points.csv`
    sweep:old.h5     the run times of an earlier sweep of the same model and config

A cost is an expected run time in any unit: only ratios matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike

from farm.call import Array
from farm.errors import InvalidInput
from farm.expression import Expression
from farm.sweep.design.errors import SweepError
from farm.sweep.design.plan import Plan
from farm.wording import worded

COLUMN, SWEEP, EXPRESSION = "column", "sweep", "expression"
AT_ONCE = 4096
"""Points per evaluation of an expression, which bounds its memory."""


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
    expression = _expression(text)
    known = set(_names(plan))
    unknown = sorted(expression.names - known)
    if unknown:
        raise SweepError(
            f"{cost_option(text)}: no parameter {unknown[0]!r}; "
            f"expected one of {', '.join(_names(plan))}"
        )
    parts = []
    try:
        for start in range(0, plan.size, AT_ONCE):
            theta = plan.theta[start : start + AT_ONCE]
            values = {name: _values(plan, name, theta) for name in sorted(expression.names)}
            parts.append(expression.numbers(values, len(theta)))
    except InvalidInput as error:
        raise SweepError(str(error)) from None
    return checked_costs(np.concatenate(parts), plan.size, cost_option(text))


def _expression(text: str) -> Expression:
    try:
        return Expression(text, worded("--cost", "cost"))
    except InvalidInput as error:
        raise SweepError(str(error)) from None


def _names(plan: Plan) -> list[str]:
    """Return the names of all numbers that a point has, each once."""
    names = [tensor.name for tensor in plan.info.inputs]
    names += [f"in{i}" for i in range(len(names))]
    names += [p.name for p in plan.parameters if p.input is None]
    names += [key for key, value in plan.config.items() if isinstance(value, Real)]
    return list(dict.fromkeys(names))


def _values(plan: Plan, name: str, theta: Array) -> Array:
    """Return the values of a name at some points: its shape, then the axis of the points."""
    for j, parameter in enumerate(plan.parameters):
        if parameter.input is None and parameter.name == name:
            column: Array = theta[:, j]
            return column
    inputs = plan.info.inputs
    by_name = {f"in{i}": i for i in range(len(inputs))} | {
        tensor.name: i for i, tensor in reversed(list(enumerate(inputs)))
    }
    if name not in by_name:
        return np.array(float(plan.config[name]))
    i = by_name[name]
    flat = np.repeat(plan.fixed[i][:, None], len(theta), axis=1)
    for j, parameter in enumerate(plan.parameters):
        if parameter.input == i:
            flat[parameter.entry] = theta[:, j]
    return flat.reshape(*inputs[i].shape, len(theta))
