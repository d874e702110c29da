"""The space of a sweep's points: distributions, correlations, conditions and constraints. Pure.

A conditional parameter is inactive at a point where its condition is false: it has no value there,
NaN in the table. A constraint refuses points where it is false; one that names a parameter which
is inactive at a point does not count there. A condition that does so is false.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from farm.call import BYTES, Array
from farm.expression import Expression
from farm.sweep.errors import SweepError
from farm.sweep.space.binding import BoundParameter
from farm.sweep.space.correlation import Correlation, correlator
from farm.sweep.space.parameters import Distribution, values
from farm.sweep.space.scope import Bound, Scope, condition
from farm.wording import worded

Condition = tuple[str, str]
"""The name of a column and the expression that says where it is active."""


def parse_when(text: str) -> Condition:
    """Parse `order: solver == "rk4"` to the name and the condition. Raises SweepError."""
    name, sign, rest = text.partition(":")
    # A name has no colon, so the first one ends it.
    if not sign or not name.strip() or not rest.strip():
        raise SweepError(
            f"--when {text!r}: expected NAME: CONDITION, such as 'order: solver == \"rk4\"'"
        )
    return name.strip(), rest.strip()


@dataclass(frozen=True, eq=False)
class ParameterSpace:
    """The points that a sweep may have. bound: the parameters, and what is fixed beside them."""

    bound: Bound
    correlations: tuple[Correlation, ...] = ()
    when: tuple[Condition, ...] = ()
    where: tuple[str, ...] = ()

    @property
    def spreads(self) -> list[Distribution]:
        """The distributions of the columns, for designs in the unit cube."""
        return [p.spread for p in self.bound.parameters if p.spread is not None]

    @cached_property
    def _scope(self) -> Scope:
        return Scope(self.bound)

    @cached_property
    def _conditions(self) -> list[tuple[int, Expression, list[int]]]:
        """The conditions in the order of evaluation: column, expression, columns it depends on."""
        place = {p.name: j for j, p in enumerate(self.bound.parameters)}
        found: dict[int, tuple[Expression, list[int]]] = {}
        for name, text in self.when:
            option = when_option(name, text)
            expression = condition(text, option)
            self._scope.check(expression, option)
            found[place[name]] = expression, self._depends_on(expression)
        ordered: list[tuple[int, Expression, list[int]]] = []
        waiting = dict(found)
        while waiting:
            free = [j for j, (_, on) in waiting.items() if not waiting.keys() & set(on)]
            if not free:
                circle = ", ".join(self.bound.parameters[j].name for j in waiting)
                raise SweepError(
                    f"the conditions of {circle} depend on each other in a circle; expected "
                    "one of them to depend on other parameters only"
                )
            ordered += [(j, *waiting.pop(j)) for j in free]
        return ordered

    @cached_property
    def _constraints(self) -> list[tuple[Expression, list[int]]]:
        found = []
        for text in self.where:
            option = worded("--where", "where")
            expression = condition(text, option)
            self._scope.check(expression, f"{option} {text!r}")
            found.append((expression, self._depends_on(expression)))
        return found

    def check(self) -> None:
        """Raise SweepError if a condition or constraint does not fit the parameters."""
        for j, _, _ in self._conditions:
            _check_default(self.bound, self.bound.parameters[j])
        for expression, on in self._constraints:
            if not on:
                raise SweepError(
                    f"{worded('--where', 'where')} {expression.text!r} names no parameter that "
                    "varies; expected one"
                )

    def values(self, unit: Array) -> Array:
        """Return the points at positions in the unit cube, NaN for inactive parameters."""
        names = [p.name for p in self.bound.parameters]
        theta = values(self.spreads, correlator(self.correlations, names)(unit))
        if not np.all(np.isfinite(theta)):
            row, j = (int(k) for k in np.argwhere(~np.isfinite(theta))[0])
            raise SweepError(
                f"{names[j]} = {self.spreads[j]} has the value {theta[row, j]:g} at "
                f"{unit[row, j]:g} of the unit interval; expected a distribution whose values are "
                "finite"
            )
        theta[~self.active(theta)] = np.nan
        return theta

    def active(self, theta: Array) -> Array:
        """Return which entries of `theta` are active, by values that inactive ones may have."""
        active = np.ones(theta.shape, dtype=bool)
        for j, expression, on in self._conditions:
            held = self._scope.numbers(expression, theta)
            active[:, j] = (held == 1.0) & np.all(active[:, on], axis=1)
        return active

    def kept(self, theta: Array) -> Array:
        """Return which points satisfy all constraints."""
        kept = np.ones(len(theta), dtype=bool)
        for expression, on in self._constraints:
            counts = ~np.any(np.isnan(theta[:, on]), axis=1)
            kept &= ~counts | (self._scope.numbers(expression, theta) == 1.0)
        return kept

    def _depends_on(self, expression: Expression) -> list[int]:
        return sorted({j for name in expression.names for j in self._scope.columns(name)})


def bound_conditions(
    given: Mapping[str, str],
    columns: Mapping[str, Collection[int]],
    parameters: Sequence[BoundParameter],
) -> tuple[Condition, ...]:
    """Return the condition of each conditional column. Raises SweepError for other names."""
    found: dict[int, str] = {}
    for name, text in given.items():
        if name not in columns:
            known = ", ".join(columns)
            raise SweepError(
                f"{when_option(name, text)}: no parameter {name!r}; the parameters are {known}"
            )
        for j in columns[name]:
            found[j] = text.strip()
    return tuple((parameters[j].name, found[j]) for j in sorted(found))


def when_option(name: str, text: str) -> str:
    """Return how a user gives a condition, for messages."""
    return worded(f"--when '{name}: {text}'", f"when={{{name!r}: {text!r}}}")


def _check_default(bound: Bound, parameter: BoundParameter) -> None:
    """Raise SweepError unless a conditional input has a value where it is inactive."""
    i, entry = parameter.input, parameter.entry
    if i is None:
        return
    if bound.info.inputs[i].dtype == BYTES:
        has_value = any(at == (i, entry) for at in ((t[0], t[1]) for t in bound.texts))
    else:
        has_value = not np.isnan(bound.fixed[i][entry])
    if not has_value:
        fix = worded(f"--fix {parameter.name}=VALUE", f"fix={{{parameter.name!r}: value}}")
        raise SweepError(
            f"{parameter.name!r} is an input, which the model needs at every point, and has a "
            f"condition: give its value where the condition is false by {fix}"
        )
