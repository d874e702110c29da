"""Farms with a problem: page, terminal and Python give a user the same answers.

The farms are real. A full SLURM partition is in `tests/slurm/test_full_partition.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import farm
from tests.support import scenes
from tests.support.browser import Browser
from tests.support.dispatcher_farm import LIMIT_S, Served, run_farm

pytestmark = pytest.mark.browser


def look(browser: Browser, served: Served) -> None:
    browser.open(served.connection.url)
    browser.until_text("#link", "live")


def terminal(served: Served) -> Callable[..., str]:
    """Return a function that runs `farm WORDS` at the farm and returns what it prints."""

    def told(*words: str) -> str:
        status, out, errors = run_farm(*words, "--to", str(served.folder), cwd=served.folder)
        assert status == 0, errors
        return out

    return told


def open_row(browser: Browser, table: str, text: str) -> str:
    """Open the first row of a table, and return what it shows once this text is among it."""
    browser.click(f"#{table} tbody button.opener")
    return browser.until_text(f"#{table} tr.detail", text)


def test_a_model_that_fails_for_a_tenth_of_its_inputs(browser: Browser, tmp_path: Path) -> None:
    with scenes.a_tenth_fails(tmp_path) as served, farm.connect(served.folder) as client:
        cli = terminal(served)
        (reason,) = client.failures()
        number = float(reason.inputs.removeprefix("x = [").rstrip("]"))
        text = f"ArithmeticError: no root in [{number}, {number + 1}]"
        assert (reason.count, reason.text, reason.client) == (20, text, "survey")
        assert text in reason.detail

        look(browser, served)
        browser.until_text("#notices", "20 calls failed, last ")
        row = browser.text("#failures-table tbody tr")
        assert all(part in row for part in (text, "20"))
        opened = open_row(browser, "failures-table", "Traceback")
        assert all(part in opened for part in (text, "survey", reason.inputs))
        assert "20" in browser.until_text("#queues-table tbody tr", "180")
        assert "survey" in browser.text("#clients-table tbody tr")
        assert browser.cut_tables() == []

        told = cli("failures")
        assert "20 calls failed for 1 reason" in told
        assert text in " ".join(told.split())
        assert f"inputs     {reason.inputs}" in cli("failures", reason.id)
        past = cli("status", "--since", "10m")
        assert "failed/s" in past
        assert text in " ".join(past.split())
        assert sum(client.history(since=-600)["series"]["failed_per_s"]) > 0.0
        assert reason.worker is not None
        assert text in cli("logs", reason.worker, "--lines", "1000")
        assert text in client.log(reason.worker, lines=1000)


def test_a_worker_that_dies_again_and_again(browser: Browser, tmp_path: Path) -> None:
    words = "exit code 3: CUDA error: out of memory on device 0"
    with (
        scenes.a_worker_dies_again_and_again(tmp_path) as served,
        farm.connect(served.folder) as client,
    ):
        cli = terminal(served)
        (loss,) = client.losses()
        assert loss.count >= 4
        assert (loss.text, loss.exit_code) == ("exit code 3", 3)
        assert "CUDA error: out of memory on device 0" in loss.detail
        (sick,) = [row for row in scenes.workers_of(client) if row["trouble"]]
        trouble = f"was started again {sick['restarts']} times"
        assert sick["trouble"] == [trouble]
        assert client.failures() == []

        look(browser, served)
        notices = browser.until_text("#notices", words)
        assert f"{sick['name']}: {trouble}" in notices
        assert words in browser.text("#losses-table tbody tr")
        open_row(browser, "losses-table", "CUDA error")
        first = browser.text("#workers-table tbody tr")
        assert sick["name"] in first
        assert trouble in " ".join(first.split())
        open_row(browser, "workers-table", "CUDA error")
        assert browser.cut_tables() == []

        assert words in " ".join(cli("failures").split())
        assert f"{sick['name']}: {trouble}" in cli("status")
        assert "CUDA error" in cli("logs", loss.worker)
        assert "CUDA error" in client.log(loss.worker)
        assert words in " ".join(cli("status", "--since", "10m").split())


@pytest.mark.timeout(180)
def test_a_hung_call(browser: Browser, tmp_path: Path) -> None:
    with scenes.a_call_hangs(tmp_path) as (served, call), farm.connect(served.folder) as client:
        cli = terminal(served)
        found = client.why("sampler", chain="3")
        assert found["position"] == 0
        worker = found["workers"]["rows"][0]["name"]
        assert any(f"`farm restart {worker}` ends it there" in line for line in found["why"])
        rows = [row for row in scenes.workers_of(client) if row["trouble"]]
        assert worker in {row["name"] for row in rows}
        assert all("times as long as others did" in row["trouble"][0] for row in rows)
        assert client.log(worker, lines=1) == "solves for -1.0\n"

        look(browser, served)
        browser.until_text("#notices", "times as long as others did")
        oldest = browser.until_text("#calls-table tbody tr", found["call"])
        assert "sampler" in oldest
        browser.run("document.querySelector('#why-of').value = arguments[0]", found["call"])
        browser.click("#why-form button")
        answer = browser.until_text("#why-answer", "it may hang")
        assert "3 have its model" in answer
        detail = open_row(browser, "workers-table", "solves for -1.0")
        assert "of sampler, chain 3" in detail
        assert "Restart" in detail
        assert browser.cut_tables() == []

        assert "it may hang" in cli("status", "--why", "sampler", "--chain", "3")
        assert "times as long as others did" in cli("status")
        assert cli("logs", worker, "--lines", "1") == "solves for -1.0\n"
        assert not call.done()


def test_a_chain_behind_a_sweep(browser: Browser, tmp_path: Path) -> None:
    with (
        scenes.a_chain_waits_behind_a_sweep(tmp_path) as (served, sweep, call),
        farm.connect(served.folder) as client,
    ):
        cli = terminal(served)
        (name,) = [row["client"] for row in client.progress() if row["kind"] == "sweep"]
        found = client.why("sampler", chain="3")
        assert (found["position"], found["workers"]["running"]) == (1, {name: 2})
        shares = {row["client"]: row["share"] for row in client.clients()}
        assert shares == {name: 1.0, "sampler": 0.0}

        look(browser, served)
        busy = f"all its 2 workers are busy, with calls of '{name}' (2)"
        rows = browser.until(
            "return document.querySelectorAll('#waits-table tbody tr').length == 2"
        )
        assert rows
        assert any(
            "sampler" in row and busy in row for row in browser.texts("#waits-table tbody tr")
        )
        progress = browser.text("#progress-table tbody tr")
        assert all(part in progress for part in ("survey", name, "0 of 60"))
        assert "100 %" in browser.text("#clients-table tbody tr")
        assert browser.cut_tables() == []

        assert f"with calls of '{name}' (2)" in cli("status", "--why", "sampler", "--chain", "3")
        told = cli("status")
        assert "0/60" in told
        assert told.count(name) >= 2, "the name is whole: people type it"
        (tmp_path / "open").touch()
        assert call.result(LIMIT_S)[0] == 0.0
        assert sweep.wait(LIMIT_S) == 0


@pytest.mark.timeout(240)
def test_a_thousand_workers(browser: Browser, tmp_path: Path) -> None:
    with scenes.a_thousand_workers(tmp_path) as served, farm.connect(served.folder) as client:
        cli = terminal(served)
        sick = {row["name"]: row["trouble"] for row in scenes.workers_of(client) if row["trouble"]}
        assert any("times as long as on other workers" in text for text in sick["node17/7"])
        found = client.why("survey")
        hung = found["workers"]["rows"][0]["name"]
        assert hung in sick

        look(browser, served)
        browser.until_text("#workers-table tbody tr", "Sick or slow")
        names = browser.texts("#workers-table tbody tr > :first-child")
        assert len(names) == 1 + len(sick) + 50
        assert set(names[1 : 1 + len(sick)]) == set(sick)
        browser.until_text("#calls-table tbody tr", "survey")
        joins = [row for row in browser.texts("#events-table tbody tr") if "joined" in row]
        assert len(joins) == 1

        told = cli("status")
        assert "node17/7: its " in told
        assert "times as long as on other workers" in " ".join(told.split())
        assert f"{hung}: its call runs" in told
        assert len([line for line in told.splitlines() if line.startswith("node")]) <= 40 + 6
        assert len([line for line in told.splitlines() if " joined " in line]) == 1
        assert f"`farm logs {hung}`" in cli("status", "--why", "survey")
