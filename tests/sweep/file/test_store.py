"""The store: outcomes reach the file, complete sweeps drop the journal, errors lose nothing."""

from __future__ import annotations

import errno
import os
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from farm.sweep.design.extension import longer_plan
from farm.sweep.errors import SweepError
from farm.sweep.file import layout
from farm.sweep.file import store as store_module
from farm.sweep.file.journal import COLUMNS, DoneRows, PointStatus, head_of
from farm.sweep.file.recovery import journal_of, lock_of
from farm.sweep.file.store import COMPLETE, Store
from farm.sweep.order.costs import extended, parse_cost, with_costs
from tests.sweep.samples import done, failed, plan_of, raising, values_of

PLAN = plan_of("random:20")


def status_in(path: Path) -> list[int]:
    with h5py.File(path) as file:
        for point in np.flatnonzero(file["status"][:] == PointStatus.DONE).tolist():
            assert file["out_0"][point].tolist() == values_of(PLAN, point)[:4].tolist()
        return [int(s) for s in file["status"][:]]


def fill(store: Store, points: range) -> None:
    for point in points:
        store.add(failed(point) if point % 7 == 5 else done(store.plan, point))


def filled(path: Path, points: range) -> Store:
    """Create a sweep with outcomes of these points."""
    store = Store.create(path, PLAN)
    fill(store, points)
    return store


def test_a_complete_sweep_leaves_one_file(path: Path) -> None:
    store = Store.create(path, PLAN)
    assert journal_of(path).exists()
    assert lock_of(path).exists()
    fill(store, range(20))
    store.close(COMPLETE, {"done": 17})
    assert os.listdir(path.parent) == ["s.h5"]
    assert status_in(path) == [2 if p % 7 == 5 else 1 for p in range(20)]
    with h5py.File(path) as file:
        assert file.attrs["state"] == COMPLETE
        assert file["summary"].attrs["done"] == 17
        assert file["failures/point"][:].tolist() == [5, 12, 19]
        assert file["sequence"][()] == 21


def test_an_interrupted_sweep_keeps_its_journal_and_goes_on(path: Path) -> None:
    store = filled(path, range(8))
    store.close("interrupted", {})
    assert sorted(os.listdir(path.parent)) == ["s.h5", "s.h5.journal"]
    assert status_in(path)[:9] == [1, 1, 1, 1, 1, 2, 1, 1, 0]
    store = Store.resume(path)
    assert store.known.count(PointStatus.DONE) == 7
    fill(store, range(8, 20))
    store.close(COMPLETE, {})
    assert os.listdir(path.parent) == ["s.h5"]
    assert status_in(path).count(0) == 0


def test_a_complete_sweep_can_be_opened_again_to_retry(path: Path) -> None:
    store = filled(path, range(20))
    store.close(COMPLETE, {})
    store = Store.resume(path)
    assert store.known.attempts[5] == 1
    store.add(done(PLAN, 5, attempt=2, copied=True))
    store.abandon()  # its new journal can rebuild everything
    path.unlink()
    Store.resume(path).close(COMPLETE, {})
    assert status_in(path) == [2 if p in (12, 19) else 1 for p in range(20)]
    with h5py.File(path) as file:
        assert file["attempts"][5] == 2
        assert np.flatnonzero(file["copied"][:]).tolist() == [5]
        assert file["failures/point"][:].tolist() == [5, 12, 19]


def test_a_file_of_another_layout_is_refused_and_left_as_it_is(path: Path) -> None:
    store = filled(path, range(4))
    store.close("interrupted", {})
    with h5py.File(path, "a") as file:
        file.attrs["farm_layout"] = "sweep/99"
        del file["copied"]
    before = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    assert sorted(before) == ["s.h5", "s.h5.journal"]
    with pytest.raises(SweepError, match="layout sweep/2 but of sweep/99: read it with"):
        Store.resume(path)
    assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == before


@pytest.mark.parametrize("count", [20, 8])
def test_a_sweep_that_was_only_opened_is_left_as_it_was(path: Path, count: int) -> None:
    store = filled(path, range(count))
    state = COMPLETE if count == 20 else "interrupted"
    store.close(state, {"work_s": 1.5})
    files = os.listdir(path.parent)
    Store.resume(path).leave()
    assert os.listdir(path.parent) == files
    with h5py.File(path) as file:
        assert (file.attrs["state"], file["summary"].attrs["work_s"]) == (state, 1.5)


def together(points: list[int], attempt: int = 1) -> DoneRows:
    rows = [done(PLAN, point, attempt=attempt) for point in points]
    heads = np.concatenate(list(map(head_of, rows)))
    return DoneRows(heads, np.array([values_of(PLAN, point) for point in points]))


@pytest.mark.parametrize("killed", [False, True])
def test_points_that_are_done_together_are_those_done_one_by_one(
    path: Path, tmp_path: Path, killed: bool
) -> None:
    points = [4, 17, 0, 9]
    one_by_one = tmp_path / "alone.h5"
    for file in (path, one_by_one):
        store = Store.create(file, PLAN)
        store.add(failed(9))
        if file == path:
            store.add(together(points, attempt=2))
        else:
            for point in points:
                store.add(done(PLAN, point, attempt=2))
        known = store.known
        if killed:  # the journal alone has all
            store.abandon()
            file.unlink()
            store = Store.resume(file)
        assert store.known.attempts[points].tolist() == [2] * 4
        assert np.array_equal(store.known.t_start, known.t_start, equal_nan=True)
        store.close("interrupted", {})
    journals = [journal_of(file).read_bytes() for file in (path, one_by_one)]
    assert journals[0] == journals[1]
    with h5py.File(path) as found, h5py.File(one_by_one) as expected:
        for name in ("out_0", "out_1", *COLUMNS):
            assert np.array_equal(found[name][:], expected[name][:], equal_nan=True), name
    assert status_in(path) == [int(p in points) for p in range(20)]


def test_points_that_are_done_together_are_rows_too() -> None:
    for row, point in zip(together([4, 0]), [4, 0], strict=True):
        expected = done(PLAN, point)
        assert row.values is not None
        assert row.values.tolist() == values_of(PLAN, point).tolist()
        for name in ("point", "status", "attempt", "worker", "t_start", "t_run", "copied"):
            assert getattr(row, name) == getattr(expected, name)


def test_rows_of_another_length_are_a_bug_of_the_caller(path: Path) -> None:
    store = Store.create(path, PLAN)
    rows = together([1, 2])
    for outcome in (DoneRows(rows.heads, rows.values[:, :3]), done(PLAN, 1, values=np.zeros(3))):
        with pytest.raises(ValueError, match="3 values, the plan has 5"):
            store.add(outcome)
    store.abandon()


def test_finished_points_have_their_last_outcome(path: Path) -> None:
    store = Store.create(path, PLAN)
    for row in (failed(3), done(PLAN, 9), failed(5), done(PLAN, 3, attempt=2)):
        store.add(row)
    store.add(failed(5, attempt=2))
    store.close("interrupted", {})
    store = Store.resume(path)
    rows = list(store.finished())
    store.close("interrupted", {})
    assert [(row.point, row.attempt) for row in rows] == [(5, 2), (3, 2), (9, 1)]
    assert rows[0].error == "ModelFailed: boom"
    assert [row.values.tolist() for row in rows[1:] if row.values is not None] == [
        values_of(PLAN, point).tolist() for point in (3, 9)
    ]


def test_workers_get_numbers_by_name(path: Path) -> None:
    store = Store.create(path, PLAN)
    assert [store.worker_id(name) for name in ("a/1", "b/1", "a/1")] == [0, 1, 0]
    assert store.worker_id("") == 2**32 - 1
    store.add(done(PLAN, 0, worker=1))
    store.close("interrupted", {})
    store = Store.resume(path)
    assert store.worker_id("b/1") == 1
    assert store.worker_id("c/1") == 2
    store.close(COMPLETE, {})
    with h5py.File(path) as file:
        assert [n.decode() for n in file["workers/name"]] == ["a/1", "b/1", "c/1"]
        assert file["workers/ended"][1] == 1.7e9 + 0.5


def test_nothing_is_overwritten(path: Path) -> None:
    Store.create(path, PLAN).close("interrupted", {})
    with pytest.raises(SweepError, match=r"s\.h5 exists.*resume=True"):
        Store.create(path, PLAN)
    path.unlink()
    with pytest.raises(SweepError, match=r"s\.h5\.journal exists"):
        Store.create(path, PLAN)
    assert not lock_of(path).exists()
    journal_of(path).unlink()
    with pytest.raises(SweepError, match="does not exist"):
        Store.resume(path)


def test_what_a_killed_process_began_is_in_nobody_s_way(path: Path) -> None:
    names = ["s.h5", "s.h5.journal", "s.h5.status.json"]
    left = [path.with_name(f"{name}.{'0a' * 8}.new") for name in names]
    others = [path.with_name(name) for name in ("s.h5.new", "s.h50.new", f"t.h5.{'0a' * 8}.new")]
    for each in (*left, *others):
        each.write_bytes(b"farm sweep journal 1\n")
    Store.create(path, PLAN).close("interrupted", {})
    assert not any(each.exists() for each in left)
    assert all(each.exists() for each in others), "they are not of this sweep"


def test_rows_are_in_the_journal_at_once_and_in_the_file_after_a_while(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "BATCH_S", 1e9)
    store = Store.create(path, PLAN)
    store.add(done(PLAN, 4))
    assert b"R" in journal_of(path).read_bytes()[-200:]
    assert store._file["status"][4] == 0
    monkeypatch.setattr(store_module, "BATCH_S", 0.0)
    store.commit_if_due()
    assert store._file["status"][4] == PointStatus.DONE
    store.abandon()


@pytest.mark.parametrize(
    ("limit", "value", "rows"), [("BATCH_ROWS", 5, 5), ("BATCH_BYTES", 100, 3)]
)
def test_a_full_batch_is_written_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, rows: int
) -> None:
    monkeypatch.setattr(store_module, limit, value)
    store = filled(path, range(rows))
    assert np.count_nonzero(store._file["status"][:]) == rows
    store.abandon()


@pytest.mark.parametrize("free", [10, 2 * 8 * 20 * (PLAN.row_size + 15)])
def test_too_little_room_for_file_and_journal_is_told_before_anything_is_made(
    path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    usage = shutil.disk_usage(path.parent)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(SweepError, match="MB are free"):
        Store.create(path, PLAN)
    assert os.listdir(path.parent) == []


def test_a_file_that_cannot_be_made_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: h5py.File, plan: object) -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        finally:
            raise RuntimeError("Slist already enabled?")  # of HDF5, which closes the file

    monkeypatch.setattr(layout, "create", full)
    with pytest.raises(SweepError, match=r"cannot be created.*No space"):
        Store.create(path, PLAN)
    assert os.listdir(path.parent) == []


def test_a_journal_that_cannot_be_written_loses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(path, range(3))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", raising(OSError(errno.ENOSPC, "No space left on device")))
        fill(store, range(3, 6))
        assert "No space left" in store.trouble
        store.commit()
        assert "No space left" in store.trouble
        assert store.known.count(PointStatus.DONE) == 5
    store.commit()
    assert store.trouble == ""
    assert np.count_nonzero(store._file["status"][:]) == 6
    store.close("interrupted", {})
    assert status_in(path)[:7] == [1, 1, 1, 1, 1, 2, 0]


def test_a_file_that_cannot_be_written_loses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.create(path, PLAN)
    with monkeypatch.context() as patch:
        error = OSError(errno.EIO, "Input/output error")
        patch.setattr(layout, "write_outcomes", raising(error))
        fill(store, range(8))
        store.commit()
        assert "Input/output error" in store.trouble
    store.commit()
    assert store.trouble == ""
    store.close("interrupted", {})
    assert status_in(path)[:9] == [1, 1, 1, 1, 1, 2, 1, 1, 0]
    with h5py.File(path) as file:
        assert file["failures/point"][:].tolist() == [5]


def test_closing_in_trouble_says_so_and_keeps_the_journal(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(path, range(3))
    with monkeypatch.context() as patch:
        error = OSError(errno.ENOSPC, "No space left on device")
        patch.setattr(layout, "write_outcomes", raising(error))
        with pytest.raises(SweepError, match=r"No space left.*the same farm.sweep call"):
            store.close(COMPLETE, {})
    assert journal_of(path).exists()
    assert not lock_of(path).exists()
    Store.resume(path).close("interrupted", {})
    assert status_in(path)[:4] == [1, 1, 1, 0]


def test_a_writer_that_lost_its_lock_writes_no_more(path: Path) -> None:
    store = filled(path, range(3))
    lock_of(path).write_text('{"token": "another", "pid": 1, "host": "elsewhere"}')
    store._lock._last = 0.0
    size = journal_of(path).stat().st_size
    with pytest.raises(SweepError, match=r"process 1 on elsewhere.*the sweep continues there"):
        store.add(done(PLAN, 3))
    assert journal_of(path).stat().st_size == size
    store.abandon()
    assert lock_of(path).exists()


@pytest.mark.parametrize("state", [COMPLETE, "interrupted"])
def test_a_sweep_grows(path: Path, state: str) -> None:
    plan = plan_of("sobol:8")
    store = Store.create(path, plan)
    fill(store, range(8))
    store.close(state, {})
    store = Store.resume(path)
    store.extend(longer_plan(plan, 20))
    assert np.count_nonzero(store.known.status == PointStatus.PENDING) == 12
    store.add(done(store.plan, 17))
    store.abandon()
    store = Store.resume(path)
    assert store.plan.size == 20
    assert np.flatnonzero(store.known.status).tolist() == [*range(8), 17]
    for point in sorted({*range(8, 20)} - {17}):
        store.add(done(store.plan, point))
    store.close(COMPLETE, {})
    with h5py.File(path) as file:
        assert file["out_0"][17].tolist() == values_of(plan, 17)[:4].tolist()
        assert np.array_equal(file["theta"][:8], plan.theta)


def test_a_compressed_sweep_is_compressed_when_it_is_complete(path: Path) -> None:
    plan = plan_of("random:400", gzip=True)
    store = Store.create(path, plan)
    fill(store, range(200))
    store.close("interrupted", {})
    with h5py.File(path) as file:
        assert file["out_0"].compression is None
    store = Store.resume(path)
    fill(store, range(200, 400))
    large = path.stat().st_size  # theta is random and hardly shrinks
    store.close(COMPLETE, {"done": 1})
    assert path.stat().st_size < large
    with h5py.File(path) as file:
        assert file["out_0"].compression == "gzip"
        assert file["out_0"][234].tolist() == values_of(plan, 234)[:4].tolist()
        assert file["failures/point"][:3].tolist() == [5, 12, 19]
        assert file["summary"].attrs["done"] == 1
        assert file.attrs["state"] == COMPLETE
    store = Store.resume(path)
    assert store._file["out_0"].compression is None
    store.add(done(plan, 5, attempt=2))
    store.close(COMPLETE, {})
    with h5py.File(path) as file:
        assert file["out_0"].compression == "gzip"
        assert file["out_0"][5].tolist() == values_of(plan, 5)[:4].tolist()
        assert int(np.count_nonzero(file["status"][:] == PointStatus.DONE)) == 344


def test_the_file_never_holds_what_the_journal_may_lose(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a machine dies, only the synced part of the journal is left. It must contain at least
    the rows of the file; otherwise the file would have rows that no journal knows."""
    monkeypatch.setattr(store_module, "BATCH_S", 0.0)
    store = Store.create(path, PLAN)
    journal = os.stat(journal_of(path)).st_ino
    safe: list[int] = [0]
    fsync, write_points = os.fsync, layout.write_points

    def watched(fd: int) -> None:
        fsync(fd)
        if os.fstat(fd).st_ino == journal:
            safe[0] = os.fstat(fd).st_size

    def checked(*arguments: Any) -> None:
        assert safe[0] == journal_of(path).stat().st_size
        write_points(*arguments)

    monkeypatch.setattr(os, "fsync", watched)
    monkeypatch.setattr(layout, "write_points", checked)
    for point in range(3):
        store.add(done(PLAN, point))
        store.commit()
    store.add(done(PLAN, 3))
    store.close("interrupted", {})
    assert safe[0] == journal_of(path).stat().st_size


def test_costs_survive_a_kill_and_an_extension_that_drops_them(path: Path) -> None:
    plan = replace(PLAN, cost=np.arange(20.0), cost_rule="numbers:given")
    store = Store.create(path, plan)
    fill(store, range(5))
    store.abandon()
    path.unlink()
    store = Store.resume(path)
    assert store.plan.cost is not None
    assert store.plan.cost.tolist() == list(range(20))
    store.extend(extended(longer_plan(store.plan, 30)))
    store.close("interrupted", {})
    store = Store.resume(path)
    assert (store.plan.size, store.plan.cost) == (30, None)
    store.close("interrupted", {})


def test_an_extended_sweep_stores_the_costs_of_all_points(path: Path) -> None:
    store = Store.create(path, with_costs(PLAN, parse_cost("load")))
    store.extend(extended(longer_plan(store.plan, 30)))
    store.close("interrupted", {})
    with h5py.File(path) as file:
        assert file["cost"][:] == pytest.approx(file["theta"][:, 3])
        assert len(file["cost"]) == 30


@pytest.mark.slow
def test_a_large_sweep_takes_memory_for_few_copies_of_its_plan(path: Path) -> None:
    plan = plan_of("random:65536")
    assert plan.unit is not None
    size = plan.theta.nbytes + plan.unit.nbytes
    heads = np.repeat(head_of(done(plan, 0)), 512)
    tracemalloc.start()
    store = Store.create(path, plan)
    created = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    for start in range(0, plan.size, 512):
        heads["point"] = np.arange(start, start + 512)
        store.add(DoneRows(heads.copy(), np.ones((512, plan.row_size))))
    tracemalloc.start()
    store.close(COMPLETE, {})
    verified = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Two copies, in the journal's record and in its frame; and the one that is read back, with
    # numbers of records and what a megabyte of records takes.
    assert created / size < 2.3
    assert verified / size < 2.3
