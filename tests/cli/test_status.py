"""`farm status`: tables for people, JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from farm.cli import run
from farm.cli.status import duration
from tests.serving import BEAM, Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("status")
    (folder / "beam.py").write_text(BEAM)
    with serving(folder, "beam.py", "--workers", "2") as farm:
        farm.wait_for_workers(2)
        assert run(["call", "1,2,4", "8", "--to", str(folder / "run")]) == 0
        assert run(["call", "1,2,4", "--to", str(folder / "run")]) == 2
        yield farm


@pytest.mark.parametrize("native", [True, False])
def test_json_has_workers_queues_and_percentiles(
    capsys: pytest.CaptureFixture[str], served: Served, native: bool
) -> None:
    target = str(served.folder) if native else served.connection.url
    assert run(["status", "--json", "--to", target]) == 0
    state = json.loads(capsys.readouterr().out)
    assert state["models"] == ["beam"]
    assert [(w["models"], w["in_flight"]) for w in state["workers"]] == [(["beam"], 0)] * 2
    (queue,) = state["queues"]
    assert (queue["operation"], queue["done"], queue["queued"]) == ("evaluate", 1, 0)
    assert state["done"] == 1
    assert 0 < state["overhead_s"]["p50"] < 5
    assert {event["event"] for event in state["events"]} == {"joined"}


def test_tables_show_the_same(capsys: pytest.CaptureFixture[str], served: Served) -> None:
    assert run(["status", "--to", str(served.folder)]) == 0
    out = capsys.readouterr().out
    assert "2 workers" in out
    assert "beam" in out
    assert "overhead of a call to an idle worker" in out
    assert out.count("idle") >= 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2.5e-5, "25 us"),
        (0.0123, "12.3 ms"),
        (99.94, "99.9 s"),
        (150.0, "2 min 30 s"),
        (7265.0, "2 h 01 min"),
    ],
)
def test_durations_have_units_that_suit_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
