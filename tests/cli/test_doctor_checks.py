"""The run through all checks ends, whatever a check does."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from farm.cli.doctor import checks, examine
from farm.doctor.finding import Finding, Weight, ok


def test_a_check_that_hangs_or_fails_is_a_warning() -> None:
    released = threading.Event()

    def hangs() -> list[Finding]:
        released.wait(30.0)
        return []

    def fails() -> list[Finding]:
        raise OSError("stale file handle")

    found = list(examine({"a": hangs, "b": fails, "c": lambda: [ok("c", "fine")]}, limit_s=0.05))
    released.set()
    assert [(f.subject, f.weight) for f in found] == [
        ("a", Weight.WARNING),
        ("b", Weight.WARNING),
        ("c", Weight.OK),
    ]
    assert "no result in 0.05 s" in found[0].text
    assert "OSError: stale file handle" in found[1].text


def test_nothing_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FARM_CONNECTION", raising=False)
    monkeypatch.delenv("FARM_URL", raising=False)
    found = list(examine(checks(None, None)))
    assert {f.subject for f in found} >= {
        "Python",
        "interpreter",
        "packages",
        "disk",
        "keys",
        "port",
        "farm",
    }
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_file_adds_a_check(tmp_path: Path) -> None:
    assert "cluster file" not in checks(None, None)
    (found,) = checks(None, tmp_path / "no.toml")["cluster file"]()
    assert found.weight is Weight.WRONG
    assert "no.toml" in found.text
