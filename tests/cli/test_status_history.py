"""`farm status --since`: numbers of the past, and events of which many are alike."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from farm.cli import run
from farm.cli.status_history import COLUMNS, ROWS, event_lines, numbers
from tests.cli.conftest import rendered
from tests.support.dispatcher_farm import Served, run_here


def printed(told: dict[str, Any]) -> list[str]:
    shown = rendered(numbers(told), width=80)
    return [" ".join(line.split()) for line in shown.splitlines()]


def test_a_long_history_is_a_few_rows_of_means() -> None:
    steps = 300
    times = [time.time() - steps + i for i in range(steps)]
    series: dict[str, list[float | None]] = {key: [2.0] * steps for key in COLUMNS}
    series["failed_per_s"] = [*[0.0] * 275, *[4.0] * 25]
    series["run_p50_s"] = [*[None] * 275, *[0.25] * 25]
    head, *rows = printed({"times": times, "series": series})
    assert head == "until workers busy queued calls/s failed/s run p50"
    assert len(rows) == ROWS
    assert rows[-1].endswith("2 2 2 2 4 250 ms")
    assert rows[-2].endswith("2 2 2 2 0")


def event(number: int, kind: str, text: str, at: float = 1e9) -> dict[str, Any]:
    return {"time": at + number, "event": kind, "worker": f"n/{number}", "text": text}


def test_events_that_are_alike_do_not_hide_others() -> None:
    events = [event(0, "lost", "signal SIGKILL")]
    for number in range(1, 40):
        events += [event(number, "joined", "beam"), event(number, "from elsewhere", f"{number}")]
    told = [line.partition(" ")[2] for line in event_lines(events)]
    assert told == [
        "lost n/0: signal SIGKILL",
        "joined n/39 and 38 before: beam",
        "from elsewhere n/39 and 38 before: 39",
    ]


def test_events_long_apart_or_of_other_texts_stay_apart() -> None:
    events = [event(0, "lost", "a"), event(1, "lost", "b"), event(90, "lost", "a")]
    assert len(event_lines(events)) == 3


@pytest.mark.parametrize("words", [["--since", "soon"], ["--since", "0m"]])
def test_a_span_that_is_none_is_a_mistake(words: list[str], tmp_path: Path) -> None:
    status, _, errors = run_here("status", *words, cwd=tmp_path)
    assert status == 2
    assert "expected a time span such as 90s, 10m, 3h or 1d" in errors


def test_what_happened_at_a_farm(beam_farm: Served, capsys: pytest.CaptureFixture[str]) -> None:
    target = ["--to", str(beam_farm.folder)]
    assert run(["call", *target, "--config", '{"raise": "no root"}', "1,2,3", "1"]) == 4
    capsys.readouterr()
    assert run(["status", "--since", "3h", *target]) == 0
    out = capsys.readouterr().out
    assert re.search("workers +busy +queued +calls/s +failed/s +run p50", out)
    assert "ModelFailed: ValueError: no root" in out
    assert "joined " in out
    assert run(["status", "--since", "3h", "--json", *target]) == 0
    assert '"failed_per_s"' in capsys.readouterr().out
    assert run(["status", "--since", "3h", "--watch", *target]) == 2
