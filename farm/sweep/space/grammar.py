"""The grammar of a parameter's distribution, as text and as values of Python. Pure.

    0:10  uniform:0:10     uniform          int:1:10        whole numbers, both ends included
    log:1e-3:1             uniform in log   choice:1,2,4    one of the numbers; 1,2,4 is the same
    normal:MU:SD           normal           choice:a,b      one of the words; a,b is the same
    scipy:beta:2,5         a distribution of scipy.stats

Words with blanks or signs, and numbers as words, are a JSON list: choice:["rk 4","2"].
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from farm.errors import shortened
from farm.expression import is_number, number
from farm.sweep.errors import SweepError
from farm.sweep.space.parameters import (
    WORD,
    Category,
    Choice,
    Distribution,
    Integer,
    Log,
    Normal,
    ScipyDistribution,
    Uniform,
    from_frozen,
    is_frozen,
    is_plain_value,
    parse_scipy,
    words_of,
)
from farm.wording import worded

GRAMMAR = (
    "use LOWER:UPPER, log:LOWER:UPPER, normal:MEAN:SD, int:LOWER:UPPER, choice:A,B,C or scipy:NAME"
)
LONGEST_VALUE = 60
"""Most characters of a value in a message."""

IN_PYTHON = (
    "(lower, upper), a list of numbers or texts, farm.log(...), farm.normal(...), "
    "farm.integer(...), farm.choice(...), or a frozen distribution of scipy.stats"
)


def choice(*values: float | str) -> Choice | Category:
    """Return the distribution that is one of the numbers or texts: `choice(1, 2, 4)`."""
    if any(isinstance(value, str) for value in values):
        return words_of(values)
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
    if text.startswith("choice:["):
        return _listed(text)
    if word in KINDS and parts:
        return KINDS[word](parts, text)
    if len(parts) == 1:
        return _two(Uniform, [word, *parts], text)
    if not parts and "," in text:
        return _choice([text], text)
    if not parts and is_number(text):
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
    kinds = Uniform | Log | Normal | Integer | Choice | Category | ScipyDistribution
    if isinstance(value, kinds):
        return value
    if is_frozen(value):
        return from_frozen(value)
    if isinstance(value, str):
        return parse_distribution(value)
    if isinstance(value, tuple) and len(value) == 2:
        return Uniform(*map(_as_number, value))
    if isinstance(value, list | range) or (np.ndim(value) == 1 and hasattr(value, "__array__")):
        # Numbers as texts are a mistake more often than they are words; `choice` takes them.
        if any(isinstance(entry, str) and not is_plain_value(entry) for entry in value):
            return words_of(list(value))
        return Choice(tuple(map(_as_number, value)))
    remedy = ""
    if hasattr(value, "pdf") or hasattr(value, "pmf"):
        remedy = "; call a distribution with its numbers, as scipy.stats.norm(0, 1)"
    text = shortened(" ".join(repr(value).split()), LONGEST_VALUE)
    raise SweepError(f"{text} is a {type(value).__name__}; expected {IN_PYTHON}{remedy}")


def _as_number(value: Any) -> float:
    """Return a number of Python or numpy as float. Raises SweepError for a text and others."""
    if isinstance(value, bool | str | bytes):
        raise SweepError(f"{value!r} is a {type(value).__name__}; expected a number")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise SweepError(f"{value!r} is a {type(value).__name__}; expected a number") from None


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


def _choice(parts: list[str], text: str) -> Choice | Category:
    if len(parts) != 1:
        raise SweepError(f"distribution {text!r}: expected numbers or words separated by commas")
    items = [item.strip() for item in parts[0].split(",")]
    if not any(item and not is_plain_value(item) for item in items):
        return choice(*(_number(item, text) for item in items))
    for item in items:
        if not item or is_plain_value(item):
            raise SweepError(
                f"distribution {text!r}: {item!r} is not a word; for texts of any kind use a list "
                f"of JSON: choice:{json.dumps(items, separators=(',', ':'), ensure_ascii=False)}"
            )
    return Category(tuple(items))


def _listed(text: str) -> Choice | Category:
    """Parse `choice:["rk 4","2"]`."""
    try:
        values = json.loads(text.partition(":")[2])
    except ValueError as error:
        raise SweepError(f"distribution {text!r} is not a list of JSON: {error}") from None
    if any(isinstance(value, str) for value in values):
        return words_of(values)
    return Choice(tuple(map(_as_number, values)))


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
        value = number(text)
    except ValueError:
        raise SweepError(f"distribution {whole!r}: {text!r} is not a number; {GRAMMAR}") from None
    if not math.isfinite(value):
        raise SweepError(f"distribution {whole!r}: {text!r} is not finite")
    return value
