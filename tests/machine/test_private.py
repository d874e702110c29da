"""Folders and files for one user: created, restricted, or refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.errors import Unavailable
from farm.machine.private import make_private_folder, private_opener

KNOWN = ("farm.json", "logs", "experiments.db*")


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """The user's umask, set for the duration of a test."""
    before = os.umask(request.param)
    try:
        yield request.param
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_new_folder_and_a_new_file(umask: int, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "run"
    make_private_folder(folder, known=())
    assert mode(folder) == 0o700
    with open(folder / "log", "a", opener=private_opener) as file:
        file.write("x")
    with open(folder / "log", "a", opener=private_opener) as file:
        file.write("y")
    assert mode(folder / "log") == 0o600
    assert (folder / "log").read_text() == "xy"
    make_private_folder(folder, known=())


def test_a_folder_of_an_earlier_farm_is_narrowed_with_all_that_is_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "logs").mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o644)
    for name in ("farm.json", "experiments.db", "experiments.db-wal", "logs/worker-0.log"):
        (folder / name).write_text("kept")
        (folder / name).chmod(0o664)
    (folder / "logs" / "latest").symlink_to(outside)
    folder.chmod(0o755)
    make_private_folder(folder, known=KNOWN)
    assert mode(folder) == mode(folder / "logs") == 0o700
    assert {mode(p) for p in folder.rglob("*") if p.is_file() and not p.is_symlink()} == {0o600}
    assert (folder / "logs" / "worker-0.log").read_text() == "kept"
    assert mode(outside) == 0o644


def test_an_empty_folder_that_the_user_made_is_narrowed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o777)
    make_private_folder(folder, known=KNOWN)
    assert mode(folder) == 0o700


def test_a_folder_with_other_things_in_it_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "farm.json").write_text("")
    (tmp_path / "thesis.tex").write_text("")
    (tmp_path / "thesis.tex").chmod(0o644)
    tmp_path.chmod(0o755)
    with pytest.raises(Unavailable) as caught:
        make_private_folder(tmp_path, known=KNOWN)
    assert "'thesis.tex'" in caught.value.message
    assert "mode 755, expected 700" in caught.value.message
    assert f"chmod 700 {tmp_path}" in caught.value.message
    assert (mode(tmp_path), mode(tmp_path / "thesis.tex")) == (0o755, 0o644)
    tmp_path.chmod(0o700)
    make_private_folder(tmp_path, known=KNOWN)


def test_where_rights_cannot_be_taken_away_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system without permissions."""
    tmp_path.chmod(0o755)
    monkeypatch.setattr(Path, "chmod", lambda self, mode: None)
    with pytest.raises(Unavailable, match="others can enter the folder"):
        make_private_folder(tmp_path, known=KNOWN)


def test_another_users_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(Unavailable, match=r"belongs to user \d+"):
        make_private_folder(tmp_path, known=KNOWN)


def test_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="not a folder"):
        make_private_folder(tmp_path / "file", known=KNOWN)
