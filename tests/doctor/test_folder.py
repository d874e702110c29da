"""Checks of the run folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from farm.doctor import folder
from farm.doctor.finding import Weight
from farm.machine.private import LOCK, TemporaryFolder
from farm.sweep.file.signature import user_secret

MOUNTS = """\
21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
22 21 0:40 / /home rw shared:3 - nfs4 server:/home rw
23 21 0:41 / /scratch rw - lustre mds:/scratch rw
24 21 0:42 / /my\\040disk rw - tmpfs tmpfs rw
25 22 0:43 / /home rw - xfs /dev/sdb rw
broken line
"""


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("/var/x", "ext4"),
        ("/home/ann", "xfs"),  # mounted above the other
        ("/scratch", "lustre"),
        ("/scratch2", "ext4"),
        ("/my disk/run", "tmpfs"),
    ],
)
def test_the_file_system_of_a_folder(tmp_path: Path, place: str, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert folder.file_system(Path(place), mounts) == kind
    assert folder.file_system(Path(place), tmp_path / "missing") == ""


@pytest.mark.parametrize(
    ("free", "weight"), [(10**7, Weight.WRONG), (5 * 10**8, Weight.WARNING), (10**11, Weight.OK)]
)
def test_free_space(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, weight: Weight
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    (found,) = folder.disk(tmp_path / "not" / "there")
    assert found.weight is weight
    assert str(tmp_path) in found.text
    assert bool(found.remedy) == (weight is not Weight.OK)
    assert not (tmp_path / "not").exists()


def test_shared_file_systems_have_a_hint(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / {tmp_path} rw - nfs4 server:/ rw\n")
    assert "some seconds late" in folder.disk(tmp_path, mounts)[0].text
    mounts.write_text(f"1 0 0:1 / {tmp_path} rw - beegfs x rw\n")
    assert "all machines that mount it" in folder.disk(tmp_path, mounts)[0].text


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    assert folder.disk(tmp_path)[0].weight is Weight.WRONG


def test_keys_are_for_their_user_only(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert folder.permissions(run)[0].text.startswith("no run folder")
    run.mkdir(0o755)
    assert folder.permissions(run)[0].weight is Weight.OK  # nothing in it yet
    (run / "farm.json").touch(0o600)
    (found,) = folder.permissions(run)
    assert (found.weight, found.remedy) == (Weight.WRONG, f"chmod 700 {run}")
    run.chmod(0o700)
    assert folder.permissions(run)[0].text == f"farm.json in {run}, for this user only"
    (run / "workers.json").touch()
    (run / "workers.json").chmod(0o640)
    (found,) = folder.permissions(run)
    assert (found.weight, found.remedy) == (Weight.WRONG, f"chmod 600 {run}/workers.json")
    assert "mode 640" in found.text


def test_the_folder_of_another_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert "belongs to user" in folder.permissions(tmp_path)[0].text


def test_all_that_farm_has_on_disk_is_listed_with_how_to_remove_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, temporary = tmp_path / "state", tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.chdir(tmp_path)
    (nothing,) = folder.left(Path("farm-run"))
    assert (nothing.weight, nothing.text) == (Weight.OK, "nothing")
    user_secret()
    for name in ("farm-run", "farm-4711", "my run"):
        (tmp_path / name / "logs").mkdir(parents=True)
    (tmp_path / "farm-run" / "logs" / "worker.log").write_bytes(bytes(3 * 2**20))
    (tmp_path / "my run" / "farm.json").touch()
    (tmp_path / "farm-notes").mkdir()  # the user's own
    (temporary / "farm-older").mkdir()
    (temporary / "tmpabc").mkdir()
    with TemporaryFolder("farm-") as used:
        killed = temporary / "beam-killed"
        shutil.copytree(used, killed)
        lock = killed / LOCK
        lock.write_text(lock.read_text().replace(used.name, killed.name))
        found = {f.text: f.remedy for f in folder.left(Path("my run"))}
    key = state / "farm" / "key"
    assert found == {
        "the run folder farm-4711, 0.0 MiB": "rm -r farm-4711",
        "the run folder farm-run, 3.0 MiB": "rm -r farm-run",
        "the run folder my run, 0.0 MiB, of a farm that runs or was killed": (
            "farm stop 'my run', and then: rm -r 'my run'"
        ),
        f"the temporary folder {killed}, 0.0 MiB, of a process that was killed": (
            f"the next start of a farm removes it; or: rm -r {killed}"
        ),
        f"the temporary folder {used}, 0.0 MiB, in use": ("it goes with the process that uses it"),
        f"the temporary folder {temporary}/farm-older, 0.0 MiB, which no process has locked": (
            f"once no farm of yours runs here: rm -r {temporary}/farm-older"
        ),
        f"the key {key}, which signs this user's sweep files": (
            f"rm {key}, and sweep files written so far need --trust"
        ),
    }
