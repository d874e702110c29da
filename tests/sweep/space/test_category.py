"""Categories: words by index, and texts that read back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.sweep.errors import SweepError
from farm.sweep.space.category import Category
from farm.sweep.space.grammar import parse_distribution

words = st.text(min_size=1, max_size=8).filter(lambda w: w.isprintable() and bool(w.strip()))


@settings(deadline=None)
@given(st.lists(words, min_size=1, max_size=6, unique=True))
def test_the_text_reads_back_and_each_word_has_an_index(several: list[str]) -> None:
    category = Category(tuple(several))
    assert parse_distribution(str(category)) == category
    places = category.at(category.levels(None))
    assert category.all_words(places) == several
    assert category.bounds == (0, len(several) - 1)


def test_words_are_equally_likely() -> None:
    values = Category(("a", "b", "c")).at(np.linspace(0, 1, 3001)[:-1])
    assert np.unique(values, return_counts=True)[1].tolist() == [1000] * 3


def test_no_value_is_no_word() -> None:
    assert Category(("a", "b")).all_words(np.array([1.0, np.nan])) == ["b", None]


@pytest.mark.parametrize("several", [(), ("a", "a"), ("",), (" ",), ("a\0",), ("x" * 1001,)])
def test_what_is_no_category(several: tuple[str, ...]) -> None:
    with pytest.raises(SweepError):
        Category(several)
