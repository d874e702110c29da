"""Exit statuses: complete, distinct, and the same in code, help and documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from farm.cli import exits, main
from farm.cli.exits import OF_ERROR, TABLE, VerbFailed, status_of
from farm.errors import FarmError, InvalidInput, ModelFailed, Overloaded, Unavailable
from farm.machine import keeper
from farm.sweep.errors import SweepError

PAGE = Path(__file__).parents[2] / "docs" / "seeing.md"


def test_every_error_has_a_status_with_a_meaning() -> None:
    own = [kind for kind in FarmError.kinds.values() if kind.__module__ == FarmError.__module__]
    assert set(own) == set(OF_ERROR)
    assert set(OF_ERROR.values()) <= set(TABLE)
    assert exits.USAGE != exits.MODEL_FAILED != exits.WORKER_LOST != exits.UNREACHABLE


def test_the_document_has_the_table() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert {int(number): meaning for number, meaning in rows} == TABLE


def test_help_has_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    for number, meaning in TABLE.items():
        assert re.search(rf"^    {number:<4}{re.escape(meaning)}$", shown, re.MULTILINE)


def test_the_keeper_knows_the_statuses_of_a_front_door() -> None:
    assert (keeper.INTERRUPTED, keeper.REFUSED) == (exits.INTERRUPTED, exits.USAGE)


def test_the_status_is_that_of_the_error_or_of_its_cause() -> None:
    class Special(Overloaded):
        pass

    del FarmError.kinds["Special"]  # it is of this test alone
    assert status_of(Unavailable("")) == exits.UNREACHABLE
    assert status_of(Special("")) == exits.UNREACHABLE
    assert status_of(InvalidInput("")) == status_of(ValueError()) == exits.USAGE
    error = SweepError("all points failed")
    error.__cause__ = ModelFailed("")
    assert VerbFailed(error).status == exits.MODEL_FAILED
    assert VerbFailed(error).format_message() == "all points failed"
    assert VerbFailed(error, "other words").format_message() == "other words"


def test_a_fault_of_farm_has_a_status_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fault(arguments: list[str] | None) -> int:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("farm.cli.run", fault)
    with pytest.raises(SystemExit) as ended:
        main(["status"])
    assert ended.value.code == exits.FAULT
    assert "ZeroDivisionError: a fault" in capsys.readouterr().err
