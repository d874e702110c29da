"""`farm failures`: tables of reasons, one reason in full, and JSON for scripts."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from farm.cli import run
from farm.cli.failures import ROWS_SHOWN, at, one, summary, tables
from tests.cli.conftest import rendered
from tests.support.dispatcher_farm import BEAM, Served, farm_of

FAILED: dict[str, Any] = {
    "id": "3f2a90c1",
    "kind": "ModelFailed",
    "model": "beam",
    "operation": "evaluate",
    "text": "no root in [0, 1]",
    "count": 12,
    "first": 1.7e9,
    "last": 1.7e9,
    "worker": "node1/1-a",
    "client": "me",
    "inputs": "x = [1.0]",
}
LOST: dict[str, Any] = {
    "id": "90c13f2a",
    "cause": "crash",
    "text": "exit code 3",
    "count": 1,
    "first": 1.7e9,
    "last": 1.7e9,
    "worker": "node1/1-a",
    "host": "node1",
    "hosts": {"node1": 1},
    "exit_code": 3,
    "signal": "",
    "detail": "Segmentation fault\n",
}


def printed(failed: list[dict[str, Any]], lost: list[dict[str, Any]], most: int | None) -> str:
    return rendered(tables(failed, lost, most), width=200)


fresh_farm = farm_of(BEAM)


@pytest.fixture(scope="module")
def served(fresh_farm: Served) -> Served:
    for number in range(2):
        wrong = json.dumps({"raise": f"no root in [{number}, 1]"})
        words = ["call", "1,2,4", "8", "--config", wrong, "--to", str(fresh_farm.folder)]
        assert run(words) != 0
    return fresh_farm


def test_failed_calls_are_listed_by_reason(
    capsys: pytest.CaptureFixture[str], served: Served
) -> None:
    assert run(["failures", "--to", str(served.folder)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 calls failed for 1 reason\n")
    assert "beam" in out
    assert run(["status", "--to", str(served.folder)]) == 0
    assert "2 calls failed for 1 reason: see farm failures\n" in capsys.readouterr().out


@pytest.mark.parametrize("native", [True, False])
def test_one_reason_has_its_traceback_and_inputs(
    capsys: pytest.CaptureFixture[str], served: Served, native: bool
) -> None:
    target = ["--to", str(served.folder) if native else served.connection.url]
    assert run(["failures", "--json", *target]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["losses"] == []
    (row,) = found["failures"]
    assert (row["count"], row["kind"], row["text"]) == (
        *(2, "ModelFailed"),
        "ValueError: no root in [0, 1]",
    )
    assert run(["failures", row["id"], *target]) == 0
    out = capsys.readouterr().out
    assert "\ninputs     E = [1.0, 2.0, 4.0]; load = [8.0]; config {" in out
    assert 'raise ValueError(config["raise"])' in out
    assert run(["failures", row["id"], "--json", *target]) == 0
    assert json.loads(capsys.readouterr().out)["detail"] in out


def test_an_unknown_reason_is_a_mistake(capsys: pytest.CaptureFixture[str], served: Served) -> None:
    assert run(["failures", "x", "--to", str(served.folder)]) == 2
    assert "no reason of failures has the id 'x'" in capsys.readouterr().err


def test_a_farm_without_failures_says_so() -> None:
    assert printed([], [], None) == "no call failed, no worker was lost\n"
    assert summary([], []) == ""


def test_lost_workers_are_listed_by_reason() -> None:
    out = printed([FAILED], [LOST], None)
    assert out.startswith("12 calls failed for 1 reason, 1 worker lost for 1 reason\n")
    assert " 12 calls of beam, last at 2023-11-1" in out
    assert " on node1/1-a for me " in out
    assert "ModelFailed: no root in [0, 1]" in out
    assert " 1 worker lost on node1, last at 2023-11-1" in out
    assert "exit code 3 (crash)" in out


@pytest.mark.parametrize(
    ("cause", "text"), [("unknown", "signal SIGKILL"), ("time limit", "time limit of 2 s")]
)
def test_a_cause_that_adds_nothing_is_not_shown(cause: str, text: str) -> None:
    row = {**LOST, "cause": cause, "text": text, "detail": ""}
    lines = printed([], [row], None).splitlines()
    assert text in [line.strip() for line in lines]


def test_the_last_line_of_a_lost_workers_log_is_shown() -> None:
    log = "solves for 0\nCUDA error: out of memory\n\n"
    assert "exit code 3 (crash): CUDA error: out of memory" in printed(
        [], [{**LOST, "detail": log}], None
    )


def test_a_call_that_never_ran_has_no_worker() -> None:
    assert ", before it ran" in printed([{**FAILED, "worker": None, "client": ""}], [], None)


def test_many_reasons_are_shown_on_request() -> None:
    rows = [{**FAILED, "text": f"reason {number}"} for number in range(ROWS_SHOWN + 5)]
    out = printed(rows, [], ROWS_SHOWN)
    assert "and 5 more reasons; --all lists them" in out
    assert f"reason {ROWS_SHOWN - 1}" in out
    assert f"reason {ROWS_SHOWN}" not in out
    assert f"reason {ROWS_SHOWN + 4}" in printed(rows, [], None)


def test_texts_of_others_do_not_change_the_terminal() -> None:
    nasty = "\x1b[2J[red]x"
    bad = {**FAILED, "text": nasty, "client": nasty, "worker": nasty, "model": nasty}
    lost = {**LOST, "text": nasty, "worker": nasty, "hosts": {nasty: 1}, "detail": nasty}
    for text in (printed([bad], [lost], None), one({**bad, "detail": nasty}), one(lost)):
        assert "\x1b" not in text
        assert "\\x1b[2J[red]x" in text


def test_a_loss_in_full_ends_with_the_log_of_the_worker() -> None:
    lines = one(LOST).splitlines()
    assert lines[-2:] == ["", "Segmentation fault"]
    assert "hosts      node1 (1)" in lines
    assert "exit code  3" in lines
    assert not any(line.startswith("signal") for line in lines)
    assert one({**LOST, "detail": ""}).endswith("\n\nnothing more is known about it")


def test_a_time_has_its_date_if_it_is_long_ago() -> None:
    assert len(at(time.time())) == len("12:34:56")
    assert at(1.7e9).startswith("2023-11-1")
