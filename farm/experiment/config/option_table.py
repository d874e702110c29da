"""Option types, options and tables, and how a section is read with them. Pure.

The tables themselves are in `options.py`. A type defines the valid texts of an option: `expected`
describes its range for error messages and the documentation; `read` parses a text.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from farm.call import Array
from farm.errors import InvalidInput
from farm.experiment.config.ini import Nested, Section, first_repeated, read_list

TRUE = ("1", "yes", "true", "on")
FALSE = ("0", "no", "false", "off")

LARGEST_WHOLE = 2**53
"""Beyond this, not every whole number is a floating-point number."""


class OptionType(Protocol):
    """Parses the text of an option."""

    @property
    def expected(self) -> str:
        """Description of the valid texts."""

    def read(self, text: str) -> Any:
        """Parse a non-empty text. Raises ValueError with the expected range."""


@dataclass(frozen=True, slots=True)
class Text:
    """Any text."""

    expected: str = "a text"

    def read(self, text: str) -> str:
        return text


@dataclass(frozen=True, slots=True)
class Flag:
    """Yes or no, as a bool."""

    expected: str = "true or false"

    def read(self, text: str) -> bool:
        word = text.lower()
        if word not in TRUE + FALSE:
            raise ValueError(self.expected)
        return word in TRUE


@dataclass(frozen=True, slots=True)
class Word:
    """One of several words, case-insensitive."""

    words: Sequence[str]

    @property
    def expected(self) -> str:
        return spoken(self.words, "or")

    def read(self, text: str) -> str:
        for word in self.words:
            if word == text.lower():
                return word
        raise ValueError(self.expected)


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number in a range, as a float. least: inclusive; above, below: exclusive."""

    what: str = "a finite number"
    least: float = -math.inf
    above: float = -math.inf
    below: float = math.inf

    @property
    def expected(self) -> str:
        ends = []
        if self.least > -math.inf:
            ends.append(f"{self.least:g} or more")
        if self.above > -math.inf:
            ends.append(f"more than {self.above:g}")
        if self.below < math.inf:
            ends.append(f"less than {self.below:g}")
        return f"{self.what}, {spoken(ends, 'and')}" if ends else self.what

    def read(self, text: str) -> float:
        value = number_of(text.removeprefix("[").removesuffix("]"))  # also [number]
        if value is None or not (self.least <= value < self.below and value > self.above):
            raise ValueError(self.expected)
        return value


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `least` to `most`, both inclusive, as an int."""

    least: int = 0
    most: int = LARGEST_WHOLE

    @property
    def expected(self) -> str:
        if self.most == LARGEST_WHOLE:
            return f"a whole number, {self.least} or more"
        return f"a whole number from {self.least} to {self.most}"

    def read(self, text: str) -> int:
        try:
            value = Number(least=self.least).read(text)
        except ValueError:
            raise ValueError(self.expected) from None
        if value != int(value) or value > self.most:
            raise ValueError(self.expected)
        return int(value)


@dataclass(frozen=True, slots=True)
class Names:
    """A list of at least one text, as a tuple.

    unique: repeated texts are refused. most: maximum length. words: the allowed texts,
    case-insensitive; empty: any.
    """

    expected: str = "a list such as [a, b]"
    unique: bool = False
    most: int | None = None
    words: Sequence[str] = ()

    def read(self, text: str) -> tuple[str, ...]:
        items = NumberRows(self.expected).read(text)
        if not items or any(not isinstance(item, str) or not item for item in items):
            raise ValueError(self.expected)
        names = tuple(str(item) for item in items)
        if self.unique and (repeated := first_repeated(names)):
            raise ValueError(f"distinct names, but {repeated!r} appears twice")
        if self.most is not None and len(names) > self.most:
            raise ValueError(f"{self.most} names at most, not {len(names)}")
        if self.words:
            names = tuple(name.lower() for name in names)
            if not set(names) <= set(self.words):
                raise ValueError(self.expected)
        return names


@dataclass(frozen=True, slots=True)
class NumberList:
    """A list of finite numbers that are at least `least`, as an array of shape (n,)."""

    expected: str = "numbers such as [0, 1.5]"
    least: float = -math.inf

    def read(self, text: str) -> Array:
        values = [number_of(name) for name in Names(self.expected).read(text)]
        if any(value is None or value < self.least for value in values):
            raise ValueError(self.expected)
        return np.array(values, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class NumberRows:
    """A list of lists or of texts."""

    expected: str

    def read(self, text: str) -> list[Nested]:
        try:
            nested = read_list(text)
        except ValueError as error:
            raise ValueError(f"{self.expected}; {error}") from None
        return [nested] if isinstance(nested, str) else nested


@dataclass(frozen=True, slots=True)
class OrNone:
    """The value of another type, or None for the word `none`."""

    type: OptionType

    @property
    def expected(self) -> str:
        return f"{self.type.expected}, or none"

    def read(self, text: str) -> Any:
        if text.lower() == "none":
            return None
        try:
            return self.type.read(text)
        except ValueError as error:
            raise ValueError(f"{error}, or none") from None


@dataclass(frozen=True, slots=True)
class Computed:
    """A default that depends on other values; it reads as None. text: its description."""

    text: str


REQUIRED = Computed("required")
"""The default of a mandatory option."""


@dataclass(frozen=True, slots=True)
class ConfigOption:
    """One option: a row of a table.

    name: in lower case; `input.<input>` matches any name that begins with `input.`.
    means: one line for the documentation. default: the value if the option is missing.
    since: the AEPsych release that introduced it, see `options.py`. older: its former spelling.
    classes: the components that have it; empty: all components of the table.
    """

    name: str
    type: OptionType
    means: str
    default: Any = None
    since: str = "0.8"
    older: str = ""
    classes: Collection[str] = ()

    def is_named(self, name: str) -> bool:
        """Whether a name in a config matches this option."""
        before, placeholder, _ = self.name.partition("<")
        return name.startswith(before) and name != before if placeholder else name == self.name


class OptionTable:
    """The options of one kind of section. since: that of all of them; "": their own."""

    def __init__(self, *options: ConfigOption, since: str = "") -> None:
        self.options = tuple(replace(each, since=since or each.since) for each in options)

    def has(self, name: str) -> bool:
        """Whether the table has an option of this name."""
        return any(option.is_named(name) for option in self.options)

    def option(self, name: str) -> ConfigOption:
        """Return the option of this name. Raises StopIteration if there is none."""
        return next(option for option in self.options if option.is_named(name))

    def read(self, section: Section, name: str, expected: str = "") -> Any:
        """Return the value of an option in a section, or its default. Raises InvalidInput.

        expected: for the error message, if it can be more specific than the option's type.
        """
        option = self.option(name)
        expected = expected or option.type.expected
        if option.older and section.has(option.older) and not section.has(name):
            name = option.older
        if section.has(name):
            try:
                return option.type.read(section.all[name])
            except ValueError as error:
                reason = str(error).replace(option.type.expected, expected)
                raise section.wrong(name, reason) from None
        if option.default is REQUIRED:
            raise InvalidInput(f"{section.where(name)} is missing; expected {expected}")
        return None if isinstance(option.default, Computed) else option.default

    def read_list(self, section: Section, name: str, length: int) -> Any:
        """Return the value of an option that is a list of `length` items. Raises InvalidInput."""
        expected = f"{length} {self.option(name).type.expected}"
        items = self.read(section, name, expected)
        if len(items) != length:
            raise section.wrong(name, expected)
        return items

    def wrong(self, section: Section, name: str) -> InvalidInput:
        """Return the error for a value outside the range of the option's type."""
        return section.wrong(name, self.option(name).type.expected)

    def read_all(self, section: Section, kind: str = "") -> dict[str, Any]:
        """Return the values of all options without a placeholder, by name. Raises InvalidInput.

        kind: the class of a component; options that it does not have are left out.
        """
        return {
            option.name: self.read(section, option.name)
            for option in self.options
            if "<" not in option.name and (not option.classes or kind in option.classes)
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


def spoken(words: Sequence[str], last: str) -> str:
    """Join words as in `a, b or c`."""
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
