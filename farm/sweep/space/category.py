"""A parameter whose values are words, such as the name of a solver. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from farm.call import Array
from farm.expression import is_number
from farm.sweep.errors import SweepError

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
        middles: Array = (np.arange(len(self.words)) + 0.5) / len(self.words)
        return middles

    def word(self, value: float) -> str | None:
        """Return the word with an index; None for NaN."""
        return None if np.isnan(value) else self.words[int(value)]

    def all_words(self, values: Array) -> list[str | None]:
        """Return the word of each index in a column; None for NaN."""
        return [self.word(value) for value in values.tolist()]


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
