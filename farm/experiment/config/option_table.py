"""Kinds of options, options and tables, and how a section is read with them. Pure.

The tables themselves are in `options.py`.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable
from configparser import RawConfigParser
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from farm.call import Array
from farm.errors import InvalidInput
from farm.experiment.config.ini import Nested, Section, first_repeated, read_list

LARGEST_WHOLE = 2**53
"""Beyond this, not every whole number is a floating-point number."""

MOST_SECTIONS = 1000
"""Maximum number of parameters, and of strategies."""

OR_NONE = ", or none"
REQUIRED = "required"

_LIMITS: dict[str, Callable[[float, float], bool]] = {
    r"(\S+) or more": operator.ge,
    r"from (\S+) to": operator.ge,
    r"from \S+ to (\S+)": operator.le,
    r"more than (\S+)": operator.gt,
    r"less than (\S+)": operator.lt,
}
"""The words for a limit of numbers, and the comparison with it."""


@lru_cache(maxsize=256)
def _limits(expected: str) -> list[tuple[Callable[[float, float], bool], float]]:
    found = [(holds, re.findall(words, expected)) for words, holds in _LIMITS.items()]
    return [(holds, float(limit)) for holds, limits in found for limit in limits]


def _limited(value: float | None, expected: str) -> float:
    """Return a finite number within the limits that `expected` states."""
    if value is None or not all(holds(value, limit) for holds, limit in _limits(expected)):
        raise ValueError(expected)
    return value


def _number(text: str, expected: str) -> float:
    return _limited(number_of(text.removeprefix("[").removesuffix("]")), expected)  # also [number]


def _whole(text: str, expected: str) -> int:
    value = _number(text, expected)
    if value != int(value) or value > LARGEST_WHOLE:
        raise ValueError(expected)
    return int(value)


def _flag(text: str, expected: str) -> bool:
    if text.lower() not in RawConfigParser.BOOLEAN_STATES:
        raise ValueError(expected)
    return RawConfigParser.BOOLEAN_STATES[text.lower()]


def _word(text: str, expected: str) -> str:
    """Return one of the words in `expected`, in lower case."""
    if text.lower() not in re.split(", | or ", expected):
        raise ValueError(expected)
    return text.lower()


def _rows(text: str, expected: str) -> list[Nested]:
    """Return a list of lists or of texts."""
    try:
        nested = read_list(text)
    except ValueError as error:
        raise ValueError(f"{expected}; {error}") from None
    return [nested] if isinstance(nested, str) else nested


def _names(text: str, expected: str) -> tuple[str, ...]:
    """Return at least one text."""
    items = _rows(text, expected)
    if not items or any(not isinstance(item, str) or not item for item in items):
        raise ValueError(expected)
    return tuple(map(str, items))


def _distinct(text: str, expected: str) -> tuple[str, ...]:
    names = _names(text, expected)
    if repeated := first_repeated(names):
        raise ValueError(f"distinct names, but {repeated!r} appears twice")
    return names


def _sections(text: str, expected: str) -> tuple[str, ...]:
    names = _distinct(text, expected)
    if len(names) > MOST_SECTIONS:
        raise ValueError(f"{MOST_SECTIONS} names at most, not {len(names)}")
    return names


def _numbers(text: str, expected: str) -> Array:
    """Return numbers as an array of shape (n,)."""
    names = _names(text, expected)
    return np.array([_limited(number_of(name), expected) for name in names], dtype=np.float64)


KINDS: dict[str, Callable[[str, str], Any]] = {
    "text": lambda text, expected: text,
    "number": _number,
    "whole": _whole,
    "flag": _flag,
    "word": _word,
    "rows": _rows,
    "names": _names,
    "distinct": _distinct,
    "sections": _sections,
    "numbers": _numbers,
}
"""Parsers of a text that is not empty. They raise ValueError with the valid texts."""


@dataclass(frozen=True, slots=True)
class ConfigOption:
    """One option: a row of a table.

    name: in lower case; `input.<input>` matches any name that begins with `input.`. kind: a key of
    `KINDS`. expected: the valid texts in words, with the limits of numbers, and `, or none` where
    that word means None. fallback: the value of a missing option, REQUIRED, or words for one that
    is computed. older: a former spelling. classes: the components that have it; "": all.
    """

    name: str
    kind: str
    expected: str
    fallback: str
    older: str = ""
    classes: str = ""

    @staticmethod
    def of_row(row: str) -> ConfigOption:
        """Return `name | kind: expected | fallback`, then `field = value` for others."""
        name, reads, fallback, *others = row.split(" | ")
        kind, expected = reads.split(": ", 1)
        more = dict(other.split(" = ") for other in others)
        return ConfigOption(name, kind, expected, fallback, **more)

    def is_named(self, name: str) -> bool:
        """Whether a name in a config matches this option."""
        before, placeholder, _ = self.name.partition("<")
        return name.startswith(before) and name != before if placeholder else name == self.name

    def parse(self, text: str, expected: str = "") -> Any:
        """Return the value of a text. Raises ValueError with the valid texts."""
        none = OR_NONE if self.expected.endswith(OR_NONE) else ""
        if none and text.lower() == "none":
            return None
        try:
            return KINDS[self.kind](text, expected or self.expected.removesuffix(none))
        except ValueError as error:
            raise ValueError(f"{error}{none}") from None

    @property
    def default(self) -> Any:
        """The value if the option is missing; None also for one that is required or computed."""
        described = self.fallback in ("none", REQUIRED) or " " in self.fallback
        return None if described else self.parse(self.fallback)


class OptionTable:
    """The options of one kind of section. text: one row each; further lines of it are indented."""

    def __init__(self, text: str) -> None:
        rows = re.sub(r"\n +", " ", text.strip()).split("\n")
        self.options = tuple(map(ConfigOption.of_row, rows))

    def has(self, name: str) -> bool:
        """Whether the table has an option of this name."""
        return any(option.is_named(name) for option in self.options)

    def option(self, name: str) -> ConfigOption:
        """Return the option of this name. Raises StopIteration if there is none."""
        return next(option for option in self.options if option.is_named(name))

    def read(self, section: Section, name: str, expected: str = "") -> Any:
        """Return the value of an option in a section, or its default. Raises InvalidInput.

        expected: for the error message, if it can be more specific than the option's own.
        """
        option = self.option(name)
        if option.older and section.has(option.older) and not section.has(name):
            name = option.older
        if section.has(name):
            try:
                return option.parse(section.all[name], expected)
            except ValueError as error:
                raise section.wrong(name, str(error)) from None
        if option.fallback == REQUIRED:
            where, expected = section.where(name), expected or option.expected
            raise InvalidInput(f"{where} is missing; expected {expected}")
        return option.default

    def read_list(self, section: Section, name: str, length: int) -> Any:
        """Return the value of an option that is a list of `length` items. Raises InvalidInput."""
        expected = f"{length} {self.option(name).expected}"
        items = self.read(section, name, expected)
        if len(items) != length:
            raise section.wrong(name, expected)
        return items

    def wrong(self, section: Section, name: str) -> InvalidInput:
        """Return the error for a value outside the option's range."""
        return section.wrong(name, self.option(name).expected)

    def read_all(self, section: Section, kind: str = "") -> dict[str, Any]:
        """Return the values of all options without a placeholder, by name. Raises InvalidInput.

        kind: the class of a component; options that it does not have are left out.
        """
        return {
            option.name: self.read(section, option.name)
            for option in self.options
            if "<" not in option.name and (kind in option.classes.split(", ") or not option.classes)
        }

    def older_spellings(self, section: Section) -> list[str]:
        """Return a warning for each option that is read from its older spelling."""
        return [
            f"{section.where(option.older)} is an older spelling of {option.name}"
            for option in self.options
            if option.older and section.has(option.older) and not section.has(option.name)
        ]


def number_of(value: object) -> float | None:
    """Return the finite number that a value or its text represents, or None."""
    if isinstance(value, str) and ("_" in value or len(value) > 100):
        return None
    if not isinstance(value, str | int | float | np.integer | np.floating | np.bool_):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number + 0.0 if math.isfinite(number) else None


def spoken(words: Iterable[str]) -> str:
    """Join words as in `a, b or c`."""
    *others, last = words
    return " or ".join(filter(None, [", ".join(others), last]))
