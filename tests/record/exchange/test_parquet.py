"""A record as a Parquet table."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from farm.call import ModelInfo, TensorInfo
from farm.errors import UnsupportedFeature
from farm.record.exchange.export import RecordedPoints
from farm.record.exchange.parquet import write_parquet
from tests.record.entries import SQUARE, entry, failed, point


def test_a_table_has_inputs_outputs_and_origin(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    bad = entry(np.array([3.0, 1.0]), np.array([np.nan]))
    config = replace(point(4.0), config='{"mesh":2}')
    info = ModelInfo("square", SQUARE.inputs, (TensorInfo("x[0]", (1,)),))
    first = replace(point(1.0), config='{"mesh":1}')
    others = [replace(each, config='{"mesh":1}') for each in (failed(2.0), bad)]
    out = tmp_path / "out.parquet"
    assert write_parquet(RecordedPoints(info, [first, *others, config], []), out) == 4
    table = parquet.read_table(out)
    assert table.column_names == [
        *("x[0]", "x[1]", "mesh", "x[0]_", "status", "error", "run_time_s", "time"),
        *("worker", "client", "chain", "config"),
    ]
    columns = table.to_pydict()
    assert columns["x[0]"] == [1.0, 2.0, 3.0, 4.0]
    assert columns["mesh"] == [1.0, 1.0, 1.0, 2.0]
    assert columns["x[0]_"][:2] == [1.0, None]
    assert np.isnan(columns["x[0]_"][2])
    assert columns["status"] == ["finite", "failed", "not_finite", "finite"]
    assert columns["error"] == [None, "diverged", None, None]
    assert columns["chain"][0] == "chain 3"
    assert table.schema.metadata[b"farm_model_version"] == b"1"


def test_without_pyarrow_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnsupportedFeature, match=r'pip install "modelfarm\[parquet\]"'):
        write_parquet(RecordedPoints(SQUARE, [point(1.0)], []), tmp_path / "out.parquet")
