"""Tables of points: csv, npy, HDF5, with and without names; errors for other files."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from farm.sweep.design.errors import SweepError
from farm.sweep.design.tables import read_table
from farm.sweep.file.store import Store
from tests.sweep.samples import plan_of

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


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("missing.csv", None, "cannot be read"),
        ("a.csv", "", "empty"),
        ("a.csv", "k,q\n", "expected \\(points, parameters\\)"),
        ("a.csv", "k,q\n1,2\n3\n", "row 1 is '3', expected 2 numbers"),
        ("a.csv", "k,q\n1,x\n", "row 0 is '1,x'"),
        ("a.csv", "k,k\n1,2\n", "different column names"),
        ("a.csv", "1,nan\n", "column 1 is nan"),
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
