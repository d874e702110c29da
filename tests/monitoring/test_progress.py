"""Reports of sweeps and experiments, how long they are kept, and chains beside them."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import pytest

from farm.call import LONGEST_NAME, Hints
from farm.errors import InvalidInput
from farm.monitoring import progress
from farm.monitoring.progress import CHAINS_SHOWN, KEPT, SHOWN_S, SILENT_S, ProgressBoard
from tests.dispatcher.test_dispatcher import cube, turns, up


class Board:
    """A board with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = float(math.ceil(time.monotonic()))  # as for the dispatcher, and sums are exact
        self.dispatcher, self.worker = up()
        self.board = ProgressBoard(self.dispatcher)

    def report(self, **arguments: str) -> None:
        usual = {"kind": "sweep", "name": "beam", "client": "me"}
        assert self.board.answer({**usual, **arguments}) == []

    def rows(self) -> list[dict[str, Any]]:
        return self.board.answer({})


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    board = Board()
    clock = SimpleNamespace(monotonic=lambda: board.now)
    monkeypatch.setattr(progress, "time", clock)
    return board


async def test_a_sweep_from_its_first_report_to_its_end(board: Board) -> None:
    board.report(done="0", failed="0", total="10")
    board.now += 2.0
    board.report(done="3", failed="1", total="10", calls_per_s="0.5", ends_in_s="12.5")
    board.now += 1.0
    assert board.rows() == board.dispatcher.snapshot()["progress"]
    assert board.rows() == [
        {
            "kind": "sweep",
            "name": "beam",
            "client": "me",
            "state": "running",
            "done": 3,
            "failed": 1,
            "total": 10,
            "calls_per_s": 0.5,
            "ends_in_s": 11.5,
            "since_s": 3.0,
        }
    ]
    board.report(done="9", failed="1", total="10", state="complete", ends_in_s="0")
    board.now += SHOWN_S
    (row,) = board.rows()
    assert (row["state"], row["ends_in_s"], row["done"]) == ("complete", None, 9)
    board.now += 1.0
    assert board.rows() == []


async def test_a_sweep_whose_client_left_disappears(board: Board) -> None:
    board.report()
    board.now += SILENT_S
    assert len(board.rows()) == 1
    board.now += 1.0
    assert board.rows() == []


async def test_what_runs_comes_first_and_a_new_run_begins_anew(board: Board) -> None:
    board.report(id="1", state="complete")
    board.now += 5.0
    board.report(id="2")
    board.report(kind="experiment", name="7", total="")
    assert [(row["kind"], row["state"]) for row in board.rows()] == [
        ("sweep", "running"),
        ("experiment", "running"),
        ("sweep", "complete"),
    ]
    assert board.rows()[1]["total"] is None
    board.now += 5.0
    board.report(id="1")
    assert sorted(row["since_s"] for row in board.rows()) == [0.0, 5.0, 5.0]


async def test_what_is_no_report_is_refused(board: Board) -> None:
    for wrong in (
        {"kind": "party"},
        {"done": "many"},
        {"done": "-1"},
        {"total": "nan"},
        {"ends_in_s": "inf"},
    ):
        with pytest.raises(InvalidInput, match="expected"):
            board.report(**wrong)
    assert board.rows() == []
    board.report(name="x" * 500)
    assert board.rows()[0]["name"] == "x" * LONGEST_NAME


async def test_the_number_of_reports_is_bounded(board: Board) -> None:
    for number in range(KEPT + 5):
        board.report(name="0")
        board.report(name=str(number))
        board.now += 0.125
    assert max(row["since_s"] for row in board.rows()) == 0.125 * (KEPT + 5)
    names = {row["name"] for row in board.rows()}
    assert len(names) == KEPT
    assert {"0", str(KEPT + 4)} <= names
    assert "1" not in names


async def test_named_chains_are_listed_and_bulk_is_not(board: Board) -> None:
    board.worker.join()
    for chain in ("3", "", None):
        hints = Hints("sampler", chain=chain, shown_as=("sampler", chain))
        board.dispatcher.start_call(cube(), hints, lambda outcome: None)
    await turns()
    await board.worker.answer()
    await turns()
    (row,) = board.rows()
    assert row["calls_per_s"] > 0.0
    assert (row["kind"], row["name"], row["client"]) == ("chain", "3", "sampler")
    assert (row["state"], row["done"], row["total"], row["ends_in_s"]) == ("idle", 1, None, None)
    for number in range(CHAINS_SHOWN):
        shown = "sampler", f"more {number}"
        hints = Hints(*shown[:1], chain=shown[1], shown_as=shown)
        board.dispatcher.start_call(cube(), hints, lambda outcome: None)
    assert len(board.rows()) == CHAINS_SHOWN
