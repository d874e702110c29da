"""Tables of points: csv, npy, HDF5, with and without names; errors for other files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest

from farm.sweep.design.arguments import request_of
from farm.sweep.design.prepare import make_plan
from farm.sweep.design.tables import read_table
from farm.sweep.errors import SweepError
from farm.sweep.file.store import Store
from farm.sweep.space.category import Category
from tests.sweep.samples import BEAM, plan_of

ROWS = np.array([[1.0, 2.0], [3.0, 4.5]])


def test_csv_with_names(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text("\ufeff# made by hand\n E[0] ,load\n1,2\n\n3,4.5\n", encoding="utf-8")
    table = read_table(str(path))
    assert table.names == ("E[0]", "load")
    assert np.array_equal(table.rows, ROWS)


def test_csv_without_names(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
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
    Store.create(tmp_path / "s.h5", plan).close("interrupted", {})
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


def test_a_word_that_python_takes_for_a_number_is_a_word(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text("grade\n1_0\n2_0\n")
    table = read_table(str(path))
    assert table.words[0].words == ("1_0", "2_0")


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


def test_a_table_is_not_correlated() -> None:
    frame = pd.DataFrame({"E[0]": [1], "E[1]": [1], "E[2]": [1], "load": [2]})
    request = request_of(frame, {}, "sobol", None, correlation={("E[0]", "load"): 0.5})
    with pytest.raises(SweepError, match="a table has its points as they are"):
        make_plan(request, lambda config: BEAM)


def test_no_row_is_left() -> None:
    frame = pd.DataFrame({"E[0]": [1], "E[1]": [1], "E[2]": [1], "load": [2]})
    with pytest.raises(SweepError, match="no row of table 'DataFrame' satisfies load > 5"):
        make_plan(request_of(frame, {}, "sobol", None, where="load > 5"), lambda config: BEAM)
