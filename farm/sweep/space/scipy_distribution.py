"""Frozen distributions of scipy.stats as distributions of a parameter. Pure.

Their text is that of the call in Python: `scipy:beta:2,5,loc=1,scale=3` is
`scipy.stats.beta(2, 5, loc=1, scale=3)`.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from farm.call import Array
from farm.expression import number
from farm.sweep.errors import SweepError

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
        """Return the midpoints of `count` equally likely intervals, as the ends may be infinite.

        Of a discrete distribution, each value is one level: all of up to `count` values, otherwise
        those of the midpoints.
        """
        if self.is_discrete:
            return self._steps(count)
        if count is None:
            raise _needs_count(self)
        return (np.arange(count) + 0.5) / count

    @property
    def is_discrete(self) -> bool:
        """Whether the values are apart from each other."""
        return not hasattr(_family(self.name), "pdf")

    def _steps(self, count: int | None) -> Array:
        frozen = self.frozen
        lower, upper = self.bounds
        few = upper - lower < (MOST_STEPS if count is None else count)
        if few:
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


def _needs_count(spread: ScipyDistribution) -> SweepError:
    return SweepError(f"a grid over {spread} needs a number of levels, or a list of values")


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
