"""Folders and files for one user: created, restricted, or refused."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from farm.errors import Unavailable
from farm.machine.private import (
    LOCK,
    TemporaryFolder,
    abandoned,
    make_private_folder,
    private_opener,
    read_private,
    remove_abandoned,
    remove_unfinished,
    replace_private,
    user_name,
)

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
    empty = tmp_path / "empty"
    empty.mkdir()
    empty.chmod(0o777)
    make_private_folder(empty, known=KNOWN)
    assert mode(empty) == 0o700
    assert mode(folder) == mode(folder / "logs") == 0o700
    assert {mode(p) for p in folder.rglob("*") if p.is_file() and not p.is_symlink()} == {0o600}
    assert (folder / "logs" / "worker-0.log").read_text() == "kept"
    assert mode(outside) == 0o644


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


def test_a_folder_of_another_user_or_open_to_others_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rights cannot be taken away on a file system without permissions."""
    tmp_path.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "chmod", lambda self, mode: None)
        with pytest.raises(Unavailable, match="others can enter the folder"):
            make_private_folder(tmp_path, known=KNOWN)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(Unavailable, match=r"belongs to user \w+"):
        make_private_folder(tmp_path, known=KNOWN)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="not a folder"):
        make_private_folder(tmp_path / "file", known=KNOWN)


def test_a_private_file_is_read_and_replaced(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "farm.json"
    for text in (b"one", b"two"):
        replace_private(path, text)
        assert read_private(path) == text
        assert mode(path) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_that_was_checked_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "farm.json", tmp_path / "other.json"
    replace_private(path, b"mine")
    other.write_bytes(b"of somebody else")
    fstat = os.fstat

    def checked(descriptor: int) -> os.stat_result:
        found = fstat(descriptor)
        if other.exists():
            other.replace(path)
        return found

    monkeypatch.setattr(os, "fstat", checked)
    assert read_private(path) == b"mine"
    monkeypatch.undo()
    with pytest.raises(Unavailable, match=r"others can read .* \(mode 644\).*chmod 600"):
        read_private(path)


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "farm.json", 0o600)
    with pytest.raises(Unavailable, match="not a regular file"):
        read_private(tmp_path / "farm.json")


@pytest.mark.parametrize("named", [False, True])
def test_another_users_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    replace_private(tmp_path / "farm.json", b"theirs")
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(Unavailable, match=r"farm.json belongs to user \w+; expected your own$"):
        read_private(tmp_path / "farm.json", of_anybody=named)


@pytest.mark.root
def test_root_reads_what_it_names_of_another_user(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "farm.json"
    replace_private(path, b"theirs")
    os.chown(path, 65534, 65534)
    with pytest.raises(Unavailable, match=r"belongs to user nobody; .*, or name it: --to /"):
        read_private(path)
    assert read_private(path, of_anybody=True) == b"theirs"
    assert "belongs to user nobody" in caplog.text


def test_no_link_is_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    monkeypatch.setattr("farm.machine.private.secrets.token_hex", lambda n: "0" * 2 * n)
    (tmp_path / f".farm.json.{'0' * 16}.new").symlink_to(precious)
    with pytest.raises(FileExistsError):
        replace_private(tmp_path / "farm.json", b"x")
    (tmp_path / "key").symlink_to(precious)
    replace_private(tmp_path / "key", b"x")
    assert precious.read_bytes() == b"precious"


def test_what_a_killed_process_left_goes(tmp_path: Path) -> None:
    kept = ["farm.json", ".farm.lock", "new", ".new", "a.new"]
    for name in [*kept, f".farm.json.{'1' * 16}.new", f".workers.json.{'f' * 16}.new"]:
        (tmp_path / name).touch()
    remove_unfinished(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(kept)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's place for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


KILLED = """
import os, signal, sys
from farm.machine.private import TemporaryFolder
folder = TemporaryFolder("farm-")
(folder.path / "file").touch()
print(folder.path, flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


@contextmanager
def user_of_a_folder(place: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Run a process that has a folder, and kills itself when its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", KILLED],
        env={**os.environ, "TMPDIR": str(place)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())


@pytest.fixture
def killed(place: Path) -> Path:
    """The folder of a process that was killed."""
    with user_of_a_folder(place) as (_, folder):
        return folder


def test_the_folder_of_a_killed_process_is_removed_and_no_other(place: Path) -> None:
    with user_of_a_folder(place) as (process, killed):
        assert process.stdin is not None
        older, linked = place / "farm-older", place / "farm-link"
        older.mkdir()  # of a release without locks
        with TemporaryFolder("farm-") as own:
            remove_abandoned()
            assert {killed, own, older} == set(place.iterdir()), "they are in use"
            process.stdin.close()
            process.wait()
            linked.symlink_to(killed)
            assert list(abandoned()) == [killed]
            remove_abandoned()
            assert {own, older, linked} == set(place.iterdir())
        assert {older, linked} == set(place.iterdir())


def test_a_copy_of_a_folder_is_the_users(place: Path, killed: Path) -> None:
    copy = place / "saved"
    shutil.copytree(killed, copy)
    remove_abandoned()
    assert list(place.iterdir()) == [copy]


def test_a_folder_that_another_process_or_user_may_use_is_left_alone(killed: Path) -> None:
    lock = killed / LOCK
    mark = lock.read_text()
    lock.write_text(f"other-{mark}")  # of another machine
    assert list(abandoned()) == []
    lock.write_text(mark)
    assert list(abandoned()) == [killed]
    killed.chmod(0o1777)
    assert list(abandoned()) == []
    killed.chmod(0o700)
    lock.chmod(0o666)
    assert list(abandoned()) == []


def test_a_folder_that_is_kept_is_the_users(place: Path) -> None:
    folder = TemporaryFolder("run-")
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.keep()
    remove_abandoned()
    assert list(place.iterdir()) == [folder.path]
    assert list(folder.path.iterdir()) == []


@pytest.mark.root
def test_the_folder_of_another_user_is_left_alone(place: Path) -> None:
    other = place / "farm-other"
    other.mkdir()
    (other / LOCK).touch()
    os.chown(other, 12345, 12345)
    remove_abandoned()
    assert other.exists()


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_name() == pwd.getpwuid(os.getuid()).pw_name
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    assert user_name() == str(2**31 - 7)
