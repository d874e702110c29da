"""A record as a sweep file: what reads sweeps reads it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from farm.call import Call, Derivative, ModelInfo, Operation, TensorInfo
from farm.errors import InvalidInput
from farm.record.entry import Entry, Status, status_of
from farm.record.exchange.export import Selection, points_of, table_of, write_sweep
from farm.record.key import keys_of
from farm.sweep.design.tables import read_table
from farm.sweep.file.reading import failures_of, load_xarray, progress_of
from farm.sweep.report.report import write_report
from tests.record.entries import SQUARE, entry, failed, point, written

EVERYTHING = Selection()


@pytest.mark.slow
def test_every_reader_of_sweeps_reads_it(path: Path, tmp_path: Path) -> None:
    written(path, point(1.0), failed(2.0), point(3.0))
    out = tmp_path / "out.h5"
    assert write_sweep(points_of(path, EVERYTHING), out, {"record": "a.record"}) == 3
    with h5py.File(out) as file:
        assert file["theta"][:].tolist() == [[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]]
        assert file["out_0"][:, 0].tolist()[::2] == [1.0, 3.0]
        assert file["t_run"][0] == 0.5
        assert file["provenance"].attrs["model_version"] == "1"
        assert file.attrs["title"] == "square"
    assert (progress_of(out).done, progress_of(out).failed) == (2, 1)
    assert failures_of(out)[0]["error"] == "diverged"
    dataset = load_xarray(out)
    assert dataset["x[0]"].values.tolist() == [1.0, 2.0, 3.0]
    assert dataset["y"].values.reshape(-1).tolist()[::2] == [1.0, 3.0]
    table = read_table(str(out))
    assert table.names == ("x[0]", "x[1]")
    assert table.rows[:, 0].tolist() == [1.0, 2.0, 3.0]
    write_report(out, tmp_path / "out.html")


def test_a_point_is_there_once_with_its_best_outcome(path: Path) -> None:
    written(path, point(1.0), failed(1.0), failed(2.0), replace(point(2.0), run_time_s=9.0))
    entries = points_of(path, EVERYTHING).entries
    assert [(e.status, e.run_time_s) for e in entries] == [(0, 0.5), (0, 9.0)]


def with_gradient(k: float, value: float, gradient: float = 2.0) -> Entry:
    """An answer to value_and_gradient at (k, 1)."""
    outputs = np.array([value]), np.full(2, gradient)
    wrt = Derivative(0, 0, sens=np.ones(1))
    asked = Call("square", Operation.VALUE_AND_GRADIENT, point(k).inputs, derivative=wrt)
    return replace(
        point(k),
        key=keys_of(asked, SQUARE, "1")[0],
        operation=asked.operation,
        derivative=wrt,
        outputs=outputs,
        status=status_of(outputs),
    )


def test_values_that_came_with_a_gradient_are_points(path: Path, tmp_path: Path) -> None:
    lost = replace(with_gradient(5.0, 0.0), status=Status.FAILED, outputs=(), error=("E", "m", "d"))
    written(
        path, point(1.0), with_gradient(1.0, 1.0), with_gradient(3.0, 7.0, gradient=np.nan), lost
    )
    points = points_of(path, EVERYTHING)
    assert [tensor.name for tensor in points.info.outputs] == ["y"]
    assert write_sweep(points, tmp_path / "out.h5", {}) == 3
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["theta"][:, 0].tolist() == [1.0, 3.0, 5.0]
        assert file["out_0"][:2, 0].tolist() == [1.0, 7.0]
    assert [entry.status for entry in points.entries] == [0, 0, Status.FAILED]


def test_several_models_or_versions_need_a_choice(path: Path) -> None:
    other = entry(np.ones(2), np.ones(1), version="2")
    written(path, point(1.0), other, replace(point(5.0), key=b"k" * 16, model="cube"))
    with pytest.raises(InvalidInput, match="several models: 'cube', 'square'; choose one with"):
        points_of(path, EVERYTHING)
    with pytest.raises(InvalidInput, match="several versions: '1', '2'; choose one with version="):
        points_of(path, Selection("square"))
    assert len(points_of(path, Selection("square", "2")).entries) == 1
    with pytest.raises(InvalidInput, match="holds no such evaluation; see farm record status"):
        points_of(path, Selection("nothing"))


def with_config(k: float, config: str) -> Entry:
    return replace(point(k), config=config, key=f"{k} {config}".encode().ljust(16)[:16])


def test_config_entries_that_differ_are_columns(path: Path) -> None:
    configs = ['{"a":1,"mesh":2}', '{"a":1,"mesh":4}']
    written(path, *(with_config(k, config) for k, config in enumerate(configs)))
    table = table_of(points_of(path, EVERYTHING))
    assert [p.name for p in table.parameters] == ["x[0]", "x[1]", "mesh"]
    assert table.parameters[2].whole
    assert table.theta.tolist() == [[0.0, 1.0, 2.0], [1.0, 1.0, 4.0]]
    assert table.config == {"a": 1}
    assert len(points_of(path, Selection(config={"mesh": 4})).entries) == 1


def test_config_entries_that_are_no_numbers_need_a_choice(path: Path) -> None:
    written(path, with_config(1.0, '{"solver":"lu"}'), with_config(2.0, "{}"))
    with pytest.raises(InvalidInput, match=r"'solver' differs between points.*such as \"lu\""):
        table_of(points_of(path, Selection()))
    chosen = points_of(path, Selection(config={"solver": "lu"}))
    assert table_of(chosen).config == {"solver": "lu"}


def test_points_of_several_shapes_need_a_choice(path: Path) -> None:
    written(path, point(1.0), entry(np.ones(3), np.ones(1)))
    with pytest.raises(InvalidInput, match=r"points differ in shape.*config="):
        table_of(points_of(path, EVERYTHING))


def test_texts_and_complex_numbers_are_refused(path: Path) -> None:
    texts = np.array([b"a"], dtype=object)
    info = ModelInfo("square", (TensorInfo("x", (1,), "bytes"),), SQUARE.outputs, version="1")
    written(path, entry(texts, np.ones(1)), info=info)
    with pytest.raises(InvalidInput, match="'x' is bytes; a sweep file holds real numbers"):
        table_of(points_of(path, EVERYTHING))


def test_without_a_description_tensors_are_numbered(path: Path) -> None:
    written(path, point(1.0), info=None)
    info = points_of(path, EVERYTHING).info
    assert [t.name for t in (*info.inputs, *info.outputs)] == ["input_0", "output_0"]
