"""`farm doctor`: its lines, its JSON and its exit status."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from farm.cli import run
from farm.cli.doctor import checks, examine
from farm.doctor.finding import Finding, Weight, ok, warning, wrong
from farm.server.farm import Farm
from farm.server.in_process import running
from farm.settings import Settings
from tests.support.coroutines import LIMIT_S

FINE = ok("disk", "room")
DOUBT = warning("clock", "late \x1b[31m", "set it")
FAULT = wrong("farm", "gone", "start it")


def given(monkeypatch: pytest.MonkeyPatch, *found: object) -> None:
    monkeypatch.setattr("farm.cli.doctor.examine", lambda checks: iter(found))


def test_each_finding_is_a_line_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, FINE, DOUBT, FAULT)
    assert run(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "ok       disk: room",
        "warning  clock: late \\x1b[31m",
        "         -> set it",
        "wrong    farm: gone",
        "         -> start it",
        "1 wrong, 1 warnings",
    ]


def test_warnings_alone_are_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, FINE, DOUBT)
    assert run(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("0 wrong, 1 warnings\n")


def test_json_has_all_findings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, FINE, FAULT)
    assert run(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == [
        {"subject": "disk", "weight": "ok", "text": "room", "remedy": ""},
        {"subject": "farm", "weight": "wrong", "text": "gone", "remedy": "start it"},
    ]


def test_a_real_farm_is_found_and_one_that_has_gone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"

    def of_the_farm() -> list[str]:
        return [line for line in capsys.readouterr().out.splitlines() if line.split()[1] == "farm:"]

    with running(Farm([], Settings(port=0, dir=folder, workers=0), doors=False)):
        run(["doctor", str(folder)])
        assert f"{folder} answers: 0 workers" in of_the_farm()[0]
    assert run(["doctor", str(folder)]) == 1
    assert of_the_farm() == [f"wrong    farm: there is no {folder}/farm.json"]


def test_a_check_that_hangs_or_fails_is_a_warning() -> None:
    released = threading.Event()

    def hangs() -> list[Finding]:
        released.wait(30.0)
        return []

    def fails() -> list[Finding]:
        raise OSError("stale file handle")

    found = list(examine({"a": hangs}, limit_s=0.05))
    released.set()
    found += examine({"b": fails, "c": lambda: [ok("c", "fine")]}, limit_s=LIMIT_S)
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
    subjects = {"Python", "interpreter", "packages", "disk", "keys", "port", "farm"}
    assert {f.subject for f in found} >= subjects
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_file_adds_a_check(tmp_path: Path) -> None:
    assert "cluster file" not in checks(None, None)
    (found,) = checks(None, tmp_path / "no.toml")["cluster file"]()
    assert found.weight is Weight.WRONG
    assert "no.toml" in found.text
