"""The space of a sweep's points: distributions, correlations, conditions and constraints. Pure.

A conditional parameter is inactive at a point where its condition is false: it has no value there,
NaN in the table. A constraint refuses points where it is false; one that names a parameter which
is inactive at a point does not count there. A condition that does so is false. Names in them are
the model's inputs (also by position, as in0), and the keys of its config that are parameters, or
fixed to a number or a text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np

from farm.call import BYTES, Array
from farm.errors import InvalidInput
from farm.expression import Expression
from farm.sweep.errors import SweepError
from farm.sweep.space.binding import BoundParameter, BoundValues, tensor_index
from farm.sweep.space.correlation import Correlation, correlator
from farm.sweep.space.parameters import Category, Distribution, values
from farm.wording import worded

AT_ONCE = 4096
"""Points per evaluation of an expression, which bounds its memory."""


@dataclass(frozen=True, eq=False)
class Scope:
    """The names of a bound model. texts: whether texts count as values."""

    bound: BoundValues
    texts: bool = True

    @property
    def names(self) -> list[str]:
        """All names, each once."""
        bound = self.bound
        inputs = bound.info.inputs
        found = [t.name for t in inputs if self.texts or t.dtype != BYTES]
        found += [f"in{i}" for i, t in enumerate(inputs) if self.texts or t.dtype != BYTES]
        found += [
            p.name
            for p in bound.parameters
            if p.input is None and (self.texts or not isinstance(p.spread, Category))
        ]
        kinds = (Real, str) if self.texts else Real
        found += [key for key, value in bound.config.items() if isinstance(value, kinds)]
        return list(dict.fromkeys(found))

    def columns(self, name: str) -> list[int]:
        """Return the columns of the points that a name depends on."""
        if (own := self._config_column(name)) is not None:
            return [own]
        i = self._input(name)
        return [j for j, p in enumerate(self.bound.parameters) if i is not None and p.input == i]

    def values(self, name: str, theta: Array) -> Array:
        """Return the values of a name at some points: its shape, then the axis of the points.

        Texts are a numpy array of them, "" where there is none.
        """
        own = self._config_column(name)
        if own is not None:
            spread, default = self.bound.parameters[own].spread, self.bound.config.get(name)
            fits = isinstance(default, str if isinstance(spread, Category) else Real)
            return _filled(spread, theta[:, own], default if fits else None)
        i = self._input(name)
        if i is None:
            value = self.bound.config[name]
            return np.array(value if isinstance(value, str) else float(value))
        tensor = self.bound.info.inputs[i]
        entries = self.bound.fixed[i].astype(object if tensor.dtype == BYTES else np.float64)
        if tensor.dtype == BYTES:
            entries[:] = ""
            for at, entry, text in self.bound.texts:
                if at == i:
                    entries[entry] = text
        rows = np.repeat(entries[:, None], len(theta), axis=1)
        for j, p in enumerate(self.bound.parameters):
            if p.input == i:
                rows[p.entry] = _filled(p.spread, theta[:, j], rows[p.entry])
        rows = rows.astype(str) if tensor.dtype == BYTES else rows
        return rows.reshape(*tensor.shape, len(theta))

    def check(self, expression: Expression, where: str) -> None:
        """Raise SweepError for an unknown name, or for a text that a name never has."""
        known = self.names
        for name in sorted(expression.names - set(known)):
            raise SweepError(
                f"{where}: no parameter {name!r}; expected one of {', '.join(known) or 'none'}"
            )
        for name, text in sorted(expression.compared):
            words = self._words(name)
            if words and text not in words:
                raise SweepError(
                    f"{where}: {name!r} is never {text!r}; its words are {', '.join(words)}"
                )

    def numbers(self, expression: Expression, theta: Array) -> Array:
        """Return the value of an expression at each point. Raises SweepError."""
        parts = [np.empty(0)]
        try:
            for start in range(0, len(theta), AT_ONCE):
                rows = theta[start : start + AT_ONCE]
                values = {name: self.values(name, rows) for name in sorted(expression.names)}
                parts.append(expression.numbers(values, len(rows)))
        except InvalidInput as error:
            raise SweepError(str(error)) from None
        return np.concatenate(parts)

    def _words(self, name: str) -> Sequence[str]:
        found: list[str] = []
        for j in self.columns(name):
            spread = self.bound.parameters[j].spread
            found += spread.words if isinstance(spread, Category) else ()
        i = self._input(name)
        found += [text for at, _, text in self.bound.texts if at == i]
        return list(dict.fromkeys(found))

    def _config_column(self, name: str) -> int | None:
        parameters: Iterable[tuple[int, BoundParameter]] = enumerate(self.bound.parameters)
        return next((j for j, p in parameters if p.input is None and p.name == name), None)

    def _input(self, name: str) -> int | None:
        return tensor_index(name, self.bound.info.inputs, "in")


def _filled(spread: Distribution | None, column: Array, default: Any) -> Array:
    """Return a column as words or numbers; `default` fills its gaps, unless it is None."""
    values = texts_of(spread, column) if isinstance(spread, Category) else column
    if default is None:
        return values
    filled: Array = np.where(np.isnan(column), default, values)
    return filled


def texts_of(category: Category, column: Array) -> Array:
    """Return the word of each index in a column, "" for NaN, as an array of texts."""
    table = np.array([*category.words, ""])
    index = np.where(np.isnan(column), len(category.words), column).astype(np.int64)
    words: Array = table[index]
    return words


def parsed(text: str, where: str, *, texts: bool = True) -> Expression:
    """Parse an expression; `where` is the user's word for it. Raises SweepError."""
    try:
        return Expression(text, where, texts=texts)
    except InvalidInput as error:
        raise SweepError(str(error)) from None


def condition(text: str, where: str) -> Expression:
    """Parse an expression that is true or false. Raises SweepError."""
    expression = parsed(text, where)
    if not expression.is_condition:
        raise SweepError(f"{where} = {text}: expected a comparison, such as {text} > 0")
    return expression


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

    bound: BoundValues
    correlations: tuple[Correlation, ...] = ()
    when: tuple[Condition, ...] = ()
    where: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(p.name for p in self.bound.parameters)

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
        names = self.names
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


def _check_default(bound: BoundValues, parameter: BoundParameter) -> None:
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
