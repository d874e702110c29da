"""Reading sweeps in every state: running, killed, closed; copies, tables, failures."""

from __future__ import annotations

import csv
import dataclasses
import fcntl
import io
import json
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr

from farm.call import ModelInfo, Operation, TensorInfo
from farm.storage import hdf5
from farm.sweep.design.tables import read_table
from farm.sweep.errors import SweepError
from farm.sweep.file import reading as read_module
from farm.sweep.file.journal import PointStatus
from farm.sweep.file.progress import Progress, read_status, status_of, write_status
from farm.sweep.file.reading import (
    SILENT,
    failures_of,
    known_of,
    load_xarray,
    open_sweep,
    progress_of,
    snapshot,
    write_csv,
    write_netcdf,
)
from farm.sweep.file.recovery import journal_of, lock_of
from farm.sweep.file.store import COMPLETE, Store
from farm.sweep.space.parameters import Category
from tests.sweep.samples import BEAM_WITH_UNITS, done, failed, plan_of, stored, values_of

PLAN = plan_of("random:6")
STATES = ["running", "killed", "interrupted", "complete"]


def sweep_in(state: str, path: Path) -> Store | None:
    """Write a sweep with points 0 to 2 done and 3 failed; return the store if it is open."""
    store = Store.create(path, PLAN)
    worker = store.worker_id("node/1")
    for point in range(3):
        store.add(done(PLAN, point, worker=worker))
    store.add(failed(3, worker=worker))
    if state == "running":
        return store  # the file has none of the outcomes yet
    if state == "killed":
        store.abandon()
    else:
        store.close(COMPLETE if state == "complete" else state, {})
    return None


def held_by_a_killed_process(path: Path) -> None:
    """Leave the lock of a process of this machine that was killed."""
    hold = "import os, pathlib, signal, sys; from farm.storage.lock import Lock; "
    hold += "Lock(pathlib.Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    subprocess.run([sys.executable, "-c", hold, str(lock_of(path))], check=False)
    assert lock_of(path).exists()


@pytest.fixture(params=STATES)
def sweep(request: pytest.FixtureRequest, tmp_path: Path) -> object:
    store = sweep_in(request.param, tmp_path / "s.h5")
    yield tmp_path / "s.h5"
    if store is not None:
        store.abandon()


def test_what_is_read_is_the_same_in_every_state(sweep: Path) -> None:
    """What is known, the file, the failures with worker and parameters, and a closed copy."""
    there = sweep.read_bytes()
    plan, known = known_of(sweep)
    assert plan.to_json() == PLAN.to_json()
    assert known.status.tolist() == [1, 1, 1, 2, 0, 0]
    assert [w.name for w in known.workers] == ["node/1"]
    with open_sweep(sweep) as file:
        assert file["status"][:].tolist() == [1, 1, 1, 2, 0, 0]
        assert file["out_0"][2].tolist() == values_of(PLAN, 2)[:4].tolist()
        assert file["failures/error"][:].tolist() == [b"ModelFailed: boom"]
    (row,) = failures_of(sweep)
    assert row["point"] == 3
    assert (row["attempt"], row["status"], row["worker"]) == (1, "failed", "node/1")
    assert (row["error"], row["traceback"]) == ("ModelFailed: boom", "line 1")
    assert row["load"] == PLAN.theta[3, 3]
    target = sweep.with_name("copy.h5")
    snapshot(sweep, target)
    with h5py.File(target) as file:
        assert file["status"][:].tolist() == [1, 1, 1, 2, 0, 0]
    with pytest.raises(SweepError, match="exists"):
        snapshot(sweep, target)
    with xr.open_dataset(target, engine="netcdf4") as data:
        assert data.sizes["point"] == 6
    assert sweep.read_bytes() == there


def test_looking_keeps_no_writer_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check whether the journal is newer reads the file without its lock."""
    sweep_in("killed", path)
    opened: list[object] = []
    real = hdf5.CheckedFile

    def spy(path: Path, fd: int, mode: str, locking: bool | str) -> h5py.File:
        opened.append(locking)
        return real(path, fd, mode, locking)

    monkeypatch.setattr(hdf5, "CheckedFile", spy)
    known_of(path)
    assert opened == [False]


def test_retried_points_are_no_failures_any_more(path: Path) -> None:
    stored(path, PLAN, failed(1), failed(2), failed(2, attempt=2), done(PLAN, 1, attempt=2))
    assert [(r["point"], r["attempt"]) for r in failures_of(path)] == [(2, 2)]
    every = [(r["point"], r["attempt"]) for r in failures_of(path, all_attempts=True)]
    assert every == [(1, 1), (2, 1), (2, 2)]


def test_csv_has_every_digit(sweep: Path) -> None:
    text = io.StringIO()
    assert write_csv(sweep, text) == 6
    rows = list(csv.DictReader(io.StringIO(text.getvalue())))
    names = ["point", "E[0]", "E[1]", "E[2]", "load", "u[0]", "u[1]", "u[2]", "u[3]", "mass"]
    assert list(rows[0]) == [*names, "status", "attempts", "t_start", "t_run", "t_queue"]
    for point, row in enumerate(rows):
        assert [float(row[n]) for n in names[1:5]] == PLAN.theta[point].tolist()
        assert row["point"] == str(point)
    assert [float(rows[2][n]) for n in names[5:]] == values_of(PLAN, 2).tolist()
    assert rows[4]["mass"] == rows[4]["t_run"] == ""
    assert [row["status"] for row in rows] == ["done"] * 3 + ["failed"] + ["pending"] * 2


def test_long_tables_are_written_in_pieces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_module, "EXPORT_ROWS", 4)
    sweep_in("complete", path)
    text = io.StringIO()
    write_csv(path, text)
    assert [line.split(",")[0] for line in text.getvalue().splitlines()[1:]] == list("012345")


def test_xarray_has_names_and_shapes(path: Path, tmp_path: Path) -> None:
    info = ModelInfo(
        "plate",
        (TensorInfo("k", ()), TensorInfo("x", (2,))),
        (TensorInfo("field", (2, 3)), TensorInfo("k", (1,))),
        frozenset({Operation.EVALUATE, Operation.GRADIENT}),
    )
    plan = plan_of("random:4", {"k": "0:1", "x": "0:1"}, info=info, gradients=["field"])
    stored(path, plan, *[done(plan, point) for point in range(3)])
    data = load_xarray(path)
    assert data.field.dims == ("point", "field_0", "field_1")
    assert data.field.values[1].ravel().tolist() == values_of(plan, 1)[:6].tolist()
    assert np.all(np.isnan(data.field.values[3]))
    assert data.k.dims == ("point",)
    assert data.theta_k.values.tolist() == plan.theta[:, 0].tolist()
    assert data["x[1]"].values.tolist() == plan.theta[:, 2].tolist()
    assert data.d_field_d_x.dims == ("point", "field_0", "field_1", "x_0")
    assert data.attrs["model"] == "plate"
    write_netcdf(path, tmp_path / "out.nc")
    with xr.open_dataset(tmp_path / "out.nc", engine="netcdf4") as read:
        assert np.array_equal(read.field.values, data.field.values, equal_nan=True)


@pytest.mark.parametrize("engine", [None, "netcdf4"])
def test_units_and_descriptions_are_those_of_cf(path: Path, engine: str | None) -> None:
    plan = plan_of(
        "random:2",
        {"E": "1:2", "load": "0:1", "mesh": "int:1:4"},
        info=BEAM_WITH_UNITS,
        gradients=["u[1]"],
    )
    stored(path, plan)
    data = load_xarray(path)
    if engine is not None:
        write_netcdf(path, path.with_name("out.nc"))
        data = xr.load_dataset(path.with_name("out.nc"), engine=engine)
    modulus = {"units": "Pa", "long_name": "Young's modulus of each layer"}
    expected: dict[str, dict[str, str]] = {
        **{"E[0]": modulus, "E[2]": modulus, "load": {"long_name": "load"}, "mesh": {}},
        "u": {"units": "m", "long_name": "deflection"},
        "mass": {"units": "kg", "long_name": "mass"},
        "d_u_d_E": {"units": "(m)/(Pa)", "long_name": "derivative of u with respect to E"},
        "d_u_d_load": {"long_name": "derivative of u with respect to load"},
    }
    for name, attrs in expected.items():
        found = {k: v for k, v in data[name].attrs.items() if k in ("units", "long_name")}
        assert found == attrs, name
    assert data.attrs["Conventions"].startswith("CF-")


def test_missing_xarray_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(SweepError, match=r"modelfarm\[xarray\]"):
        load_xarray(path)


def test_progress_is_what_the_process_says(path: Path) -> None:
    store = sweep_in("running", path)
    assert store is not None
    told = Progress("running", "t", 6, done=2, time=time.time())
    write_status(status_of(path), told)
    assert progress_of(path) == told
    store.abandon()


def test_a_process_that_was_killed_is_known_at_once(path: Path) -> None:
    sweep_in("killed", path)
    held_by_a_killed_process(path)
    for told in (None, Progress("running", "t", 6, eta_s=9.0, time=time.time(), pid=7)):
        if told is not None:
            write_status(status_of(path), told)
        progress = progress_of(path)
        assert (progress.state, progress.done, progress.eta_s) == ("interrupted", 3, None)


@pytest.mark.parametrize("age_s", [None, 60])
def test_a_sweep_that_cannot_write_its_status_is_running(path: Path, age_s: int | None) -> None:
    """As on a full disk, from its start or since a minute."""
    store = sweep_in("running", path)
    assert store is not None
    if age_s is not None:
        write_status(status_of(path), Progress("running", "t", 6, time=time.time() - age_s))
    progress = progress_of(path)
    assert (progress.state, progress.done, progress.failed) == ("running", 3, 1)
    store.abandon()


def test_a_process_that_says_nothing_is_silent_and_its_files_are_read(path: Path) -> None:
    sweep_in("killed", path)
    lock_of(path).write_text(json.dumps({"token": "t", "machine": "other", "host": "n", "pid": 7}))
    told = Progress("running", "t", 6, time=time.time() - 60, host="node", pid=7)
    write_status(status_of(path), told)
    progress = progress_of(path)
    assert (progress.state, progress.done, progress.failed) == (SILENT, 3, 1)
    assert (progress.host, progress.pid, progress.time) == ("node", 7, told.time)
    write_status(status_of(path), dataclasses.replace(told, state="interrupted"))
    assert progress_of(path).state == "interrupted"


def test_without_a_status_file_the_file_tells(path: Path) -> None:
    sweep_in("complete", path)
    assert read_status(status_of(path)) is None
    progress = progress_of(path)
    assert (progress.state, progress.done) == (COMPLETE, 3)


def test_what_is_no_sweep_is_told(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="does not exist"):
        known_of(tmp_path / "s.h5")
    (tmp_path / "s.h5").write_text("text")
    with pytest.raises(SweepError, match="cannot be read"):
        progress_of(tmp_path / "s.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1
    with pytest.raises(SweepError, match="not a sweep file"):
        known_of(tmp_path / "other.h5")


def test_a_writer_that_ends_in_the_moment_of_a_look_does_no_harm(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep_in("complete", path)  # its journal is gone
    running = [True]  # what the first check saw, although it has changed since
    monkeypatch.setattr(read_module, "_journal_is_newer", lambda p: bool(running and running.pop()))
    assert known_of(path)[1].status.tolist() == [1, 1, 1, 2, 0, 0]
    running.append(True)
    with open_sweep(path) as file:
        assert file["status"][:].tolist() == [1, 1, 1, 2, 0, 0]
    assert not running


def test_a_writer_that_begins_in_the_moment_of_a_look_does_no_harm(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep_in("interrupted", path)
    real, looks = read_module._journal_is_newer, []
    with path.open("rb") as writer:

        def asked(path: Path) -> bool:
            looks.append(path)
            if len(looks) == 3:
                fcntl.flock(writer, fcntl.LOCK_UN)
            return real(path)

        monkeypatch.setattr(read_module, "_journal_is_newer", asked)
        fcntl.flock(writer, fcntl.LOCK_EX)  # HDF5 uses the same lock
        assert known_of(path)[1].status.tolist() == [1, 1, 1, 2, 0, 0]
    assert len(looks) == 3


def test_a_journal_that_is_damaged_at_its_beginning_does_not_hide_the_file(path: Path) -> None:
    store = Store.create(path, PLAN)
    store.add(done(PLAN, 2))
    store.commit()
    store.abandon()
    journal = journal_of(path)
    journal.write_bytes(journal.read_bytes()[:40])
    plan, known = known_of(path)
    assert (plan.run_id, known.count(PointStatus.DONE)) == (PLAN.run_id, 1)
    path.unlink()
    with pytest.raises(SweepError, match="damaged at its beginning"):
        known_of(path)


def test_words_and_inactive_parameters_in_every_way_of_reading(path: Path, tmp_path: Path) -> None:
    params = {"load": "0:1", "solver": "euler,rk", "order": "1,2", "kind": "a,b"}
    when = {"order": 'solver == "rk"', "kind": "order == 2"}
    plan = plan_of("grid:1", params, fixes={"E": 1}, when=when)
    stored(path, plan, *map(failed, range(plan.size)))
    out = io.StringIO()
    write_csv(path, out)
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    cells = [("euler", "", ""), ("rk", "1.0", ""), ("rk", "2.0", "a"), ("rk", "2.0", "b")]
    assert [(row["solver"], row["order"], row["kind"]) for row in rows] == cells
    data = load_xarray(path)
    assert data.solver.values.tolist() == ["euler", "rk", "rk", "rk"]
    assert data.kind.values.tolist() == ["", "", "a", "b"]
    np.testing.assert_array_equal(data.order, [np.nan, 1, 2, 2])
    write_netcdf(path, tmp_path / "s.nc")
    with xr.open_dataset(tmp_path / "s.nc") as there:
        assert there.kind.values.tolist() == ["", "", "a", "b"]
    found = [(row["solver"], row["order"], row["kind"]) for row in failures_of(path)]
    assert found == [("euler", None, None), ("rk", 1, None), ("rk", 2, "a"), ("rk", 2, "b")]
    table = read_table(str(path), gaps=True)
    assert table.words == {1: Category(("euler", "rk")), 3: Category(("a", "b"))}
    np.testing.assert_array_equal(table.rows, plan.theta)
