"""`farm status`: tables for people, JSON for scripts."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

import farm
from farm.cli import run
from farm.cli.status import BAR, CLIENTS_SHOWN, bar, clients, lines, progress, tables
from tests.cli.conftest import rendered
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import BEAM, LIMIT_S, Served, farm_of

EMPTY: dict[str, Any] = {
    "workers": [],
    "queues": [],
    "calls_per_s": 0.0,
    "done": 0,
    "failed": 0,
    "up_s": 1.0,
    "overhead_s": None,
    "idle_gap_s": None,
    "events": [],
}


def shown(width: int = 120, **state: Any) -> str:
    """Return the tables of a farm's state on a console."""
    return rendered(tables({**EMPTY, **state}), width=width)


fresh_farm = farm_of(BEAM, workers=2)


@pytest.fixture(scope="module")
def served(fresh_farm: Served) -> Served:
    assert run(["call", "1,2,4", "8", "--to", str(fresh_farm.folder)]) == 0
    assert run(["call", "1,2,4", "--to", str(fresh_farm.folder)]) == 2
    return fresh_farm


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


def test_tables_show_the_same(capsys: pytest.CaptureFixture[str], served: Served) -> None:
    assert run(["status", str(served.folder), "--to", "other"]) == 2
    assert "expected one farm" in capsys.readouterr().err
    assert run(["status", str(served.folder)]) == 0
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
    out = shown(cluster=cluster, events=[event])
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
    text = shown(dask=rows)
    assert re.search(r"Dask worker +host +threads +slots +running +done +state", text)
    assert re.search(r"gpu-0 +n1 +4 +1 +1 +7 +open", text)
    assert re.search(r"tcp://n1:2 +n1 +4 +0 +1 +7 +lacks resources", text)


def test_models_are_shown_with_units_and_descriptions() -> None:
    load = {"name": "load", "shape": [1], "unit": "N", "description": "at the tip"}
    field = {"name": "u", "shape": [-1, 2]}
    point = {"name": "point", "shape": []}
    beam = {"name": "beam", "inputs": [load, point], "outputs": [field], "left_out": 3}
    text = shown(descriptions=[beam])
    assert "load [1] N (at the tip), point " in text
    assert "u [any x 2], and 3 more" in text


def test_experiments_are_shown() -> None:
    numbers = {"asked": 12, "told": 9, "failed": 1, "pending": 2}
    row = {"number": 0, "name": "[b]", "strategy_name": "opt", **numbers}
    rows = [
        {**row, "run": "paused", "finished": False},
        {**row, "number": 1, "name": "", "run": None, "finished": True},
    ]
    out = shown(experiments=rows)
    assert re.search(r"0 \[b\] +opt +12 +9 +1 +2 +paused", out)
    assert re.search(r"1 +opt +12 +9 +1 +2 +finished", out)


def test_calls_that_stand_out_tell_their_story() -> None:
    story = ["queued 3 s", "lost with [w1] after 12 s (signal 9)", "queued again 0.2 s"]
    call = {"model": "beam", "operation": "evaluate", "phase": "queued", "age_s": 15.2}
    out = shown(140, calls=[{**call, "story": story}])
    assert re.search(r"beam +evaluate +15.2 s +queued 3 s, lost with \[w1\] after 12 s", out)
    assert "queued again 0.2 s" in out


def test_chains_are_shown_the_latest_first_and_not_all() -> None:
    counts = {"queued": 3, "in_flight": 1, "done": 1234, "failed": 5}
    times = {"calls_per_s": 2.3456, "share": 0.123456, "last_answer_s": 15.2}
    rows = [{"client": "", "chain": f"chain {i}", **counts, **times} for i in range(100)]
    rows[0] = {**rows[0], "client": "[me]", "chain": None, "last_answer_s": None}
    rows[1] = {**rows[1], "client": "x" * 99, "chain": ""}
    out = shown(160, chains=rows)
    assert re.search(r"\[me\] +3 +1 +1234 +5 +2\.35 +12\.3% *\n", out)
    assert re.search(r"x{39}\u2026 +\(bulk\) +3 +1 +1234 +5 +2\.35 +12\.3% +15\.2 s", out)
    assert re.search(r"\(no name\) +chain 19 +3 +1 ", out)
    assert "chain 20" not in out
    assert "and 80 more chains; --json lists them" in out
    assert "client" not in shown(160, chains=[])


def test_clients_whose_calls_wait_see_why() -> None:
    why = [{"rule": "busy", "text": "all 2 workers are [busy]", "calls": 0}]
    why.append({"rule": "older", "text": "7 calls of its client came earlier", "calls": 7})
    row = {"client": "", "model": "beam", "operation": "evaluate", "calls": 8, "age_s": 15.2}
    text = shown(160, waits=[{**row, "why": why}])
    reasons = r"all 2 workers are \[busy\]; 7 calls of its client came earlier"
    assert re.search(rf"\(no name\) +beam +evaluate +8 +15.2 s +{reasons}", text)


def test_the_record_is_shown_with_what_stopped_it() -> None:
    record = {
        "file": "a.record",
        "points": 7,
        "reuse": True,
        "answered": 3,
        "models": {"beam": {"reused": True}, "plate": {"reused": False}},
        "trouble": "the disk is full",
    }
    text = shown(200, record=record)
    assert "record a.record: 7 evaluations, 3 calls answered without a run; reused: beam;" in text
    assert "nothing more is recorded: the disk is full" in text
    quiet = {**record, "reuse": False, "trouble": ""}
    assert "record a.record: 7 evaluations\n" in shown(200, record=quiet).replace(" \n", "\n")


def test_workers_that_have_not_joined_are_shown() -> None:
    text = shown(expected={"workers": 8, "joined": 4})
    assert "8 workers expected, 4 have joined after 30 s" in text


@pytest.mark.parametrize(("count", "words"), [(1, "1 restart"), (3, "3 restarts")])
def test_restarts_of_the_front_door_are_shown(count: int, words: str) -> None:
    restarts = {"count": count, "reason": "was killed by signal 9 (SIGKILL)", "time": 900_000.0}
    text = " ".join(shown(200, restarts=restarts).split())
    assert "front door was started again at 1970-01-11 " in text
    assert f"(it was killed by signal 9 (SIGKILL)), {words} " in text


# Clients, progress and reasons to wait


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


def test_the_table_of_clients() -> None:
    rows = [ROW, {**ROW, "client": "", "last_s": None}, {**ROW, "client": "\x1b[31m[b]"}]
    out = rendered(*clients(rows))
    assert re.search(r"sweep +1 +12 +4 +100 +2 +2.5 +75.0% +500 ms", out)
    assert re.search(r"\(no name\) +1 .* 75.0% *\n", out)
    assert r"\x1b[31m[b]" in out
    many = [ROW] * CLIENTS_SHOWN + [{**ROW, "others": 7}]
    assert "and 1 more clients; --json lists them" in rendered(*clients(many))
    assert "7 others" in rendered(*clients(many[-1:]))


def test_the_table_of_progress_has_bars_and_expected_ends() -> None:
    rows = [
        RUNS,
        {**RUNS, "kind": "experiment", "total": None, "ends_in_s": None},
        {**RUNS, "state": "complete", "done": 90, "ends_in_s": None},
    ]
    out = rendered(progress(rows))
    assert re.search(
        r"sweep +beam lhs +sweep-1 +█{10}░{10}  50% +40/100 +10 +2 +in about 25 s", out
    )
    assert re.search(r"experiment +beam lhs +sweep-1 +40 +10 +2 *\n", out)
    assert re.search(r"█{20} 100% +90/100 +10 +2 +complete", out)
    assert "█" * BAR + " 100%" in rendered(progress([{**RUNS, "done": 1000}]))
    assert bar({**RUNS, "total": 0}) == ""


def test_names_that_people_type_are_whole_in_a_narrow_terminal() -> None:
    name = "sweep-55cc7c9e"
    out = rendered(progress([{**RUNS, "client": name, "done": 50, "failed": 0}]), width=80)
    assert name in out
    assert re.search(r"█+░+  50%", out), "the bar is shorter, its percentage is there"
    row = {"client": name, "others": 0, "callers": 1, "queued": 18, "running": 2, "done": 0}
    row |= {"failed": 0, "calls_per_s": 0.0, "share": 1.0, "last_s": 12.5}
    out = rendered(*clients([row]), width=80)
    assert name in out
    assert "100.0%" in out


def test_lines_are_safe_for_a_terminal() -> None:
    assert lines({"why": ["one \x1b[2J", "two"]}) == "one \\x1b[2J\n  two"


def test_why_calls_wait_behind_a_sweep(capsys: pytest.CaptureFixture[str], held: Served) -> None:
    def shown(*arguments: str) -> str:
        assert run([*arguments]) == 0
        return capsys.readouterr().out

    def post(call_id: str) -> requests.Response:
        body = {"name": "gate", "input": [[1.0]], "config": {}}
        url = f"{held.connection.url}/Evaluate"
        return requests.post(url, json=body, headers={"X-Request-ID": call_id}, timeout=LIMIT_S)

    with (
        ThreadPoolExecutor() as pool,
        farm.connect(held.folder, client="sweep") as sweep,
        farm.connect(held.folder, client="chain", chain="7") as chain,
    ):
        model = sweep.model()
        first = model.submit([1.0])
        wait_until(lambda: sweep.clients() and sweep.clients()[0]["running"] == 1)
        more = [model.submit([2.0]) for _ in range(3)]
        wait_until(lambda: sweep.clients()[0]["queued"] == 3)
        mine = chain.model().submit([3.0])
        wait_until(lambda: chain.why()["phase"] == "queued")
        request = pool.submit(post, "abc-123")
        wait_until(lambda: chain.why(call="abc-123")["phase"] == "queued")
        for target in (str(held.folder), held.connection.url):
            why = ("status", "--to", target, "--why")
            out = shown(*why, "chain")
            assert "of client 'chain' in chain '7', has waited" in out
            assert "\n  it is next: no other call goes first\n" in out
            assert "with calls of 'sweep' (1)" in out
            found = json.loads(shown(*why, "chain", "--chain", "7", "--json"))
            assert (found["client"], found["position"]) == ("chain", 1)
            number = found["call"]
            assert f"call {number}, evaluate of model 'gate'" in shown(*why, number)
            assert "client 'nobody' has no open call" in shown(*why, "nobody")
            assert "no open call" in shown(*why, "chain", "--chain", "8")
            assert "call 99 is not open" in shown(*why, "99")
            assert re.search(r"sweep +4 +3 +1 +0 +0 ", shown("status", "--to", target))
            out = shown(*why, "abc-123")
            assert "with the id 'abc-123', evaluate of model 'gate'" in out
            out = shown(*why, "no-such-id")
            assert "client 'no-such-id' has no open call, and no open" in out
        (held.folder.parent / "open").touch()
        assert (first.result()[0], mine.result()[0]) == (1.0, 3.0)
        assert [future.result()[0] for future in more] == [2.0] * 3
        assert request.result().status_code == 200


def test_a_client_without_a_name_asks_about_its_own_calls(held: Served) -> None:
    with farm.connect(held.folder, client="other") as other:
        first = other.model().submit([1.0])
        wait_until(lambda: other.why()["phase"] == "sent")
        for target in (str(held.folder), held.connection.url):
            with farm.connect(target) as client:
                client.model().submit([2.0])
                wait_until(lambda: client.why()["phase"] == "queued")
                found = client.why()
                assert found["before"] == []
                assert found["client"]
                assert client.why(found["client"])["call"] == found["call"]
        (held.folder.parent / "open").touch()
        assert first.result()[0] == 1.0


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--chain", "1"]) == 2
    assert "--chain needs --why" in capsys.readouterr().err
    assert run(["status", "--why", "a", "--watch"]) == 2
    assert "exclude one another" in capsys.readouterr().err
