"""Clients, progress and reasons to wait, as `farm status` shows them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from rich.console import Console, Group, RenderableType

import farm
from farm.cli import run
from farm.cli.status import BAR, CLIENTS_SHOWN, bar, clients, lines, progress
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import LIMIT_S, Served, serving

ROW: dict[str, Any] = {
    "client": "sweep",
    "others": 0,
    "callers": 1,
    "queued": 12,
    "running": 4,
    "done": 100,
    "failed": 2,
    "share": 0.75,
    "worker_s": 90.0,
    "calls_per_s": 2.5,
    "last_s": 0.5,
}
RUNS: dict[str, Any] = {
    "kind": "sweep",
    "name": "beam lhs",
    "client": "sweep-1",
    "state": "running",
    "done": 40,
    "failed": 10,
    "total": 100,
    "calls_per_s": 2.0,
    "ends_in_s": 25.0,
    "since_s": 25.0,
}


def printed(*parts: RenderableType, width: int = 140) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(Group(*parts))
    return console.export_text()


def test_the_table_of_clients() -> None:
    rows = [ROW, {**ROW, "client": "", "last_s": None}, {**ROW, "client": "\x1b[31m[b]"}]
    out = printed(*clients(rows))
    assert re.search(r"sweep +1 +12 +4 +100 +2 +2.5 +75.0% +500 ms", out)
    assert re.search(r"\(no name\) +1 .* 75.0% *\n", out)
    assert r"\x1b[31m[b]" in out
    many = [ROW] * CLIENTS_SHOWN + [{**ROW, "others": 7}]
    assert "and 1 more clients; --json lists them" in printed(*clients(many))
    assert "7 others" in printed(*clients(many[-1:]))


def test_the_table_of_progress_has_bars_and_expected_ends() -> None:
    rows = [
        RUNS,
        {**RUNS, "kind": "experiment", "total": None, "ends_in_s": None},
        {**RUNS, "state": "complete", "done": 90, "ends_in_s": None},
    ]
    out = printed(progress(rows))
    assert re.search(
        r"sweep +beam lhs +sweep-1 +█{10}░{10}  50% +40/100 +10 +2 +in about 25 s", out
    )
    assert re.search(r"experiment +beam lhs +sweep-1 +40 +10 +2 *\n", out)
    assert re.search(r"█{20} 100% +90/100 +10 +2 +complete", out)
    assert "█" * BAR + " 100%" in printed(progress([{**RUNS, "done": 1000}]))
    assert bar({**RUNS, "total": 0}) == ""


def test_names_that_people_type_are_whole_in_a_narrow_terminal() -> None:
    name = "sweep-55cc7c9e"
    out = printed(progress([{**RUNS, "client": name, "done": 50, "failed": 0}]), width=80)
    assert name in out
    assert re.search(r"█+░+  50%", out), "the bar is shorter, its percentage is there"
    row = {"client": name, "others": 0, "callers": 1, "queued": 18, "running": 2, "done": 0}
    row |= {"failed": 0, "calls_per_s": 0.0, "share": 1.0, "last_s": 12.5}
    out = printed(Group(*clients([row])), width=80)
    assert name in out
    assert "100.0%" in out


def test_lines_are_safe_for_a_terminal() -> None:
    assert lines({"why": ["one \x1b[2J", "two"]}) == "one \\x1b[2J\n  two"


MODEL = """
import os, time
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def gate(x):
    while not os.path.exists("open"):
        time.sleep(0.002)
    return x
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Served]:
    """A farm whose only worker holds its first call until a file is there."""
    (tmp_path / "m.py").write_text(MODEL)
    with serving(tmp_path, "m.py", "--workers", "1") as served:
        served.wait_for_workers(1)
        yield served
        (tmp_path / "open").touch()


@pytest.mark.parametrize("native", [True, False])
def test_why_a_chain_waits_behind_a_sweep(
    capsys: pytest.CaptureFixture[str], held: Served, native: bool
) -> None:
    target = ("--to", str(held.folder) if native else held.connection.url)

    def shown(*arguments: str) -> str:
        assert run([*arguments, *target]) == 0
        return capsys.readouterr().out

    with farm.connect(held.folder, client="sweep") as sweep:
        model = sweep.model()
        first = model.submit([1.0])
        wait_until(lambda: sweep.clients() and sweep.clients()[0]["running"] == 1)
        more = [model.submit([2.0]) for _ in range(3)]
        wait_until(lambda: sweep.clients()[0]["queued"] == 3)
        with farm.connect(held.folder, client="chain", chain="7") as chain:
            mine = chain.model().submit([3.0])
            wait_until(lambda: chain.why()["phase"] == "queued")
            out = shown("status", "--why", "chain")
            assert "of client 'chain' in chain '7', has waited" in out
            assert "\n  it is next: no other call goes first\n" in out
            assert "with calls of 'sweep' (1)" in out
            found = json.loads(shown("status", "--why", "chain", "--chain", "7", "--json"))
            assert (found["client"], found["position"]) == ("chain", 1)
            number = found["call"]
            assert f"call {number}, evaluate of model 'gate'" in shown("status", "--why", number)
            assert "client 'nobody' has no open call" in shown("status", "--why", "nobody")
            assert "call 99 is not open" in shown("status", "--why", "99")
            assert re.search(r"sweep +4 +3 +1 +0 +0 ", shown("status"))
            (held.folder.parent / "open").touch()
            assert (first.result()[0], mine.result()[0]) == (1.0, 3.0)
            assert [future.result()[0] for future in more] == [2.0] * 3


@pytest.mark.parametrize("native", [True, False])
def test_why_a_request_waits_by_its_id(
    capsys: pytest.CaptureFixture[str], held: Served, native: bool
) -> None:
    target = str(held.folder) if native else held.connection.url
    url = f"{held.connection.url}/Evaluate"

    def post(call_id: str) -> requests.Response:
        body = {"name": "gate", "input": [[1.0]], "config": {}}
        return requests.post(url, json=body, headers={"X-Request-ID": call_id}, timeout=LIMIT_S)

    with ThreadPoolExecutor() as pool, farm.connect(target) as client:
        first = pool.submit(post, "first-one")
        wait_until(lambda: client.why(call="first-one")["phase"] == "sent")
        second = pool.submit(post, "abc-123")
        wait_until(lambda: client.why(call="abc-123")["phase"] == "queued")
        assert run(["status", "--why", "abc-123", "--to", target]) == 0
        out = capsys.readouterr().out
        assert "with the id 'abc-123', evaluate of model 'gate'" in out
        assert "it is next: no other call goes first" in out
        assert run(["status", "--why", "no-such-id", "--to", target]) == 0
        assert "client 'no-such-id' has no open call, and no open" in capsys.readouterr().out
        (held.folder.parent / "open").touch()
        assert (first.result().status_code, second.result().status_code) == (200, 200)


@pytest.mark.parametrize("native", [True, False])
def test_a_client_without_a_name_asks_about_its_own_calls(held: Served, native: bool) -> None:
    target = str(held.folder) if native else held.connection.url
    with farm.connect(held.folder, client="other") as other, farm.connect(target) as client:
        first = other.model().submit([1.0])
        wait_until(lambda: other.why()["phase"] == "sent")
        mine = client.model().submit([2.0])
        wait_until(lambda: client.why()["phase"] == "queued")
        found = client.why()
        assert found["before"] == []
        named = client.why(found["client"])
        assert found["client"]
        assert named["call"] == found["call"]
        (held.folder.parent / "open").touch()
        assert (first.result()[0], mine.result()[0]) == (1.0, 2.0)


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--chain", "1"]) == 2
    assert "--chain needs --why" in capsys.readouterr().err
    assert run(["status", "--why", "a", "--watch"]) == 2
    assert "exclude one another" in capsys.readouterr().err
