"""The user's secret: created once, the same in every process, and unreadable for others."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from farm.machine.secret import key_path, user_secret


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def test_it_is_made_once_and_readable_by_its_owner_only(home: dict[str, str]) -> None:
    secret = user_secret(home)
    assert len(secret) == 32
    assert user_secret(home) == secret
    path = key_path(home)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [p.name for p in path.parent.iterdir()] == ["key"]


def test_two_homes_have_two_secrets(home: dict[str, str], tmp_path: Path) -> None:
    assert user_secret(home) != user_secret({"XDG_STATE_HOME": str(tmp_path / "other")})


@pytest.mark.parametrize("state", ["", "relative/state"])
def test_it_is_in_the_home_folder_by_default(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert key_path({"XDG_STATE_HOME": state}) == tmp_path / ".local/state/farm/key"
    assert key_path({}) == tmp_path / ".local/state/farm/key"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_one_that_others_can_read_or_write_is_refused(home: dict[str, str], mode: int) -> None:
    user_secret(home)
    key_path(home).chmod(mode)
    with pytest.raises(PermissionError, match=f"mode {mode:o}.*remove it"):
        user_secret(home)


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 33])
def test_one_that_is_damaged_is_refused(home: dict[str, str], content: bytes) -> None:
    user_secret(home)
    key_path(home).write_bytes(content)
    with pytest.raises(OSError, match="expected 32"):
        user_secret(home)


def _ask(home: dict[str, str], begin: object, found: object) -> None:
    begin.wait()  # type: ignore[attr-defined]  # a Barrier
    found.put(user_secret(home))  # type: ignore[attr-defined]  # a Queue


def test_of_many_that_make_it_at_once_all_get_the_same(home: dict[str, str]) -> None:
    context = multiprocessing.get_context("fork")
    begin, found = context.Barrier(4), context.Queue()
    askers = [context.Process(target=_ask, args=(home, begin, found)) for _ in range(4)]
    for asker in askers:
        asker.start()
    assert len({found.get(timeout=20) for _ in askers}) == 1
    for asker in askers:
        asker.join()
    assert os.listdir(key_path(home).parent) == ["key"]
