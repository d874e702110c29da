"""`farm.load_pandas` and others read sweep files and records, whose paths are texts or Paths."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import farm
from farm.errors import InvalidInput
from farm.record.entry import MODEL, Entry, Status, encoded
from farm.record.file import RecordFile
from farm.storage.frames import Record
from farm.sweep.file.store import Store
from tests.record.entries import SQUARE, point
from tests.sweep.samples import done, failed, plan_of

PLAN = plan_of("random:3")


@pytest.fixture
def sweep(tmp_path: Path) -> str:
    store = Store.create(tmp_path / "s.h5", PLAN)
    store.add(done(PLAN, 1))
    store.add(failed(2))
    store.close("interrupted", {})
    return str(tmp_path / "s.h5")


def write_record(path: Path, *entries: Entry) -> None:
    file = RecordFile(path, indexed=False)
    file.add([Record(MODEL, json.dumps(SQUARE.to_json()).encode()), *map(encoded, entries)])
    file.close()


def test_every_reader_takes_a_text_and_a_path(sweep: str) -> None:
    for path in (sweep, Path(sweep)):
        assert farm.load_pandas(path)["status"].tolist() == ["pending", "done", "failed"]
        assert farm.load_xarray(path).u.shape == (3, 4)
        assert [row["point"] for row in farm.load_failures(path)] == [2]
        assert farm.load_progress(path).done == 1


def test_a_record_is_read_as_a_sweep_is(tmp_path: Path) -> None:
    bad = replace(
        point(2.0), status=Status.FAILED, outputs=(), error=("ModelFailed", "diverged", "")
    )
    write_record(tmp_path / "a.record", point(1.0), bad)
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
    write_record(tmp_path / "a.record", point(1.0), other)
    with pytest.raises(InvalidInput, match="several models"):
        farm.load_pandas(tmp_path / "a.record")
    assert farm.load_pandas(tmp_path / "a.record", model="cube")["status"].tolist() == ["finite"]
    assert farm.load_xarray(tmp_path / "a.record", model="square").y.values.tolist() == [1.0]


def test_a_sweep_has_nothing_to_select_from(sweep: str) -> None:
    with pytest.raises(farm.SweepError, match="is not a record"):
        farm.load_xarray(sweep, model="beam")
