"""The target of a sweep is signed by its user; other users' signatures are rejected."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.machine.secret import key_path
from farm.sweep.file.signature import is_ours, signed

FACTS = {"target": '{"models": ["/home/me/beam.py"]}', "notes": "first"}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def test_what_was_signed_is_ours_whatever_else_is_said() -> None:
    facts = signed(FACTS)
    assert is_ours(facts)
    assert is_ours(facts | {"notes": "second"})


@pytest.mark.parametrize(
    "change",
    [
        {"target": '{"models": ["/tmp/evil.py"]}'},
        {"target": ""},
        {"target_hmac": ""},
        {"target_hmac": "0" * 64},
        {"target_hmac": "é"},
    ],
)
def test_what_was_changed_is_not(change: dict[str, str]) -> None:
    assert not is_ours(signed(FACTS) | change)


def test_what_was_never_signed_is_not() -> None:
    assert not is_ours(FACTS)
    assert not is_ours({})


def test_another_users_signature_does_not_pass(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = signed(FACTS)
    monkeypatch.setenv("XDG_STATE_HOME", str(state / "other"))
    assert not is_ours(facts)


def test_without_a_secret_nothing_is_ours() -> None:
    facts = signed(FACTS)
    key_path().chmod(0o644)
    assert not is_ours(facts)
    with pytest.raises(PermissionError):
        signed(FACTS)
