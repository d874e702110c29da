"""A DataFrame of points: its numbers, and what is said of every other kind of entry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from farm.sweep.design.data_frame import is_data_frame, read_data_frame
from farm.sweep.errors import SweepError
from farm.sweep.space.category import Category

ROWS = ["p", "q", "r"]


@pytest.mark.parametrize(
    "column",
    [
        [1, 2, 3],
        [1.0, 2.0, 3.0],
        np.array([1, 2.0, 3], dtype=object),
        np.array([1, 2, 3], dtype=np.uint8),
        pd.array([1, 2, 3], dtype="Int64"),
        pd.array([1.0, 2.0, 3.0], dtype="Float32"),
        pd.Categorical([1, 2, 3]),
    ],
)
def test_numbers_of_every_kind_are_read(column: Any) -> None:
    table = read_data_frame(pd.DataFrame({"x": column, "flag": [True, False, True]}, index=ROWS))
    assert table.names == ("x", "flag")
    assert table.rows.tolist() == [[1.0, 1.0], [2.0, 0.0], [3.0, 1.0]]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([1.0, np.nan, 3.0], "column 'x' of the DataFrame has nan in row 'q'; expected a finite"),
        ([1.0, None, np.nan], "has nan in row 'q', as in 1 more; .* frame.dropna"),
        ([1.0, -np.inf, 3.0], "has -inf in row 'q'; expected a finite number"),
        (pd.array([1, 2, None], dtype="Int64"), "has nan in row 'r'"),
        (pd.Categorical([1, 2, None]), "has nan in row 'r'"),
        (pd.array([True, None, False], dtype="boolean"), "has nan in row 'q'"),
        ([1, "steel", 3], "has 'steel' in row 'q'; expected numbers; or texts only"),
        (["a", None, "b"], "has nothing in row 'q'; expected a text"),
        (["a", "b\0", "b"], "has no words: .*; expected texts"),
        (["1", "2", "3"], r"has '1' in row 'p'; .* \.astype\(float\)"),
        (pd.date_range("2026-01-01", periods=3), r"has dates \(datetime64.*; expected numbers"),
        (
            pd.date_range("2026-01-01", periods=3, tz="UTC"),
            "has Timestamp.* in row 'p'; expected numbers; not Timestamp",
        ),
        (pd.to_timedelta([1, 2, 3], unit="s"), r"has durations \(timedelta64.*; expected numbers"),
        ([1.0, 2j, 3.0], "has complex numbers; expected real ones"),
        ([[1], [2], [3]], r"has \[1\] in row 'p'; expected numbers; not list"),
        ([1, 2**53 + 1, 3], "has 9007199254740993 in row 'q'; whole numbers above 2"),
        ([1, 2, -(2**60)], "has -1152921504606846976 in row 'r'; whole numbers above 2"),
    ],
)
def test_another_entry_is_named_by_column_and_row(column: Any, expected: str) -> None:
    with pytest.raises(SweepError, match=expected):
        read_data_frame(pd.DataFrame({"y": [1, 2, 3], "x": column}, index=ROWS))


@pytest.mark.parametrize(
    ("index", "label"),
    [
        (None, "row 1;"),
        ([10, 20], "row 20;"),
        (pd.date_range("2026-01-01", periods=2), "row 2026-01-02 00:00:00;"),
        (pd.MultiIndex.from_tuples([("a", 1), ("b", 2)]), r"row \('b', 2\);"),
    ],
)
def test_a_row_is_named_as_the_index_does(index: Any, label: str) -> None:
    with pytest.raises(SweepError, match=label):
        read_data_frame(pd.DataFrame({"x": [1.0, np.nan]}, index=index))


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (pd.DataFrame(), "has no columns; expected one for each parameter"),
        (pd.DataFrame(index=[1, 2]), "has no columns; expected one for each parameter"),
        (pd.DataFrame({"x": [], "y": []}), "no rows, only the columns x, y; expected a row for"),
        (pd.DataFrame([[1, 2, 3]], columns=["x", "y", "x"]), "has several columns 'x'; expected"),
    ],
)
def test_a_frame_without_points_or_with_two_names(frame: pd.DataFrame, expected: str) -> None:
    with pytest.raises(SweepError, match=expected):
        read_data_frame(frame)


def test_a_series_is_no_table() -> None:
    assert is_data_frame(pd.DataFrame())
    assert not is_data_frame(pd.Series([1.0]))


@pytest.mark.parametrize(
    "column",
    [["rk4", "euler", "rk4"], pd.Categorical(["rk4", "euler", "rk4"], categories=["euler", "rk4"])],
)
def test_texts_are_words(column: Any) -> None:
    table = read_data_frame(pd.DataFrame({"load": [1, 2, 3], "solver": column}))
    assert table.words == {1: Category(("rk4", "euler"))}
    assert table.rows.tolist() == [[1, 0], [2, 1], [3, 0]]


def test_gaps_where_they_are_allowed() -> None:
    frame = pd.DataFrame({"order": [1, None, 3], "solver": ["a", "b", None]})
    table = read_data_frame(frame, gaps=True)
    np.testing.assert_array_equal(table.rows, [[1, 0], [np.nan, 1], [3, np.nan]])
