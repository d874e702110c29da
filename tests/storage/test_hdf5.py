"""HDF5 files open once their readers have closed them, and what is in them is only data."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from farm.storage.errors import UnsafeFile
from farm.storage.hdf5 import open_file
from tests.support.foreign import ATTACKS, SECRET, replaced

HOLD = """
import sys, h5py
with h5py.File(sys.argv[1]) as file:
    print("open", flush=True)
    sys.stdin.read()
"""


def test_a_short_look_by_another_program_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.h5"
    h5py.File(path, "w").close()
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "open\n"
        with pytest.raises(BlockingIOError):
            open_file(path, "r+", patience_s=0.2)

        def ended(_: float) -> None:
            reader.communicate()

        monkeypatch.setattr(time, "sleep", ended)  # as it waits for the reader
        open_file(path, "r+").close()
    assert reader.returncode == 0


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("name", ["theta", "failures/error"])
def test_what_is_not_just_data_in_the_file_is_refused(
    tmp_path: Path, attack: str, name: str, mode: str
) -> None:
    """A pipe is among what the file refers to, so following it would not end."""
    path = tmp_path / "s.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset(name, data=np.arange(8.0))
        file.create_dataset("other", data=np.arange(8.0))
    reason = replaced(path, name, attack)
    with open_file(path, mode) as file, pytest.raises(UnsafeFile, match=reason) as refused:
        file[name]
    assert f"{path}: /{name} " in str(refused.value)
    with open_file(path, mode) as file:
        group, _, last = f"/{name}".rpartition("/")
        for access in (
            lambda: file[group or "/"][last],
            lambda: file.get(name),
            lambda: list(file[group or "/"].values()),
        ):
            with pytest.raises(UnsafeFile, match=reason):
                access()
        assert last in file[group or "/"]
        assert file["other"][:].tolist() == list(range(8)), "the rest is read"
    assert (tmp_path / "secret").read_bytes() == SECRET


def test_a_group_in_another_file_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file["soft"] = h5py.SoftLink("/")
        file["far"] = h5py.ExternalLink("private.h5", "/")
    with h5py.File(tmp_path / "private.h5", "w") as file:
        file["x"] = 1.0
    with open_file(tmp_path / "s.h5", "r+") as file:
        for name in ("soft/soft", "far/x", "/far"):
            with pytest.raises(UnsafeFile, match="link"):
                file[name]
        with pytest.raises(UnsafeFile, match="link"):
            file.require_group("far")


@pytest.mark.parametrize("what", ["pipe", "link to a pipe", "folder", "device"])
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_only_regular_files_are_opened(tmp_path: Path, what: str, mode: str) -> None:
    path = tmp_path / "s.h5"
    if "pipe" in what:
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to("pipe") if "link" in what else (tmp_path / "pipe").rename(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
        open_file(path, mode)


@pytest.mark.parametrize("old", ["kept", "gone"])
@pytest.mark.parametrize("new", ["file", "pipe"])
def test_hdf5_reads_the_file_that_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    """Another file takes the place of the path right after the check, and before HDF5 opens it."""
    path, other = tmp_path / "s.h5", tmp_path / "other.h5"
    with h5py.File(path, "w") as file:
        file["x"] = 1.0
    if new == "pipe":
        os.mkfifo(other)
    else:
        with h5py.File(other, "w") as file:
            file["x"] = 2.0
    real: Callable[[int], os.stat_result] = os.fstat

    def swapped(fd: int) -> os.stat_result:
        found = real(fd)
        if other.exists():
            if old == "kept":
                path.rename(tmp_path / "old.h5")
            other.replace(path)
        return found

    monkeypatch.setattr(os, "fstat", swapped)
    if old == "kept":
        with open_file(path, "r") as file:
            assert (file["x"][()], file.filename) == (1.0, str(path))
    if new == "pipe":
        with pytest.raises(UnsafeFile, match="not a regular file"):
            open_file(path, "r")
    else:
        with open_file(path, "r") as file:
            assert file["x"][()] == 2.0


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "gzip", "shuffle": True, "fletcher32": True},
        {"compression": "lzf"},
        {"scaleoffset": 0},
        {"maxshape": (None,), "chunks": (64,)},
        {"track_times": True},
    ],
)
def test_files_of_other_programs_are_read(tmp_path: Path, options: dict[str, object]) -> None:
    """Filters of HDF5 and h5py need no plugin; empty and constant datasets are no danger."""
    with h5py.File(tmp_path / "s.h5", "w", libver="latest") as file:
        file.create_dataset("a/b/x", data=np.arange(100), **options)
        file.create_dataset("constant", data=np.full(10**6, np.nan), compression="gzip")
        file.create_dataset("scalar", data=1.0)
        file["empty"] = h5py.Empty("f8")
        file["same"] = file["a/b/x"]
        file["none"] = np.empty((0, 3))
    with open_file(tmp_path / "s.h5", "r") as file:
        for name in ("a/b/x", "/a/b/x", "same"):
            assert file[name][:].tolist() == list(range(100))
        assert np.isnan(file["constant"][:]).all()
        assert (file["scalar"][()], file["empty"].shape, file["none"].shape) == (1.0, None, (0, 3))
        assert "a" in file
        assert "b" not in file
        with pytest.raises(KeyError, match="b"):
            file["b"]


NO_FLOCK = f"""int *__errno_location(void);
static int calls;
int flock(int fd, int op) {{
    *__errno_location() = calls++ % 2 ? {errno.ENOLCK} : {errno.EOPNOTSUPP};
    return -1;
}}
"""


def test_a_sweep_needs_no_lock_service(tmp_path: Path) -> None:
    """As on a mount of NFS whose `flock` fails: create, write, stop, resume, end, read."""
    (tmp_path / "flock.c").write_text(NO_FLOCK)
    stub = tmp_path / "flock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", stub, tmp_path / "flock.c"], check=True)
    program = """
import fcntl, sys
from pathlib import Path
from farm.sweep.file.reading import known_of, progress_of
from farm.sweep.file.store import COMPLETE, Store
from tests.sweep.samples import done, plan_of
path, plan = Path(sys.argv[1]), plan_of("random:4", gzip=True)
try:
    fcntl.flock(sys.stdout, fcntl.LOCK_SH)
    raise SystemExit("the stub is not there")
except OSError:
    pass
store = Store.create(path, plan)
store.add(done(plan, 0))
store.close("interrupted", {})
store = Store.resume(path)
for point in range(1, 4):
    store.add(done(plan, point))
store.close(COMPLETE, {})
assert known_of(path)[1].status.tolist() == [1] * 4
assert progress_of(path).state == COMPLETE
"""
    environment = {**os.environ, "LD_PRELOAD": str(stub)}
    command = [sys.executable, "-c", program, str(tmp_path / "s.h5")]
    subprocess.run(command, check=True, env=environment, cwd=Path(__file__).parents[2])
