"""`farm status`: tables for people, JSON for scripts."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from farm.cli import run
from farm.cli.status import tables
from tests.support.dispatcher_farm import BEAM, Served, serving


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
    assert [tensor["name"] for tensor in state["descriptions"][0]["inputs"]] == ["E", "load"]
    assert [(w["models"], w["in_flight"]) for w in state["workers"]] == [(["beam"], 0)] * 2
    (queue,) = state["queues"]
    assert (queue["operation"], queue["done"], queue["queued"]) == ("evaluate", 1, 0)
    assert state["done"] == 1
    assert 0 < state["overhead_s"]["p50"] < 5
    assert {event["event"] for event in state["events"]} == {"joined"}


def test_the_farm_may_be_an_argument(capsys: pytest.CaptureFixture[str], served: Served) -> None:
    assert run(["status", str(served.folder)]) == 0
    assert "2 workers" in capsys.readouterr().out
    assert run(["status", str(served.folder), "--to", "other"]) == 2
    assert "expected one farm" in capsys.readouterr().err


def test_tables_show_the_same(capsys: pytest.CaptureFixture[str], served: Served) -> None:
    assert run(["status", "--to", str(served.folder)]) == 0
    out = capsys.readouterr().out
    assert "2 workers" in out
    assert "beam" in out
    assert "overhead of a call to an idle worker" in out
    assert out.count("idle") >= 2


def test_jobs_of_an_elastic_farm_are_shown_with_what_is_in_their_way() -> None:
    kind: dict[str, Any] = {
        "name": "small",
        "models": ["beam"],
        "wanted": 7,
        "pending": 6,
        "running": 1,
        "max_jobs": 9,
        "workers": 4,
        "next_try_in_s": 40.0,
        "problem": "refused: sbatch: error: [x] invalid account",
    }
    job = {"kind": "small", "phase": "pending", "state": "PENDING", "reason": "Resources"}
    running = {"id": "11", "kind": "small", "phase": "serving", "state": "RUNNING", "reason": ""}
    jobs = [{"id": str(n), **job, "nodes": ""} for n in range(1, 7)] + [running | {"nodes": "n3"}]
    cluster = {
        "system": "SLURM",
        "problem": "squeue did not answer in 60 s",
        "kinds": [kind],
        "jobs": jobs,
    }
    event = {"time": 0.0, "event": "refused", "worker": "small", "text": "error: [x] invalid"}
    state = {**EMPTY, "cluster": cluster, "events": [event]}
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(tables(state))
    out = console.export_text()
    assert re.search(r"small +beam +7 +6 +1 +9 +4", out)
    assert re.search(r"small +pending +PENDING +Resources +1, 2, 3, 4 and 2 more", out)
    assert re.search(r"small +serving +RUNNING +n3 +11", out)
    assert "small: refused: sbatch: error: [x] invalid account; next try in 40 s" in out
    assert "SLURM does not answer: squeue did not answer in 60 s" in out
    assert "refused small: error: [x] invalid" in out


def test_each_worker_of_a_dask_cluster_is_shown() -> None:
    row = {"host": "n1", "threads": 4, "slots": 1, "in_flight": 1, "done": 7, "state": "open"}
    other = {**row, "name": "", "slots": 0, "state": "lacks resources"}
    rows = [{"address": "tcp://n1:1", "name": "gpu-0", **row}, {"address": "tcp://n1:2", **other}]
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(tables({**EMPTY, "events": [], "dask": rows}))
    text = console.export_text()
    assert re.search(r"Dask worker +host +threads +slots +running +done +state", text)
    assert re.search(r"gpu-0 +n1 +4 +1 +1 +7 +open", text)
    assert re.search(r"tcp://n1:2 +n1 +4 +0 +1 +7 +lacks resources", text)


def test_models_are_shown_with_units_and_descriptions() -> None:
    load = {"name": "load", "shape": [1], "unit": "N", "description": "at the tip"}
    field = {"name": "u", "shape": [-1, 2]}
    point = {"name": "point", "shape": []}
    beam = {"name": "beam", "inputs": [load, point], "outputs": [field], "left_out": 3}
    console = Console(file=io.StringIO(), width=120)
    console.print(tables({**EMPTY, "events": [], "descriptions": [beam]}))
    shown = console.file.getvalue()  # type: ignore[attr-defined] # it is the StringIO above
    assert "load [1] N (at the tip), point " in shown
    assert "u [any x 2], and 3 more" in shown


def test_experiments_are_shown() -> None:
    numbers = {"asked": 12, "told": 9, "failed": 1, "pending": 2}
    row = {"number": 0, "name": "[b]", "strategy_name": "opt", **numbers}
    rows = [
        {**row, "run": "paused", "finished": False},
        {**row, "number": 1, "name": "", "run": None, "finished": True},
    ]
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(tables({**EMPTY, "experiments": rows, "events": []}))
    out = console.export_text()
    assert re.search(r"0 \[b\] +opt +12 +9 +1 +2 +paused", out)
    assert re.search(r"1 +opt +12 +9 +1 +2 +finished", out)


def test_calls_that_stand_out_tell_their_story() -> None:
    story = ["queued 3 s", "lost with [w1] after 12 s (signal 9)", "queued again 0.2 s"]
    call = {"model": "beam", "operation": "evaluate", "phase": "queued", "age_s": 15.2}
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(tables({**EMPTY, "events": [], "calls": [{**call, "story": story}]}))
    out = console.export_text()
    assert re.search(r"beam +evaluate +15.2 s +queued 3 s, lost with \[w1\] after 12 s", out)
    assert "queued again 0.2 s" in out


def test_chains_are_shown_the_latest_first_and_not_all() -> None:
    counts = {"queued": 3, "in_flight": 1, "done": 1234, "failed": 5}
    times = {"calls_per_s": 2.3456, "share": 0.123456, "last_answer_s": 15.2}
    rows = [{"client": "", "chain": f"chain {i}", **counts, **times} for i in range(100)]
    rows[0] = {**rows[0], "client": "[me]", "chain": None, "last_answer_s": None}
    rows[1] = {**rows[1], "client": "x" * 99, "chain": ""}
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(tables({**EMPTY, "events": [], "chains": rows}))
    out = console.export_text()
    assert re.search(r"\[me\] +3 +1 +1234 +5 +2\.35 +12\.3% *\n", out)
    assert re.search(r"x{39}\u2026 +\(bulk\) +3 +1 +1234 +5 +2\.35 +12\.3% +15\.2 s", out)
    assert re.search(r"\(no name\) +chain 19 +3 +1 ", out)
    assert "chain 20" not in out
    assert "and 80 more chains; --json lists them" in out
    console.print(tables({**EMPTY, "events": [], "chains": []}))
    assert "last answer" not in console.export_text(clear=False)[len(out) :]


def test_clients_whose_calls_wait_see_why() -> None:
    why = [{"rule": "busy", "text": "all 2 workers are [busy]", "calls": 0}]
    why.append({"rule": "older", "text": "7 calls of its client came earlier", "calls": 7})
    row = {"client": "", "model": "beam", "operation": "evaluate", "calls": 8, "age_s": 15.2}
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(tables({**EMPTY, "events": [], "waits": [{**row, "why": why}]}))
    reasons = r"all 2 workers are \[busy\]; 7 calls of its client came earlier"
    assert re.search(rf"\(no name\) +beam +evaluate +8 +15.2 s +{reasons}", console.export_text())


EMPTY: dict[str, Any] = {
    "workers": [],
    "queues": [],
    "calls_per_s": 0.0,
    "done": 0,
    "failed": 0,
    "up_s": 1.0,
    "overhead_s": None,
    "idle_gap_s": None,
}


def test_the_record_is_shown_with_what_stopped_it() -> None:
    console = Console(record=True, width=200, file=io.StringIO())
    record = {
        "file": "a.record",
        "points": 7,
        "reuse": True,
        "answered": 3,
        "models": {"beam": {"reused": True}, "plate": {"reused": False}},
        "trouble": "the disk is full",
    }
    state = {**EMPTY, "record": record, "events": []}
    console.print(tables(state))
    shown = console.export_text()
    assert "record a.record: 7 evaluations, 3 calls answered without a run; reused: beam;" in shown
    assert "nothing more is recorded: the disk is full" in shown
    quiet = {**record, "reuse": False, "trouble": ""}
    console.print(tables({**state, "record": quiet}))
    assert "record a.record: 7 evaluations\n" in console.export_text().replace(" \n", "\n")


def test_workers_that_have_not_joined_are_shown() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(tables({**EMPTY, "expected": {"workers": 8, "joined": 4}, "events": []}))
    assert "8 workers expected, 4 have joined after 30 s" in console.export_text()


@pytest.mark.parametrize(("count", "words"), [(1, "1 restart"), (3, "3 restarts")])
def test_restarts_of_the_front_door_are_shown(count: int, words: str) -> None:
    console = Console(record=True, width=200, file=io.StringIO())
    restarts = {"count": count, "reason": "was killed by signal 9 (SIGKILL)", "time": 900_000.0}
    console.print(tables({**EMPTY, "restarts": restarts, "events": []}))
    shown = " ".join(console.export_text().split())
    assert "front door was started again at 1970-01-11 " in shown
    assert f"(it was killed by signal 9 (SIGKILL)), {words} " in shown
