"""Distributions of a sweep's parameters; `grammar` reads them from text. Pure.

A distribution maps the unit interval to values, so that every design is made in the unit cube.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar, Protocol

import numpy as np

from farm.call import Array
from farm.sweep.errors import SweepError
from farm.sweep.space.scipy_distribution import SMALLEST_UNIT, text_of
from farm.wording import worded


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
class _Interval:
    """A continuous distribution between two bounds."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not -math.inf < self.lower < self.upper < math.inf:
            raise SweepError(f"{self}: expected two finite numbers, the lower one first")

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound."""
        return self.lower, self.upper

    def levels(self, count: int | None) -> Array:
        """Return `count` evenly spaced positions, both ends included."""
        if count is None:
            raise _needs_count(f"{self}")
        return np.linspace(0.0, 1.0, count) if count > 1 else np.array([0.5])


@dataclass(frozen=True, slots=True)
class Uniform(_Interval):
    """The uniform distribution between two bounds."""

    scale: ClassVar[str] = "uniform"

    def __str__(self) -> str:
        return f"{text_of(self.lower)}:{text_of(self.upper)}"

    def at(self, unit: Array) -> Array:
        """Return the values at positions in [0, 1]."""
        # This formula returns both ends exactly and cannot overflow.
        values: Array = (1.0 - unit) * self.lower + unit * self.upper
        return values


@dataclass(frozen=True, slots=True)
class Log(_Interval):
    """The log-uniform distribution: every decade between the bounds is equally likely."""

    scale: ClassVar[str] = "log"

    def __post_init__(self) -> None:
        _Interval.__post_init__(self)
        if self.lower <= 0:
            raise SweepError(f"{self}: a log scale needs bounds above 0, got {self.lower:g}")

    def __str__(self) -> str:
        return f"log:{text_of(self.lower)}:{text_of(self.upper)}"

    def at(self, unit: Array) -> Array:
        """Return the values at positions in [0, 1]."""
        low, high = math.log(self.lower), math.log(self.upper)
        values: Array = np.clip(np.exp((1.0 - unit) * low + unit * high), self.lower, self.upper)
        return values


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
        return f"normal:{text_of(self.mean)}:{text_of(self.sd)}"

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
        return "choice:" + ",".join(text_of(v) for v in self.values)

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


def _middles(index: Array | Sequence[int], total: int) -> Array:
    middles: Array = (np.asarray(index, dtype=np.float64) + 0.5) / total
    return middles


def _needs_count(text: str) -> SweepError:
    return SweepError(
        f"a grid over {text} needs a number of levels: "
        + worded("--design grid:10", 'design="grid", n=10')
        + ", or a list of values"
    )


def values(spreads: Sequence[Distribution], unit: Array) -> Array:
    """Return the parameters at unit positions, float64 of the same shape (points, parameters)."""
    columns = [spread.at(unit[:, j]) for j, spread in enumerate(spreads)]
    return np.stack(columns, axis=1).astype(np.float64)
