"""The plan of a sweep is signed by its user; in another file the signature is wrong."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.sweep.design.extension import longer_plan
from farm.sweep.file.reading import known_of
from farm.sweep.file.signature import is_ours, key_path, signed, user_secret
from farm.sweep.file.store import COMPLETE, Store
from tests.support.coroutines import LIMIT_S
from tests.sweep.samples import done, plan_of, stored

TARGET = '{"models": ["/home/me/beam.py"]}'
PLAN = plan_of("random:4", provenance={"target": TARGET, "notes": "first"}, title="é")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder; the user's secret is below it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"design": "grid:3", "gradients": ["u[1]"], "seed_key": "s"},
        {"params": {"E": "1:2", "load": "log:1e-3:1", "solver": "euler,rk4"}, "config": {"a": [1]}},
    ],
)
@pytest.mark.parametrize("end", [COMPLETE, "stopped", "killed"])
def test_what_was_signed_is_ours_from_file_and_journal(
    state: Path, options: dict[str, Any], end: str
) -> None:
    plan = signed(plan_of(**{"design": "random:4", "provenance": {"target": TARGET}, **options}))
    assert is_ours(plan)
    count = plan.size if end == COMPLETE else 1
    stored(state / "s.h5", plan, *[done(plan, point) for point in range(count)], state=end)
    assert is_ours(known_of(state / "s.h5")[0])


CHANGES: dict[str, dict[str, Any]] = {
    "run id": {"run_id": "another"},
    "points": {"theta": PLAN.theta + 1e-9},
    "more points": {"theta": np.vstack([PLAN.theta, PLAN.theta])},
    "config": {"config": {"file": "/etc/passwd"}},
    "design": {"seed": 8},
    "model": {"info": dataclasses.replace(PLAN.info, name="evil")},
    "target": {"provenance": {"target": '{"models": ["/tmp/evil.py"]}'}},
    "no target": {"provenance": {"target": ""}},
    "notes": {"provenance": {"notes": "second"}},
    "no signature": {"provenance": {"signature": ""}},
    "another signature": {"provenance": {"signature": "0" * 64}},
    "no hexadecimal": {"provenance": {"signature": "é"}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_signature_is_of_one_plan(change: str) -> None:
    """Such as of another file, into which somebody copied target and signature."""
    plan = signed(PLAN)
    facts = {**plan.provenance, **CHANGES[change].get("provenance", {})}
    assert not is_ours(dataclasses.replace(plan, **{**CHANGES[change], "provenance": facts}))
    assert not is_ours(PLAN), "it was never signed"


def test_another_users_signature_does_not_pass(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = signed(PLAN)
    monkeypatch.setenv("XDG_STATE_HOME", str(state / "other"))
    assert not is_ours(plan)


def test_without_a_secret_nothing_is_ours() -> None:
    plan = signed(PLAN)
    key_path().chmod(0o644)
    assert not is_ours(plan)
    with pytest.raises(PermissionError):
        signed(PLAN)


@pytest.mark.parametrize("ours", [True, False])
def test_an_extended_sweep_is_ours_if_it_was_before(state: Path, ours: bool) -> None:
    store = Store.create(state / "s.h5", signed(PLAN) if ours else PLAN)
    store.extend(longer_plan(store.plan, 8))
    store.abandon()
    assert is_ours(known_of(state / "s.h5")[0]) is ours


def test_the_sweep_that_replaces_another_is_ours(state: Path) -> None:
    Store.create(state / "s.h5", PLAN).abandon()
    Store.create(state / "s.h5", signed(plan_of("random:5")), replaces=PLAN).abandon()
    assert is_ours(known_of(state / "s.h5")[0])


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
    assert len({found.get(timeout=LIMIT_S) for _ in askers}) == 1
    for asker in askers:
        asker.join()
    assert os.listdir(key_path(home).parent) == ["key"]
