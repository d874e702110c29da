"""Distributions of a sweep's parameters; `grammar` reads them from text. Pure.

A distribution maps the unit interval to values, so that every design is made in the unit cube. The
text of one of scipy.stats is that of its call: `scipy:beta:2,5,loc=1,scale=3` is
`scipy.stats.beta(2, 5, loc=1, scale=3)`.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, ClassVar, Protocol

import numpy as np

from farm.call import Array
from farm.expression import is_number, number
from farm.sweep.errors import SweepError
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
            raise _needs_count(self, _example())
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
            raise _needs_count(self, _example())
        return _middles(np.arange(count), count)


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


def _needs_count(spread: object, example: str = "") -> SweepError:
    return SweepError(
        f"a grid over {spread} needs a number of levels{example}, or a list of values"
    )


def _example() -> str:
    return ": " + worded("--design grid:10", 'design="grid", n=10')


def values(spreads: Sequence[Distribution], unit: Array) -> Array:
    """Return the parameters at unit positions, float64 of the same shape (points, parameters)."""
    columns = [spread.at(unit[:, j]) for j, spread in enumerate(spreads)]
    return np.stack(columns, axis=1).astype(np.float64)


PLAIN_WORD = re.compile(r"[^\s,:\[\]\"'=]+")
"""Words that `choice:` takes without quotes, unless they are numbers."""

LONGEST_WORD = 1000
"""Most bytes of a word: a file has words in fields of one length."""


@dataclass(frozen=True, slots=True)
class Category:
    """One of the given words, all equally likely; in a grid, all of them in the given order.

    A value is the index of its word from 0, or NaN for none, as files have it.
    """

    words: tuple[str, ...]
    scale: ClassVar[str] = "category"

    def __post_init__(self) -> None:
        if not self.words:
            raise SweepError("a choice has no words; expected one or more")
        for word in self.words:
            if not isinstance(word, str) or not word.strip() or not word.isprintable():
                raise SweepError(f"{word!r} is not a word; expected a text that can be printed")
            if len(word.encode()) > LONGEST_WORD:
                raise SweepError(
                    f"the word {word[:30]!r}... has {len(word.encode())} bytes; expected at most "
                    f"{LONGEST_WORD}"
                )
        if len(set(self.words)) < len(self.words):
            twice = next(w for k, w in enumerate(self.words) if w in self.words[:k])
            raise SweepError(f"{self}: the word {twice!r} is there twice")

    def __str__(self) -> str:
        if all(PLAIN_WORD.fullmatch(word) and not is_plain_value(word) for word in self.words):
            return f"choice:{','.join(self.words)}"
        return f"choice:{json.dumps(self.words, ensure_ascii=False)}"

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest index."""
        return 0.0, len(self.words) - 1.0

    def at(self, unit: Array) -> Array:
        """Return the indices at positions in [0, 1], as float64."""
        count = len(self.words)
        return np.minimum((unit * count).astype(np.int64), count - 1).astype(np.float64)

    def levels(self, count: int | None) -> Array:
        """Return the positions of all words, regardless of `count`."""
        return _middles(np.arange(len(self.words)), len(self.words))

    def all_words(self, values: Array) -> list[str | None]:
        """Return the word of each index in a column; None for NaN."""
        return [None if np.isnan(v) else self.words[int(v)] for v in values.tolist()]


def is_plain_value(text: str) -> bool:
    """Whether a text without quotes is a number or a truth value in JSON, or looks like one."""
    if text.lower() in ("true", "false", "null", "none"):
        return True
    return is_number(text)


def words_of(values: Sequence[object]) -> Category:
    """Return the category of texts. Raises SweepError if there are other values among them."""
    for value in values:
        if not isinstance(value, str):
            raise SweepError(
                f"a choice has the text {next(v for v in values if isinstance(v, str))!r} and "
                f"{value!r}, a {type(value).__name__}; expected either texts or numbers only"
            )
    return Category(tuple(str(value) for value in values))


SMALLEST_UNIT = 2.0**-53
"""Unit samples are kept this far from 0 and 1, where many distributions are infinite."""

WORD = "scipy"

MOST_STEPS = 1000
"""Most values of a discrete distribution that a grid has as levels without a number."""


@dataclass(frozen=True, slots=True)
class ScipyDistribution:
    """A distribution of scipy.stats by its name, with its parameters."""

    name: str
    args: tuple[float, ...]
    options: tuple[tuple[str, float], ...]
    whole: bool
    scale: ClassVar[str] = WORD

    def __str__(self) -> str:
        numbers = [text_of(v) for v in self.args]
        numbers += [f"{key}={text_of(value)}" for key, value in self.options]
        return ":".join([WORD, self.name, *filter(None, [",".join(numbers)])])

    @property
    def frozen(self) -> Any:
        """The frozen distribution of scipy.stats."""
        return _family(self.name)(*self.args, **dict(self.options))

    @property
    def bounds(self) -> tuple[float, float]:
        """The support, which may be infinite."""
        lower, upper = self.frozen.support()
        return float(lower), float(upper)

    def at(self, unit: Array) -> Array:
        """Return the quantiles at positions in [0, 1]; 0 and 1 give the outermost finite values."""
        inside = np.clip(unit, SMALLEST_UNIT, 1.0 - SMALLEST_UNIT)
        values: Array = np.asarray(self.frozen.ppf(inside), dtype=np.float64)
        return values

    def levels(self, count: int | None) -> Array:
        """Return the midpoints of `count` equally likely intervals, or of discrete values."""
        if self.is_discrete:
            return self._steps(count)
        if count is None:
            raise _needs_count(self)
        return _middles(np.arange(count), count)

    @property
    def is_discrete(self) -> bool:
        """Whether the values are apart from each other."""
        return not hasattr(_family(self.name), "pdf")

    def _steps(self, count: int | None) -> Array:
        frozen = self.frozen
        lower, upper = self.bounds
        if upper - lower < (MOST_STEPS if count is None else count):
            steps = np.arange(lower, upper + 1)
        elif count is None:
            raise _needs_count(self)
        else:
            steps = np.unique(frozen.ppf((np.arange(count) + 0.5) / count))
        # The middle of the positions that give a value; none if its probability is too small.
        below, above = frozen.cdf(steps - 1), frozen.cdf(steps)
        positions = (below + above) / 2
        positions = positions[np.asarray(frozen.ppf(positions)) == steps]
        return np.asarray(positions, dtype=np.float64)


def is_frozen(value: Any) -> bool:
    """Whether a value is a frozen distribution of scipy.stats, or looks like one."""
    return all(hasattr(value, name) for name in ("dist", "args", "kwds", "ppf"))


def from_frozen(value: Any) -> ScipyDistribution:
    """Return a frozen distribution of one number. Raises SweepError for others."""
    name = str(getattr(value.dist, "name", ""))
    if type(value.dist) is not type(_family(name)):
        raise SweepError(
            f"the distribution {type(value.dist).__name__} is not one of scipy.stats; a sweep file "
            "keeps the name only"
        )
    return _checked(name, tuple(value.args), dict(value.kwds))


def parse_scipy(parts: list[str], text: str) -> ScipyDistribution:
    """Parse the name and the numbers of `scipy:NAME:NUMBERS`. Raises SweepError."""
    if len(parts) > 2:
        raise SweepError(f"distribution {text!r}: expected {WORD}:NAME or {WORD}:NAME:2,5,scale=3")
    args: list[float] = []
    options: dict[str, float] = {}
    for item in parts[1].split(",") if len(parts) == 2 else ():
        key, sign, value = item.rpartition("=")
        try:
            if sign:
                options[key.strip()] = number(value)
            elif options:
                raise SweepError(f"distribution {text!r}: {item!r} must stand before NAME=NUMBER")
            else:
                args.append(number(value))
        except ValueError:
            raise SweepError(f"distribution {text!r}: {value!r} is not a number") from None
    return _checked(parts[0], tuple(args), options)


def _checked(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> ScipyDistribution:
    family = _family(name)
    try:
        numbers = tuple(float(v) for v in args)
        named = {key: float(value) for key, value in options.items()}
        middle = float(family(*numbers, **named).ppf(0.5))
    except (TypeError, ValueError) as error:
        raise SweepError(
            f"the distribution scipy.stats.{name} does not fit: {error}; {_taken(name)}"
        ) from None
    whole = not hasattr(family, "pdf") and middle.is_integer()  # `loc` may shift whole numbers
    made = ScipyDistribution(name, numbers, tuple(named.items()), whole)
    if not math.isfinite(middle):
        raise SweepError(
            f"{made}: scipy.stats.{name} does not accept these parameters; {_taken(name)}"
        )
    return made


def _family(name: str) -> Any:
    from scipy import stats

    family = getattr(stats, name, None)
    if not _is_family(family):
        known = [key for key in vars(stats) if _is_family(getattr(stats, key))]
        near = difflib.get_close_matches(name, known, 3)
        similar = f"; similar names are {', '.join(near)}" if near else ""
        raise SweepError(f"scipy.stats has no distribution {name!r} of one number{similar}")
    return family


def _is_family(value: Any) -> bool:
    from scipy import stats

    return isinstance(value, stats.rv_continuous | stats.rv_discrete)


def _taken(name: str) -> str:
    """Return which numbers a distribution takes, for messages."""
    family = _family(name)
    shapes = [part.strip() for part in (family.shapes or "").split(",") if part.strip()]
    options = ["loc"] if not hasattr(family, "pdf") else ["loc", "scale"]
    example = ",".join([*shapes, *(f"{option}={option.upper()}" for option in options)])
    return f"expected {WORD}:{name}:{example}, the last {len(options)} if needed"


def text_of(value: float) -> str:
    """Return the shortest text that parses to this number."""
    return repr(float(value)).removesuffix(".0")
