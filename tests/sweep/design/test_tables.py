"""Tables of points: csv, npy, HDF5 and DataFrames, and what is said of everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest

from farm.sweep.design.arguments import request_of
from farm.sweep.design.prepare import make_plan
from farm.sweep.design.tables import is_data_frame, read_data_frame, read_table
from farm.sweep.errors import SweepError
from farm.sweep.space.parameters import Category
from tests.sweep.samples import BEAM, plan_of, stored

ROWS = np.array([[1.0, 2.0], [3.0, 4.5]])


def test_csv_with_and_without_names(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text("\ufeff# made by hand\n E[0] ,load\n1,2\n\n3,4.5\n", encoding="utf-8")
    table = read_table(str(path))
    assert table.names == ("E[0]", "load")
    assert np.array_equal(table.rows, ROWS)
    path.write_text("1,2\n3,4.5\n")
    table = read_table(str(path))
    assert table.names is None
    assert np.array_equal(table.rows, ROWS)


def test_npy_as_matrix_vector_and_fields(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ROWS)
    assert np.array_equal(read_table(str(tmp_path / "a.npy")).rows, ROWS)
    np.save(tmp_path / "b.npy", ROWS[0])
    assert read_table(str(tmp_path / "b.npy")).rows.tolist() == [[1.0], [2.0]]
    fields = np.array([(1, 2.0), (3, 4.5)], dtype=[("k", "i4"), ("q", "f8")])
    np.save(tmp_path / "c.npy", fields)
    table = read_table(str(tmp_path / "c.npy"))
    assert table.names == ("k", "q")
    assert np.array_equal(table.rows, ROWS)


def test_hdf5_dataset_and_sweep_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["/some/points"] = ROWS
    assert np.array_equal(read_table(f"{tmp_path}/a.h5:/some/points").rows, ROWS)
    plan = plan_of("sobol:4")
    stored(tmp_path / "s.h5", plan)
    table = read_table(f"{tmp_path}/s.h5")
    assert table.names == ("E[0]", "E[1]", "E[2]", "load")
    assert np.array_equal(table.rows, plan.theta)


def test_words_in_a_csv_and_in_fields(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text("solver,load\nrk4,1\neuler,2\nrk4,3\n")
    table = read_table(str(path))
    assert table.words == {0: Category(("rk4", "euler"))}
    assert table.rows.tolist() == [[0, 1], [1, 2], [0, 3]]
    fields = np.array([(1.0, "b c"), (2.0, "a")], dtype=[("load", "f8"), ("solver", "U3")])
    np.save(tmp_path / "a.npy", fields)
    table = read_table(str(tmp_path / "a.npy"))
    assert (table.names, table.words) == (("load", "solver"), {1: Category(("b c", "a"))})
    path.write_text("grade\n1_0\n2_0\n")
    table = read_table(str(path))
    assert table.words[0].words == ("1_0", "2_0")


def test_empty_cells_where_they_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text("solver,order\nrk,4\n,2\nrk,\n")
    np.testing.assert_array_equal(
        read_table(str(path), gaps=True).rows, [[0, 4], [np.nan, 2], [0, np.nan]]
    )


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("missing.csv", None, "cannot be read"),
        ("a.csv", "", "empty"),
        ("a.csv", "k,q\n", "expected \\(points, parameters\\)"),
        ("a.csv", "k,q\n1,2\n3\n", "row 1 is '3', expected 2 cells"),
        ("a.csv", "k,q\n1,x\n3,4\n", "column 'q' has 'x' in row 0, and numbers"),
        ("a.csv", "k,q\n1,\n3,4\n", "row 0, column 1 is empty"),
        ("a.csv", "k,q\n1,inf\n", "row 0, column 1 is inf"),
        ("a.csv", "k,k\n1,2\n", "different column names"),
        ("a.csv", "1,nan\n", "column 1 is empty or nan"),
        ("a.txt", "1,2\n", "expected a file .csv, .npy or .h5"),
        ("a.npy", "not numpy", "cannot be read"),
        ("a.h5", "not hdf5", "cannot be read"),
    ],
)
def test_what_is_no_table_is_told(
    tmp_path: Path, name: str, content: str | None, complaint: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(SweepError, match=complaint):
        read_table(str(path))


def test_pickles_and_missing_datasets_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(SweepError, match="cannot be read"):
        read_table(str(tmp_path / "a.npy"))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = ROWS
    with pytest.raises(SweepError, match="name a dataset"):
        read_table(f"{tmp_path}/a.h5")
    with pytest.raises(SweepError, match="cannot be read"):
        read_table(f"{tmp_path}/a.h5:/y")


def test_a_table_leaves_out_rows_and_values() -> None:
    frame = pd.DataFrame(
        {"E": [1, 1, 1], "load": [1, 2, 5], "solver": ["rk", "euler", "rk"], "order": [2, 3, None]}
    ).rename(columns={"E": "E[0]"})
    options: dict[str, Any] = {"where": "load < 4", "when": {"order": 'solver == "rk"'}}
    with pytest.raises(SweepError, match="row 2 has no order; expected one in every row where"):
        make_plan(request_of(frame, {"E[1]": 1, "E[2]": 1}, "sobol", None, **options),
                  lambda config: BEAM)  # fmt: skip
    frame.loc[2, "order"] = 1
    plan = make_plan(request_of(frame, {"E[1]": 1, "E[2]": 1}, "sobol", None, **options),
                     lambda config: BEAM)  # fmt: skip
    np.testing.assert_array_equal(plan.theta, [[1, 1, 0, 2], [1, 2, 1, np.nan]])
    assert plan.config_of(0) == {"solver": "rk", "order": 2}


def test_a_table_is_not_correlated_and_has_a_row() -> None:
    frame = pd.DataFrame({"E[0]": [1], "E[1]": [1], "E[2]": [1], "load": [2]})
    request = request_of(frame, {}, "sobol", None, correlation={("E[0]", "load"): 0.5})
    with pytest.raises(SweepError, match="a table has its points as they are"):
        make_plan(request, lambda config: BEAM)
    with pytest.raises(SweepError, match="no row of table 'DataFrame' satisfies load > 5"):
        make_plan(request_of(frame, {}, "sobol", None, where="load > 5"), lambda config: BEAM)


LABELS = ["p", "q", "r"]


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
    table = read_data_frame(pd.DataFrame({"x": column, "flag": [True, False, True]}, index=LABELS))
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
        read_data_frame(pd.DataFrame({"y": [1, 2, 3], "x": column}, index=LABELS))


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
    assert is_data_frame(frame)
    assert not is_data_frame(frame["order"])
    table = read_data_frame(frame, gaps=True)
    np.testing.assert_array_equal(table.rows, [[1, 0], [np.nan, 1], [3, np.nan]])
