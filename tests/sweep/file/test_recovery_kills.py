"""A process killed between any two of its writes leaves a file that opens, with all its rows."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr

from farm.storage import hdf5
from farm.sweep.design.extension import longer_plan
from farm.sweep.file import layout, recovery
from farm.sweep.file import store as store_module
from farm.sweep.file.journal import PointStatus
from farm.sweep.file.store import COMPLETE, Store
from tests.sweep.samples import done, failed, plan_of, values_of

PLAN = plan_of("sobol:32")
LONGER = longer_plan(PLAN, 64)


class RecordedFile(io.RawIOBase):
    """A file that keeps its content after each write, as a kill would leave it."""

    def __init__(self, path: Path, opened: contextlib.ExitStack) -> None:
        super().__init__()
        self._file = opened.enter_context(path.open("r+b", buffering=0))
        self._path = path
        self.states = [path.read_bytes()]

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        return self._file.readinto(buffer)

    def write(self, content: Any) -> int:
        count = self._file.write(content)
        self.states.append(self._path.read_bytes())
        return count

    def truncate(self, size: int | None = None) -> int:
        count = self._file.truncate(size)
        self.states.append(self._path.read_bytes())
        return count


@pytest.fixture
def recorded(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RecordedFile]]:
    """All sessions of writing to `path`."""
    opened = contextlib.ExitStack()
    sessions: list[RecordedFile] = []

    def open_file(file: Path, mode: str) -> h5py.File:
        if mode == "r" or file.resolve() != path.resolve():
            return hdf5.open_file(file, mode)
        sessions.append(RecordedFile(file, opened))
        return h5py.File(sessions[-1], "r+")

    monkeypatch.setattr(store_module, "open_file", open_file)
    monkeypatch.setattr(recovery, "open_file", open_file)
    with opened:
        yield sessions


def fill(store: Store, points: range) -> None:
    for point in points:
        worker = store.worker_id(f"w{point % 3}")
        store.add(failed(point) if point % 7 == 5 else done(store.plan, point, worker=worker))


def check(content: bytes, folder: Path) -> None:
    """Read the file as h5py's and xarray's users do, and as `--resume` does."""
    copy = folder / "copy.h5"
    copy.write_bytes(content)
    with h5py.File(copy) as file:
        assert file.attrs["state"] in ("running", "interrupted", COMPLETE)
        plan, known = layout.read_plan(file), layout.read_known(file)
        for point in np.flatnonzero(known.status == PointStatus.DONE).tolist():
            assert file["out_0"][point].tolist() == values_of(plan, point)[:4].tolist()
        dict(file["summary"].attrs)
    with xr.open_dataset(copy, engine="h5netcdf") as data:
        assert data.sizes["point"] == plan.size


def created(path: Path) -> None:
    store = Store.create(path, PLAN)
    fill(store, range(10))
    store.commit()
    store.abandon()


def interrupted(path: Path) -> None:
    store = Store.create(path, PLAN)
    fill(store, range(10))
    store.close("interrupted", {"work_s": 1.5})


def resumed_after_a_kill(path: Path) -> None:
    created(path)
    Store.resume(path).abandon()


def resumed_and_finished(path: Path) -> None:
    interrupted(path)
    store = Store.resume(path)
    fill(store, range(10, PLAN.size))
    store.close(COMPLETE, {"work_s": 3.0, "by": "farm"})


def extended(path: Path) -> None:
    resumed_and_finished(path)
    store = Store.resume(path)
    store.extend(LONGER)
    fill(store, range(PLAN.size, LONGER.size))
    store.close(COMPLETE, {"work_s": 6.0})


@pytest.mark.slow
@pytest.mark.parametrize(
    "sweep",
    [
        created,
        interrupted,
        resumed_after_a_kill,
        resumed_and_finished,
        extended,
    ],
)
def test_between_any_two_writes(
    path: Path, tmp_path: Path, recorded: list[RecordedFile], sweep: Callable[[Path], None]
) -> None:
    sweep(path)
    states = [state for session in recorded for state in session.states]
    assert len(states) > 2 * len(recorded), "the writes were recorded"
    for state in dict.fromkeys(states):
        check(state, tmp_path)


def test_a_large_file_is_changed_in_place(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "COPIED_BYTES", 1)
    store = Store.create(path, PLAN)
    inode = path.stat().st_ino
    fill(store, range(PLAN.size))
    store.close(COMPLETE, {})
    assert path.stat().st_ino == inode
    check(path.read_bytes(), path.parent)


def test_a_file_keeps_its_mode_and_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    store = Store.create(path, PLAN)
    store.close("interrupted", {})
    elsewhere = tmp_path / "scratch.h5"
    os.replace(path, elsewhere)
    path.symlink_to(elsewhere)
    elsewhere.chmod(0o640)
    store = Store.resume(path)
    fill(store, range(PLAN.size))
    store.close(COMPLETE, {})
    assert path.is_symlink()
    assert elsewhere.stat().st_mode & 0o777 == 0o640
    check(elsewhere.read_bytes(), tmp_path)
