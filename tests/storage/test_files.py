"""Durable files: syncing a file and its name, copies with and without hard links."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from farm.storage.files import is_full, keep_as, sync


def test_sync_reaches_file_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    (tmp_path / "a").write_text("x")
    sync(tmp_path / "a")
    assert synced == [str(tmp_path / "a"), str(tmp_path)]


def test_what_is_kept_stays_when_the_file_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.h5.journal"
    path.write_bytes(b"first")
    assert keep_as(path, ".broken") == tmp_path / "s.h5.journal.broken"

    def no_links(*_: object) -> None:
        raise OSError("not on this file system")

    monkeypatch.setattr(os, "link", no_links)
    path.unlink()
    path.write_bytes(b"second")
    assert keep_as(path, ".broken").read_bytes() == b"second"
    assert path.read_bytes() == b"second"


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "Can't write data"), True),
        (OSError(errno.EDQUOT, "Can't write data"), True),
        (RuntimeError("Can't flush (error message = 'No space left on device')"), True),
        (RuntimeError("Disk quota exceeded"), True),
        (OSError(errno.EIO, "Input/output error"), False),
        (ValueError("bad object header version number"), False),
    ],
)
def test_a_full_disk_is_told_from_damage(error: Exception, full: bool) -> None:
    assert is_full(error) is full
