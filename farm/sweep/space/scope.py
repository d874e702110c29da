"""The names that expressions about points may use, and their values at each point. Pure.

Names are the model's inputs (also by position, as in0), and the keys of its config that are
parameters, or fixed to a number or a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

import numpy as np

from farm.call import BYTES, Array, ModelInfo
from farm.errors import InvalidInput
from farm.expression import Expression
from farm.sweep.errors import SweepError
from farm.sweep.space.binding import BoundParameter
from farm.sweep.space.category import Category

AT_ONCE = 4096
"""Points per evaluation of an expression, which bounds its memory."""


class Bound(Protocol):
    """Parameters and fixed values that are bound to a model; a plan is one."""

    @property
    def info(self) -> ModelInfo:
        """The model."""

    @property
    def parameters(self) -> tuple[BoundParameter, ...]:
        """The columns of the points."""

    @property
    def fixed(self) -> tuple[Array, ...]:
        """The fixed entries of each input, NaN for others."""

    @property
    def texts(self) -> tuple[tuple[int, int, str], ...]:
        """The fixed texts: input, entry and text."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The config without parameters."""


@dataclass(frozen=True, eq=False)
class Scope:
    """The names of a bound model. texts: whether texts count as values."""

    bound: Bound
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
        own = self._config_column(name)
        if own is not None:
            return [own]
        i = self._input(name)
        return [j for j, p in enumerate(self.bound.parameters) if i is not None and p.input == i]

    def values(self, name: str, theta: Array) -> Array:
        """Return the values of a name at some points: its shape, then the axis of the points.

        Texts are a numpy array of them, "" where there is none.
        """
        own = self._config_column(name)
        if own is not None:
            spread = self.bound.parameters[own].spread
            column: Array = theta[:, own]
            default = self.bound.config.get(name)
            if isinstance(spread, Category):
                words = texts_of(spread, column)
                return np.where(words == "", default, words) if isinstance(default, str) else words
            if not isinstance(default, Real):
                return column
            filled: Array = np.where(np.isnan(column), float(default), column)
            return filled
        i = self._input(name)
        if i is None:
            value = self.bound.config[name]
            return np.array(value if isinstance(value, str) else float(value))
        tensor = self.bound.info.inputs[i]
        here = [(j, p) for j, p in enumerate(self.bound.parameters) if p.input == i]
        if tensor.dtype == BYTES:
            words = np.full((tensor.size, len(theta)), "", dtype=object)
            for at, entry, text in self.bound.texts:
                if at == i:
                    words[entry] = text
            for j, p in here:
                assert isinstance(p.spread, Category), "only words go to an input of texts"
                given = texts_of(p.spread, theta[:, j])
                words[p.entry] = np.where(given == "", words[p.entry], given)
            return words.astype(str).reshape(*tensor.shape, len(theta))
        flat = np.repeat(self.bound.fixed[i][:, None], len(theta), axis=1)
        for j, p in here:
            flat[p.entry] = np.where(np.isnan(theta[:, j]), flat[p.entry], theta[:, j])
        return flat.reshape(*tensor.shape, len(theta))

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
        inputs = self.bound.info.inputs
        by_name = {f"in{i}": i for i in range(len(inputs))} | {
            tensor.name: i for i, tensor in reversed(list(enumerate(inputs)))
        }
        return by_name.get(name)


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
