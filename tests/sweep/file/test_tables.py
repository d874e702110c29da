"""Sweeps as tables: one row for each point, in every state of the sweep."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from farm.call import ModelInfo, TensorInfo
from farm.sweep.errors import SweepError
from farm.sweep.file.store import COMPLETE, Store
from farm.sweep.file.tables import load_pandas, write_parquet
from tests.sweep.samples import BEAM_WITH_UNITS, done, failed, plan_of, stored, values_of

PLAN = plan_of("random:6")
NAMES = ["E[0]", "E[1]", "E[2]", "load", "u[0]", "u[1]", "u[2]", "u[3]", "mass"]
REST = ["status", "error", "worker", "attempts", "t_start", "t_run", "t_queue"]


def write(path: Path) -> Store:
    """Begin a sweep whose point 1 is done and point 3 failed."""
    store = Store.create(path, PLAN)
    worker = store.worker_id("node/1")
    store.add(done(PLAN, 1, worker=worker))
    store.add(failed(3, worker=worker))
    return store


@pytest.mark.parametrize("complete", [True, False])
def test_a_data_frame_has_a_row_for_each_point(path: Path, complete: bool) -> None:
    store = write(path)
    if complete:
        store.close(COMPLETE, {})
    try:
        frame = load_pandas(str(path))
    finally:
        store.abandon()
    assert frame.index.name == "point"
    assert list(frame.columns) == NAMES + REST
    np.testing.assert_array_equal(frame[NAMES[:4]].to_numpy(), PLAN.theta)
    np.testing.assert_array_equal(frame.loc[1, NAMES[4:]].to_numpy(float), values_of(PLAN, 1))
    assert frame.loc[3, NAMES[4:]].isna().all()
    words = ["pending", "done", "pending", "failed", "pending", "pending"]
    assert frame["status"].tolist() == words
    assert frame["error"].notna().tolist() == [word == "failed" for word in words]
    assert frame.loc[3, "error"] == "ModelFailed: boom"
    assert frame.loc[[1, 3], "worker"].tolist() == ["node/1", "node/1"]
    assert frame["worker"].notna().sum() == 2
    assert frame["t_run"][1] == 0.5
    assert frame.attrs["farm_model"] == "beam"


def test_a_data_frame_has_units_by_column(path: Path) -> None:
    plan = plan_of("random:2", info=BEAM_WITH_UNITS)
    stored(path, plan)
    attrs = load_pandas(path).attrs
    inputs, outputs = [f"E[{k}]" for k in range(3)], [f"u[{k}]" for k in range(4)]
    assert attrs["units"] == {
        **dict.fromkeys(inputs, "Pa"),
        **dict.fromkeys(outputs, "m"),
        "mass": "kg",
    }
    assert set(attrs["long_name"]) == {*inputs, *outputs}
    assert attrs["long_name"]["u[0]"] == "deflection"


def test_names_that_meet_stay_apart(path: Path) -> None:
    info = ModelInfo("f", (TensorInfo("y", (1,)),), (TensorInfo("y", ()), TensorInfo("error", ())))
    plan = plan_of("random:2", {"y": "1:2", "status": "int:3:3"}, info=info)
    with pytest.raises(SweepError):
        load_pandas(path)
    stored(path, plan, done(plan, 0))
    frame = load_pandas(path)
    assert frame["theta_y"].tolist() == plan.theta[:, 0].tolist()
    assert frame["theta_status"].tolist() == [3, 3]
    assert frame["theta_status"].dtype == np.int64
    assert frame["y"][0] == 0.0
    assert frame["error"][0] == 0.001
    assert frame["error_"].isna().all()


def test_a_parquet_file_has_nulls_for_missing_outputs(path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write(path).close("interrupted", {})
    assert write_parquet(path, path.with_suffix(".parquet")) == 6
    table = parquet.read_table(path.with_suffix(".parquet"))
    assert table.column_names == ["point", *NAMES, *REST]
    columns = table.to_pydict()
    assert columns["mass"] == [None, values_of(PLAN, 1)[-1], None, None, None, None]
    assert columns["error"] == [None, None, None, "ModelFailed: boom", None, None]
    assert columns["load"] == PLAN.theta[:, 3].tolist()
    assert table.schema.metadata[b"farm_model"] == b"beam"


def test_a_missing_library_is_named_with_its_extra(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path).close("interrupted", {})
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SweepError, match=r'pip install "modelfarm\[pandas\]"'):
        load_pandas(path)
    with pytest.raises(SweepError, match=r'pip install "modelfarm\[parquet\]"'):
        write_parquet(path, path.with_suffix(".parquet"))


SPACE = plan_of(
    "grid:2",
    {"load": "0:1", "solver": "euler,rk", "order": "1,2"},
    fixes={"E": 1},
    when={"order": 'solver == "rk"'},
)


def test_words_are_categories_and_inactive_parameters_are_missing(path: Path) -> None:
    stored(path, SPACE)
    frame = load_pandas(path)
    assert frame.solver.tolist() == ["euler", "rk", "rk"] * 2
    assert frame.solver.cat.categories.tolist() == ["euler", "rk"]
    np.testing.assert_array_equal(frame.order, [np.nan, 1, 2] * 2)
    parquet = pytest.importorskip("pyarrow.parquet")
    write_parquet(path, path.with_suffix(".parquet"))
    columns = parquet.read_table(path.with_suffix(".parquet")).to_pydict()
    assert columns["solver"] == ["euler", "rk", "rk"] * 2
    assert columns["order"] == [None, 1, 2] * 2
