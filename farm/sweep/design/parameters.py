"""Distributions of a sweep's parameters, and the grammar that describes them. Pure.

A distribution maps the unit interval to values, so that every design is made in the unit cube.

    0:10  uniform:0:10     uniform          int:1:10        whole numbers, both ends included
    log:1e-3:1             uniform in log   choice:1,2,4    one of the numbers; 1,2,4 is the same
    normal:MU:SD           normal           scipy:beta:2,5  a distribution of scipy.stats
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, ClassVar, Protocol

import numpy as np

from farm.call import Array
from farm.sweep.design.errors import SweepError
from farm.sweep.design.scipy_distribution import (
    SMALLEST_UNIT,
    WORD,
    ScipyDistribution,
    from_frozen,
    is_frozen,
    parse_scipy,
)
from farm.wording import worded

GRAMMAR = "use LOWER:UPPER, log:LOWER:UPPER, normal:MEAN:SD, int:LOWER:UPPER or choice:A,B,C"
LONGEST_VALUE = 60
"""Most characters of a value in a message."""

IN_PYTHON = (
    "(lower, upper), a list of numbers, farm.log(...), farm.normal(...), farm.integer(...), "
    "farm.choice(...), or a frozen distribution of scipy.stats"
)


class Distribution(Protocol):
    """The distribution of one parameter; `scale` is its name in the sweep file."""

    scale: ClassVar[str]

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest value; infinite if unbounded."""

    def at(self, unit: Array) -> Array:
        """Return the quantiles at positions in [0, 1], as float64."""

    def levels(self, count: int | None) -> Array:
        """Return the positions in [0, 1] of `count` grid levels; None: of all values."""


@dataclass(frozen=True, slots=True)
class Uniform:
    """The uniform distribution between two bounds."""

    lower: float
    upper: float
    scale: ClassVar[str] = "uniform"

    def __post_init__(self) -> None:
        _check_bounds(self.lower, self.upper, f"{self}")

    def __str__(self) -> str:
        return f"{_text(self.lower)}:{_text(self.upper)}"

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound."""
        return self.lower, self.upper

    def at(self, unit: Array) -> Array:
        """Return the values at positions in [0, 1]."""
        # This formula returns both ends exactly and cannot overflow.
        values: Array = (1.0 - unit) * self.lower + unit * self.upper
        return values

    def levels(self, count: int | None) -> Array:
        """Return `count` evenly spaced positions, both ends included."""
        return _evenly(count, f"{self}")


@dataclass(frozen=True, slots=True)
class Log:
    """The log-uniform distribution: every decade between the bounds is equally likely."""

    lower: float
    upper: float
    scale: ClassVar[str] = "log"

    def __post_init__(self) -> None:
        _check_bounds(self.lower, self.upper, f"{self}")
        if self.lower <= 0:
            raise SweepError(f"{self}: a log scale needs bounds above 0, got {self.lower:g}")

    def __str__(self) -> str:
        return f"log:{_text(self.lower)}:{_text(self.upper)}"

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound."""
        return self.lower, self.upper

    def at(self, unit: Array) -> Array:
        """Return the values at positions in [0, 1]."""
        low, high = math.log(self.lower), math.log(self.upper)
        values: Array = np.clip(np.exp((1.0 - unit) * low + unit * high), self.lower, self.upper)
        return values

    def levels(self, count: int | None) -> Array:
        """Return `count` evenly spaced positions, both ends included."""
        return _evenly(count, f"{self}")


@dataclass(frozen=True, slots=True)
class Normal:
    """The normal distribution."""

    mean: float
    sd: float
    scale: ClassVar[str] = "normal"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and math.isfinite(self.sd) and self.sd > 0):
            raise SweepError(f"{self}: expected a finite mean and a standard deviation above 0")

    def __str__(self) -> str:
        return f"normal:{_text(self.mean)}:{_text(self.sd)}"

    @property
    def bounds(self) -> tuple[float, float]:
        """Minus and plus infinity."""
        return -math.inf, math.inf

    def at(self, unit: Array) -> Array:
        """Return the values at positions in [0, 1]; 0 and 1 give the outermost finite values."""
        inside = np.clip(unit, SMALLEST_UNIT, 1.0 - SMALLEST_UNIT)
        quantile = NormalDist().inv_cdf
        standard = np.fromiter(map(quantile, inside.ravel().tolist()), float, inside.size)
        return self.mean + self.sd * standard.reshape(inside.shape)

    def levels(self, count: int | None) -> Array:
        """Return the midpoints of `count` equally likely intervals, as the ends are infinite."""
        if count is None:
            raise _needs_count(f"{self}")
        return (np.arange(count) + 0.5) / count


@dataclass(frozen=True, slots=True)
class Integer:
    """The uniform distribution of the whole numbers between two bounds, both included."""

    lower: int
    upper: int
    scale: ClassVar[str] = "integer"

    def __post_init__(self) -> None:
        for bound in (self.lower, self.upper):
            if not isinstance(bound, int | np.integer):
                raise SweepError(f"int:{self.lower}:{self.upper}: expected whole numbers")
        if self.lower > self.upper:
            raise SweepError(f"{self}: the lower bound is above the upper one")
        if max(abs(self.lower), abs(self.upper)) > 2**53:
            raise SweepError(f"{self}: whole numbers above 2**53 do not fit the file's float64")

    def __str__(self) -> str:
        return f"int:{self.lower}:{self.upper}"

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound."""
        return float(self.lower), float(self.upper)

    @property
    def _count(self) -> int:
        return self.upper - self.lower + 1

    def at(self, unit: Array) -> Array:
        """Return the values at positions in [0, 1], as float64."""
        steps = np.minimum(np.floor(unit * self._count), self._count - 1)
        values: Array = self.lower + steps
        return values

    def levels(self, count: int | None) -> Array:
        """Return `count` evenly spread numbers, both ends included; at most all numbers."""
        total = self._count
        if count is None or count >= total:
            return _middles(np.arange(total), total)
        if count == 1:
            return np.array([0.5])
        return _middles(np.round(np.linspace(0, total - 1, count)), total)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the given numbers, all equally likely; in a grid, all of them in the given order."""

    values: tuple[float, ...]
    scale: ClassVar[str] = "choice"

    def __post_init__(self) -> None:
        if not self.values or not all(math.isfinite(v) for v in self.values):
            raise SweepError(f"{self}: expected one or more finite numbers")

    def __str__(self) -> str:
        return "choice:" + ",".join(_text(v) for v in self.values)

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest value."""
        return min(self.values), max(self.values)

    def at(self, unit: Array) -> Array:
        """Return the values at positions in [0, 1]."""
        count = len(self.values)
        index = np.minimum((unit * count).astype(np.int64), count - 1)
        return np.asarray(self.values, dtype=np.float64)[index]

    def levels(self, count: int | None) -> Array:
        """Return all values, regardless of `count`: a list of values is a list of levels."""
        return _middles(np.arange(len(self.values)), len(self.values))


def choice(*values: float) -> Choice:
    """Return the distribution that is one of the given numbers: `choice(1, 2, 4)`."""
    return Choice(tuple(float(v) for v in values))


def parse_parameter(text: str) -> tuple[str, Distribution]:
    """Parse `k=log:1e-3:1` to a name and a distribution. Raises SweepError."""
    name, sign, spread = text.partition("=")
    if not sign or not name.strip() or not spread.strip():
        raise SweepError(f"parameter {text!r}: expected NAME=DISTRIBUTION; {GRAMMAR}")
    return name.strip(), parse_distribution(spread.strip())


def parse_distribution(text: str) -> Distribution:
    """Parse a distribution; the grammar is at the top of this file. Raises SweepError."""
    word, *parts = text.split(":")
    if word in KINDS and parts:
        return KINDS[word](parts, text)
    if len(parts) == 1:
        return _two(Uniform, [word, *parts], text)
    if not parts and "," in text:
        return _choice([text], text)
    if not parts and _is_number(text):
        raise SweepError(
            f"{text!r} is one value; hold a parameter fixed " + worded("with --fix", "by a number")
        )
    remedy = worded(GRAMMAR, f"expected {IN_PYTHON}; a fixed text goes into fix=")
    raise SweepError(f"unknown distribution {text!r}; {remedy}")


def as_distribution(value: Any) -> Distribution:
    """Convert a Python value to a distribution.

    value: one of these classes, a frozen distribution of scipy.stats, (lower, upper), [a, b, c] or
    text. Raises SweepError for others.
    """
    if isinstance(value, Uniform | Log | Normal | Integer | Choice | ScipyDistribution):
        return value
    if is_frozen(value):
        return from_frozen(value)
    if isinstance(value, str):
        return parse_distribution(value)
    if isinstance(value, tuple) and len(value) == 2:
        return Uniform(*map(_as_number, value))
    if isinstance(value, list | range) or (np.ndim(value) == 1 and hasattr(value, "__array__")):
        return Choice(tuple(map(_as_number, value)))
    remedy = ""
    if hasattr(value, "pdf") or hasattr(value, "pmf"):
        remedy = "; call a distribution with its numbers, as scipy.stats.norm(0, 1)"
    raise SweepError(f"{_briefly(value)} is a {type(value).__name__}; expected {IN_PYTHON}{remedy}")


def _as_number(value: Any) -> float:
    """Return a number of Python or numpy as float. Raises SweepError for a text and others."""
    if isinstance(value, bool | str | bytes):
        raise SweepError(f"{value!r} is a {type(value).__name__}; expected a number")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise SweepError(f"{value!r} is a {type(value).__name__}; expected a number") from None


def _briefly(value: Any) -> str:
    """Return a value in one line of a message."""
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def _two(make: Callable[[float, float], Distribution], parts: list[str], text: str) -> Distribution:
    if len(parts) != 2:
        raise SweepError(f"distribution {text!r} has {len(parts)} numbers, expected 2; {GRAMMAR}")
    return make(_number(parts[0], text), _number(parts[1], text))


def _integer(parts: list[str], text: str) -> Distribution:
    def whole(lower: float, upper: float) -> Integer:
        if lower != int(lower) or upper != int(upper):
            raise SweepError(f"distribution {text!r}: expected whole numbers")
        return Integer(int(lower), int(upper))

    return _two(whole, parts, text)


def _choice(parts: list[str], text: str) -> Distribution:
    if len(parts) != 1:
        raise SweepError(f"distribution {text!r}: expected numbers separated by commas")
    return choice(*(_number(item, text) for item in parts[0].split(",")))


KINDS: dict[str, Callable[[list[str], str], Distribution]] = {
    "uniform": lambda parts, text: _two(Uniform, parts, text),
    "log": lambda parts, text: _two(Log, parts, text),
    "normal": lambda parts, text: _two(Normal, parts, text),
    "int": _integer,
    "choice": _choice,
    WORD: parse_scipy,
}


def _number(text: str, whole: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise SweepError(f"distribution {whole!r}: {text!r} is not a number; {GRAMMAR}") from None
    if not math.isfinite(value):
        raise SweepError(f"distribution {whole!r}: {text!r} is not finite")
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _text(value: float) -> str:
    """Return the shortest text that parses to this number."""
    return repr(float(value)).removesuffix(".0")


def _check_bounds(lower: float, upper: float, text: str) -> None:
    if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper):
        raise SweepError(f"{text}: expected two finite numbers, the lower one first")


def _evenly(count: int | None, text: str) -> Array:
    if count is None:
        raise _needs_count(text)
    return np.linspace(0.0, 1.0, count) if count > 1 else np.array([0.5])


def _middles(index: Array | Sequence[int], total: int) -> Array:
    middles: Array = (np.asarray(index, dtype=np.float64) + 0.5) / total
    return middles


def _needs_count(text: str) -> SweepError:
    return SweepError(
        f"a grid over {text} needs a number of levels: "
        + worded("--design grid:10", 'design="grid", n=10')
        + ", or a list of values"
    )
