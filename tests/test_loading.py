"""`farm.load_pandas` and others read sweep files and records, whose paths are texts or Paths."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray
from pyarrow import parquet

import farm
from farm.call import ModelInfo, Operation, TensorInfo
from farm.errors import InvalidInput
from farm.sweep.file.reading import write_csv, write_netcdf
from farm.sweep.file.tables import write_parquet
from tests.record.entries import failed as failed_entry
from tests.record.entries import point, written
from tests.sweep.samples import done, failed, plan_of, stored

PLAN = plan_of("random:3")


@pytest.fixture
def sweep(tmp_path: Path) -> str:
    stored(tmp_path / "s.h5", PLAN, done(PLAN, 1), failed(2))
    return str(tmp_path / "s.h5")


def test_every_reader_takes_a_text_and_a_path(sweep: str) -> None:
    for path in (sweep, Path(sweep)):
        assert farm.load_pandas(path)["status"].tolist() == ["pending", "done", "failed"]
        assert farm.load_xarray(path).u.shape == (3, 4)
        assert [row["point"] for row in farm.load_failures(path)] == [2]
        assert farm.load_progress(path).done == 1


MIXED = ModelInfo(
    "mixed",
    (TensorInfo("n", (1,), "int64"), TensorInfo("x", (1,), "float32")),
    (TensorInfo("single", (1,), "float32"), TensorInfo("count", (2,), "int64")),
    frozenset({Operation.EVALUATE}),
)
INT, FLOAT = np.dtype(np.int64), np.dtype(np.float64)
COLUMNS = {
    **{"n": INT, "mesh": INT, "x": FLOAT, "single": FLOAT, "count[0]": FLOAT},
    **{"attempts": np.dtype(np.uint8), "t_start": FLOAT, "t_run": np.dtype(np.float32)},
}
"""The types of docs/sweeps.md: whole parameters are int64, other numbers as in the file."""


def test_every_way_of_reading_has_the_same_types(tmp_path: Path) -> None:
    path = tmp_path / "s.h5"
    plan = plan_of("random:3", {"n": "int:1:9", "mesh": "1,2", "x": "0:1"}, info=MIXED)
    stored(path, plan, done(plan, 1), failed(2))

    frame = farm.load_pandas(path)
    assert {name: frame[name].dtype for name in COLUMNS} == COLUMNS

    write_parquet(path, tmp_path / "s.parquet")
    schema = parquet.read_schema(tmp_path / "s.parquet")
    assert {n: np.dtype(schema.field(n).type.to_pandas_dtype()) for n in COLUMNS} == COLUMNS

    write_netcdf(path, tmp_path / "s.nc")
    # By default xarray makes times of t_start, which CF calls seconds since 1970.
    options: dict[str, Any] = {"engine": "h5netcdf", "decode_times": False}
    with xarray.open_dataset(tmp_path / "s.nc", **options) as opened:
        for data in (farm.load_xarray(path), opened):
            types = {name: data[name].dtype for name in COLUMNS if name in data}
            assert types == {name: COLUMNS[name] for name in COLUMNS if name != "count[0]"}
            assert data["count"].dtype == FLOAT
            assert data["status"].dtype == np.uint8
            assert data["n"].values.tolist() == frame["n"].tolist()

    with io.StringIO() as text:
        write_csv(path, text)
        row = list(csv.DictReader(io.StringIO(text.getvalue())))[1]
    for name in ("n", "mesh", "attempts"):
        assert row[name] == str(frame[name][1])
    for name in ("x", "single", "count[0]", "t_start"):
        assert row[name] == repr(float(frame[name][1]))
    assert row["status"] == frame["status"][1] == "done"

    (failure,) = farm.load_failures(path)
    assert [type(failure[name]) for name in ("n", "mesh", "x")] == [int, int, float]
    assert failure["n"] == frame["n"][2]

    with h5py.File(path) as file:
        assert (file["theta"].dtype, file["out_0"].dtype) == (FLOAT, FLOAT)


def test_points_of_a_running_sweep_have_the_types_of_the_file(tmp_path: Path) -> None:
    def model(n: int, x: float) -> dict[str, Any]:
        return {"single": np.float32(x), "count": np.array([n, n], np.int64), "is": float(n > 3)}

    ranges = {"n": farm.integer(1, 9), "x": (0.0, 1.0)}
    with farm.sweep(model, ranges, n=4, out=tmp_path / "s.h5", show=False) as sweep:
        points = sorted(sweep.as_completed(), key=lambda each: each.index)
    frame = sweep.to_pandas()
    for each in points:
        assert [type(value) for value in each.parameters.values()] == [int, float]
        assert each.parameters == {"n": frame["n"][each.index], "x": frame["x"][each.index]}
        for name, column in (("single", "single"), ("count", "count[1]"), ("is", "is")):
            assert each.outputs[name].dtype == frame[column].dtype == FLOAT


def test_a_record_is_read_as_a_sweep_is(tmp_path: Path) -> None:
    written(tmp_path / "a.record", point(1.0), failed_entry(2.0))
    frame = farm.load_pandas(str(tmp_path / "a.record"))
    assert frame["x[0]"].tolist() == [1.0, 2.0]
    assert frame["y"][0] == 1.0
    assert np.isnan(frame["y"][1])
    assert frame["error"][1] == "diverged"
    assert frame["chain"].tolist() == ["chain 3", "chain 3"]
    data = farm.load_xarray(str(tmp_path / "a.record"))
    assert data.y.values[0] == 1.0
    assert data["x[0]"].values.tolist() == [1.0, 2.0]


def test_one_of_the_models_of_a_record_is_selected(tmp_path: Path) -> None:
    other = replace(point(3.0), model="cube", key=b"\0" * len(point(3.0).key))
    written(tmp_path / "a.record", point(1.0), other)
    with pytest.raises(InvalidInput, match="several models"):
        farm.load_pandas(tmp_path / "a.record")
    assert farm.load_pandas(tmp_path / "a.record", model="cube")["status"].tolist() == ["finite"]
    assert farm.load_xarray(tmp_path / "a.record", model="square").y.values.tolist() == [1.0]


def test_a_sweep_has_nothing_to_select_from(sweep: str) -> None:
    with pytest.raises(farm.SweepError, match="is not a record"):
        farm.load_xarray(sweep, model="beam")
