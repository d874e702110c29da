"""Texts of a sweep file have one length, so that programs without other texts read them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from farm.sweep.file import layout
from farm.sweep.file.journal import AnsweringWorker
from farm.sweep.file.point_columns import PointColumns
from farm.sweep.file.reading import known_of
from farm.sweep.file.store import COMPLETE, Store
from farm.sweep.file.text_tables import (
    CUT,
    LONGEST_TEXT,
    create_texts,
    read_texts,
    storable,
    write_tables,
)
from tests.support.shown_blocks import text_of
from tests.sweep.samples import BEAM_WITH_UNITS, done, failed, plan_of

PLAN = plan_of("random:5", info=BEAM_WITH_UNITS, gradients=["u[1]"])


@pytest.fixture
def path(path: Path) -> Path:
    """Write a complete sweep with a failure and texts of several lengths and languages."""
    store = Store.create(path, PLAN)
    worker = store.worker_id("node1/7")
    store.add(failed(2, worker=worker, error="böse", traceback="line 1\n" * 50))
    for point in (0, 1, 3):
        store.add(done(PLAN, point, worker=worker))
    store.add(failed(4, error="", traceback=""))
    store.close(COMPLETE, {"done": 3})
    return path


@given(st.lists(st.text(max_size=20), max_size=5))
def test_texts_read_back(texts: list[str]) -> None:
    with _in_memory() as file:
        assert read_texts(create_texts(file, "t", texts)) == [storable(text) for text in texts]


def _in_memory() -> h5py.File:
    return h5py.File("t.h5", "w", driver="core", backing_store=False)


@pytest.mark.parametrize("letter", ["x", "é", "漢", "🜨"])
def test_a_long_text_loses_its_middle(letter: str) -> None:
    with _in_memory() as file:
        (kept,) = read_texts(create_texts(file, "t", [f"begin{letter * LONGEST_TEXT}end"]))
    begin, end = kept.split(CUT)
    assert begin.startswith(f"begin{letter}")
    assert end.endswith(f"{letter}end")
    assert LONGEST_TEXT - 8 <= len(kept.encode()) <= LONGEST_TEXT
    assert set(kept) <= set(f"begin{letter}end{CUT}")


def test_no_text_has_a_variable_length(path: Path) -> None:
    """Octave and others have no such texts. Attributes may: Octave does not read them."""
    with h5py.File(path) as file:
        types: dict[str, np.dtype[np.generic]] = {}
        file.visititems(
            lambda name, item: types.update({name: item.dtype}) if hasattr(item, "dtype") else None
        )
        texts = {name for name, dtype in types.items() if dtype.kind == "S"}
        ascii_only = {file[name].id.get_type().get_cset() for name in texts}
    assert {dtype.kind for dtype in types.values()} == set("iufS")
    assert texts >= {"param", "param_units", "failures/error", "workers/name", "workers/gpus"}
    assert ascii_only == {h5py.h5t.CSET_ASCII}  # no program converts the other to it


def test_xarray_reads_the_texts(path: Path) -> None:
    with xr.open_dataset(path, engine="netcdf4", group="failures") as data:
        assert data["error"].values.tolist() == ["böse", ""]
    with xr.open_dataset(path, engine="h5netcdf", group="failures") as data:
        assert data["error"].str.decode("utf-8").values.tolist() == ["böse", ""]
    with xr.open_dataset(path, engine="netcdf4") as data:
        assert data["param_units"].values.tolist() == ["Pa"] * 3 + [""]
        assert data["param_units"].dims == ("param",)
        assert data["out_0"].attrs["units"] == "m"


def test_tables_are_replaced_by_longer_texts(path: Path) -> None:
    plan, known = known_of(path)
    known.add(failed(1, error="a longer one, at last", traceback="x" * 1000))
    with h5py.File(path, "r+") as file:
        for _ in range(2):
            write_tables(file, known)
        read = layout.read_known(file)
        assert [row.error for row in read.failures] == ["böse", "", "a longer one, at last"]
        assert [len(row.traceback) for row in read.failures] == [350, 0, 1000]
        assert read.workers == known.workers
        assert layout.read_plan(file).to_json() == plan.to_json()


def test_a_table_may_be_empty() -> None:
    with _in_memory() as file:
        write_tables(file, PointColumns.nothing(3))
        assert len(file["failures/error"]) == len(file["workers/name"]) == 0
        known = PointColumns.nothing(3)
        known.add(AnsweringWorker(0, "a/1", 1.0))
        write_tables(file, known)
        assert read_texts(file["workers/host"]) == ["a"]


@pytest.mark.slow
def test_octave_loads_it(path: Path) -> None:
    with h5py.File(path) as file:
        sequence = int(file["sequence"][()])
    page = text_of("docs/sweeps.md")
    (shown,) = re.findall(r"```octave\n(.*?)```", page, re.DOTALL)
    program = (
        shown.replace("beam.h5", str(path))
        + f"""
        assert(size(theta), [5 4]);
        assert(u(3, 4), 3.003);
        assert(names, {{"E[0]"; "E[1]"; "E[2]"; "load"}});
        assert(numel(errors), 2);
        assert(size(s.theta), [4 5]);
        assert(s.theta(:, 3)', [{" ".join(map(repr, PLAN.theta[2].tolist()))}]);
        assert(s.status(:)', uint8([1 1 2 1 2]));
        assert(size(s.grad_0_0), [3 4 5]);
        assert(strtrim(s.param(4, :)), "load");
        assert(strtrim(s.param_units(1, :)), "Pa");
        assert(regexprep(s.failures.error(1, :), "\\\\0", ""), "böse");
        assert(strtrim(s.workers.name), "node1/7");
        assert(s.sequence, uint64({sequence}));
    """
    )
    if shutil.which("octave") is None:
        pytest.skip("octave is not installed")
    command = ["octave", "--norc", "--no-gui", "--quiet", "--eval", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "HDF5-DIAG" not in done.stderr
