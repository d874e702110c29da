"""Durable files: syncing a file and its name, copies with and without hard links."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

import pytest

from farm.cli import run
from farm.storage.errors import UnsafeFile
from farm.storage.files import (
    beside,
    is_full,
    keep_as,
    open_own,
    read_own,
    replacing,
    resolved,
    sync,
)


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


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "precious"
    path.write_bytes(b"precious")
    return path


def test_a_file_beside_a_users_is_his_own_and_no_link(tmp_path: Path, precious: Path) -> None:
    (tmp_path / "link").symlink_to(precious)
    os.link(precious, tmp_path / "name")
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("link", "symbolic link"), ("name", "2 names"), ("pipe", "regular")):
        with pytest.raises(UnsafeFile, match=rf"{name} .*{why}.*; remove it, or use another"):
            os.close(open_own(tmp_path / name, os.O_RDWR))
    (tmp_path / "name").unlink()
    os.close(open_own(precious, os.O_RDWR))


def test_a_file_of_another_user_is_not_written(
    precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: precious.stat().st_uid + 1)
    with pytest.raises(UnsafeFile, match=r"belongs to user \d+"):
        open_own(precious, os.O_RDWR)
    assert read_own(precious) == b"precious", "reading is allowed"


def test_replacing_writes_through_no_link(
    tmp_path: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.h5.new").symlink_to(precious)
    (tmp_path / "s.h5").symlink_to(precious)
    with replacing(tmp_path / "s.h5") as new:
        new.write_bytes(b"whole")
    assert not (tmp_path / "s.h5").is_symlink()
    monkeypatch.setattr(secrets, "token_hex", lambda n: "0" * 2 * n)
    (tmp_path / f"s.h5.{'0' * 16}.new").symlink_to(precious)
    with pytest.raises(FileExistsError), replacing(tmp_path / "s.h5"):
        pass
    assert precious.read_bytes() == b"precious"


@pytest.mark.parametrize(("before", "after"), [(0o600, 0o600), (0o640, 0o640), (0o400, 0o600)])
def test_a_file_keeps_others_out_when_it_is_replaced(
    tmp_path: Path, precious: Path, before: int, after: int
) -> None:
    precious.chmod(before)
    with replacing(precious) as new:
        new.write_bytes(b"newer")
    assert precious.stat().st_mode & 0o777 == after
    (tmp_path / "link").symlink_to(precious)
    with replacing(tmp_path / "link"):
        pass
    assert (tmp_path / "link").stat().st_mode & 0o077, "a link is replaced, not its file"


def test_a_users_own_link_is_followed(tmp_path: Path, precious: Path) -> None:
    (tmp_path / "link").symlink_to(precious)
    (tmp_path / "far").symlink_to("link")
    (tmp_path / "ring").symlink_to("ring")
    assert resolved(tmp_path / "far").resolve() == precious.resolve()
    assert resolved(precious) == precious
    assert beside(tmp_path / "far", ".lock") == precious.resolve().with_name("precious.lock")
    with pytest.raises(UnsafeFile, match="leads nowhere"):
        resolved(tmp_path / "ring")


@pytest.mark.root
@pytest.mark.parametrize("foreign", ["link", "folder"])
def test_a_link_that_another_user_can_change_is_not_followed(
    tmp_path: Path, precious: Path, foreign: str
) -> None:
    (tmp_path / "theirs").mkdir()
    link = tmp_path / "theirs" / "s.h5"
    link.symlink_to(precious)
    os.chown(link if foreign == "link" else link.parent, 65534, 65534, follow_symlinks=False)
    with pytest.raises(UnsafeFile, match=r"is a link by way of .*belongs to user 65534; name"):
        resolved(link)
    for words in (
        f"sweep plot {precious} -o {link}",
        f"sweep --resume {link}",
        f"experiment serve --aepsych 127.0.0.1:0 --journal {link}",
    ):
        assert run(words.split()) == 2
    assert precious.read_bytes() == b"precious"
