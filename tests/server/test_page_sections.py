"""Each question has its section: what the page shows of a given status, in a real browser."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.browser import ESCAPE, Browser
from tests.support.fake_farm import FakeFarm, bare_status, fake_farm, history, worker

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=document.title='owned'> \x1b[31m\u202e"
SHOWN = "<img src=x onerror=document.title='owned'> \\u{1b}[31m\\u{202e}"


@pytest.fixture
def farm() -> Iterator[FakeFarm]:
    with fake_farm(bare_status(workers=[worker("w1"), worker("w2")])) as served:
        yield served


def look(browser: Browser, farm: FakeFarm, **state: Any) -> None:
    """Open the page with more in the status, and wait until it has shown it."""
    farm.state = {**farm.state, **state}
    browser.open(farm.url)
    browser.until_text("#link", "live")


def failure(number: int, **more: Any) -> dict[str, Any]:
    now = time.time()
    return {
        "id": f"f{number}",
        "kind": "ModelFailed",
        "model": "beam",
        "operation": "evaluate",
        "text": f"ValueError: load {number} is negative",
        "count": 12,
        "first": now - 500.0,
        "last": now - 3.0,
        "worker": "w1",
        "client": "bob",
        "inputs": "E [1 2 3], load [-1]",
        **more,
    }


def client(name: str, **more: Any) -> dict[str, Any]:
    return {
        "client": name,
        "callers": 2,
        "queued": 40,
        "running": 3,
        "done": 100,
        "failed": 2,
        "share": 0.75,
        "worker_s": 1000.0,
        "calls_per_s": 3.25,
        "last_s": 0.5,
        **more,
    }


def test_a_farm_without_parts_that_watch_is_shown(browser: Browser, farm: FakeFarm) -> None:
    look(browser, farm, workers=[])
    assert "no workers" in browser.text("#workers-table")
    assert "no calls yet" in browser.text("#queues-table")
    for section in ("failures", "losses", "clients", "progress", "history", "jobs", "notices"):
        assert browser.text(f"#{section}") == "", section


def test_why_calls_wait(browser: Browser, farm: FakeFarm) -> None:
    farm.answers["why"] = lambda words: (
        200,
        {
            "why": ["3 calls of the sweep are before it"],
            "position": 4,
            "before": [{"client": "sweep", "count": 3, "reason": "it holds fewer workers"}],
            "workers": {"count": 3, "busy": 2, "idle": 0, "shut": 1, "rows": [{"worker": "w1"}]},
            "jobs": [{"id": "77", "state": "PENDING", "reason": "Resources"}],
        },
    )
    reason = {"text": "no worker is free", "calls": 3}
    wait = {"client": "bob", "model": "beam", "operation": "evaluate", "calls": 40, "age_s": 30.0}
    look(browser, farm, waits=[{**wait, "why": [reason]}])
    row = browser.text("#waits-table tbody tr")
    assert all(text in row for text in ("bob", "beam", "40", "30 s", "no worker is free"))
    browser.click("#waits-table tbody button")
    shown = browser.until_text("#why-answer", "3 calls of the sweep are before it")
    assert "3 of sweep: it holds fewer workers" in shown
    assert "3 have its model, 2 busy, 1 draining or unreachable" in shown
    assert "Place\n4" in shown
    assert "77 PENDING Resources" in shown
    assert ("GET", "why", {"client": "bob"}) in farm.asked
    browser.run("document.querySelector('#why-of').value = '17'")
    browser.click("#why-form button")
    browser.until_text("#why-answer", "3 calls")
    assert ("GET", "why", {"of": "17"}) in farm.asked


def test_why_calls_of_clients_without_a_name_wait(browser: Browser, farm: FakeFarm) -> None:
    farm.answers["why"] = lambda words: (200, {"why": [f"asked {json.dumps(words)}"]})
    wait = {"model": "beam", "operation": "evaluate", "calls": 1, "age_s": 30.0, "why": []}
    look(browser, farm, waits=[{**wait, "client": ""}])
    browser.click("#waits-table tbody button")
    browser.until_text("#why-answer", 'asked {"client": ""}')
    assert browser.run("return document.querySelector('#why-of').value") == "(no name)"
    browser.click("#why-form button")
    browser.until_text("#why-answer", 'asked {"of": "(no name)"}')


def test_what_failed_and_why(browser: Browser, farm: FakeFarm) -> None:
    farm.answers["failures"] = lambda words: (
        200,
        {**failure(1), "detail": f"Traceback\n  line 7\n{HOSTILE}"},
    )
    look(browser, farm, failures=[failure(1, text=HOSTILE), failure(2, inputs=HOSTILE)])
    assert SHOWN in browser.text("#failures-table")
    browser.click("#failures-table tbody button")
    detail = browser.until_text("#failures-table tr.detail", "line 7")
    assert SHOWN in detail
    assert "E [1 2 3], load [-1]" in detail
    assert ("GET", "failures", {"id": "f1"}) in farm.asked
    browser.run("document.querySelector('tr.detail pre').wasHere = true")
    farm.state["failures"] = [failure(3), failure(1, text=HOSTILE, count=4321), failure(2)]
    browser.until_text("#failures-table tr.detail", "4,321 times")
    assert browser.run("return document.querySelector('tr.detail pre').wasHere")
    assert "load 3" in browser.texts("#failures-table tbody tr")[0]
    assert browser.run("return document.querySelectorAll('#failures-table img').length") == 0
    assert browser.run("return document.title") == "farm"
    assert "36 calls failed" not in browser.text("#notices")
    assert "4,345 calls failed" in browser.text("#notices")


def test_losses_do_not_scroll_away_under_joins(browser: Browser, farm: FakeFarm) -> None:
    now = time.time()
    loss = {"cause": "crash", "text": "exit code 3", "count": 28, "first": now - 60, "last": now}
    joins = [
        {"time": now - 100 + i, "event": "joined", "worker": f"w{i}", "text": "beam"}
        for i in range(99)
    ]
    lost = {"time": now - 101, "event": "lost", "worker": "w0", "text": "exit code 3"}
    more = {"worker": "w3", "host": "node7", "detail": f"MemoryError\nin solve\n{HOSTILE}\n\n"}
    look(browser, farm, losses=[{**loss, **more}], events=[lost, *joins])
    row = browser.text("#losses-table tbody tr")
    assert all(text in row for text in ("28", "crash", "w3", "node7"))
    for place in (row, browser.text("#notices")):
        assert f"exit code 3: {SHOWN}" in place, "how the last of them ended"
    browser.click("#losses-table tbody button")
    assert "MemoryError\nin solve" in browser.text("#losses-table tr.detail")
    events = browser.texts("#events-table tbody tr")
    assert len(events) == 2
    assert "w98 and 98 before" in events[0]
    assert "exit code 3" in events[1]
    assert "28 workers were lost" in browser.text("#notices")


def test_joins_of_workers_from_elsewhere_are_two_rows(browser: Browser, farm: FakeFarm) -> None:
    now = time.time()
    events = [{"time": now - 50, "event": "lost", "worker": "w", "text": "signal SIGKILL"}]
    for i in range(40):
        of_it = {"time": now - 40 + i, "worker": f"n/{i}"}
        events.append({**of_it, "event": "joined", "text": "beam"})
        events.append({**of_it, "event": "from elsewhere", "text": f"process {i}"})
    look(browser, farm, events=events)
    rows = browser.texts("#events-table tbody tr")
    assert len(rows) == 3
    assert sum("n/39 and 39 before" in row for row in rows) == 2
    assert "signal SIGKILL" in rows[-1]


def test_which_worker_is_slow_or_sick(browser: Browser, farm: FakeFarm) -> None:
    call = {"call": "5", "model": "beam", "operation": "evaluate", "client": "bob", "chain": "c1"}
    times = {"p50": 2.5, "p90": 4.0, "p99": 9.0, "count": 50}
    sick = worker(
        "w9",
        trouble=[
            "its runs take 2.5 times as long as on other workers",
            "was started again 3 times",
        ],
        restarts=3,
        running_s=90.0,
        busy_s=5000.0,
        running=call,
        run_times_s=times,
        memory_bytes=1_500_000_000,
        processor=0.97,
        failed=7,
        age_s=600.0,
    )
    look(browser, farm, workers=[worker("w1"), worker("w2"), sick])
    heads = browser.texts("#workers-table thead th")
    cells = browser.texts("#workers-table tbody tr:first-child > *")
    row = dict(zip(heads, cells, strict=True))
    assert row["Worker"] == "w9"
    assert row["State"] == "busy 90 s"  # the age of the call, not how long the worker was not idle
    assert row["Trouble"].startswith("its runs take 2.5 times as long")
    assert [row[q] for q in ("p50", "p90", "p99")] == ["2.5 s", "4 s", "9 s"]
    assert (row["Memory"], row["Processor"]) == ("1.5 GB", "97 %")
    assert (row["Age"], row["Restarts"], row["Failed"]) == ("10 min", "3", "7")
    assert "1 worker is slow or sick: w9" in browser.text("#notices")
    browser.click("#workers-table tbody button")
    opened = browser.until_text("#workers-table tr.detail", "chain c1")
    assert "beam evaluate, for 90 s, of bob" in opened


def test_what_a_worker_prints_is_followed(browser: Browser, farm: FakeFarm) -> None:
    written = {"text": f"step 1\n{HOSTILE}\n"}

    def log(words: Any) -> tuple[int, Any]:
        text = written["text"]
        return 200, {"text": text[int(words.get("after", "0")) :], "next": str(len(text))}

    farm.answers["log"] = log
    look(browser, farm)
    browser.click("#workers-table tbody button")
    assert SHOWN in browser.until_text("pre.log", "step 1")
    written["text"] += "step 2\n"
    assert browser.until_text("pre.log", "step 2").count("step 1") == 1
    first, *later = [words for _, name, words in farm.asked if name == "log"]
    assert first == {"worker": "w1", "lines": "200"}
    assert later
    assert all("after" in words for words in later)


def test_a_worker_without_a_log_says_so(browser: Browser, farm: FakeFarm) -> None:
    look(browser, farm)
    browser.click("#workers-table tbody button")
    browser.until_text("pre.log", "no log: this farm has no logs of workers")


def test_how_long_it_takes(browser: Browser, farm: FakeFarm) -> None:
    of_sweep = {"kind": "sweep", "name": "s.h5", "client": "bob", "done": 30, "failed": 1}
    rates = {"total": 100, "calls_per_s": 2.0, "ends_in_s": 35.0, "since_s": 15.0}
    chain = {"kind": "chain", "name": HOSTILE, "client": "al", "total": None, "ends_in_s": None}
    look(browser, farm, progress=[{**of_sweep, **rates}, {**of_sweep, **rates, **chain}])
    sweep, other = browser.texts("#progress-table tbody tr")
    assert all(text in sweep for text in ("s.h5", "sweep", "30 of 100", "in 35 s, at "))
    assert "of 100" not in other
    bars = "return [...document.querySelectorAll('#progress-table progress')]"
    values = browser.run(f"{bars}.map((x) => (x.checkVisibility() ? x.value : 'hidden'))")
    assert values == [0.31, "hidden"]
    long = {"name": "diffusion sobol:1000000", "client": "sweep-15cc4410", "done": 7783}
    long |= {"failed": 12345, "total": 1_000_000, "calls_per_s": 126.0, "ends_in_s": 7874.0}
    farm.state["progress"] = [{**of_sweep, **rates, **long}]
    browser.until_text("#progress-table tbody tr", "in 2 h 11 min, at ")
    assert browser.cut_tables() == [], "the expected end is in the window"


def test_an_error_has_room_beside_its_numbers(browser: Browser, farm: FakeFarm) -> None:
    told = failure(
        1,
        text="the solver did not converge in 200 iterations: residual 1.3e-02, expected 1e-08",
        model="navier_stokes",
        worker="node0123/4412-a1b2",
        client="anna@login1, mcmc.py 812",
        inputs="x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]",
        last=1e9,  # a date is wider than a time of day
    )
    browser.show_as(1280, 900)
    look(browser, farm, failures=[told])
    height = "const row = document.querySelector('#failures-table tbody tr');"
    height += "return row.offsetHeight / parseFloat(getComputedStyle(row).lineHeight)"
    assert browser.run(height) < 3.5, "its text has two or three lines"
    assert browser.cut_tables() == []


def test_a_call_that_was_sent_ahead_does_not_run(browser: Browser, farm: FakeFarm) -> None:
    look(browser, farm, workers=[worker("a", in_flight=2, slots=1), worker("b", in_flight=1)])
    assert "1 / 1 +1" in browser.text("#workers-table tbody tr:nth-child(1)")
    assert "1 / 1" in browser.text("#workers-table tbody tr:nth-child(2)")
    assert "2 / 1" not in browser.text("#workers-table")


def test_the_field_to_find_workers_stands_below_their_heading(
    browser: Browser, farm: FakeFarm
) -> None:
    look(browser, farm)
    places = "return ['#workers h2', '#workers-find', '#workers-table']"
    places += ".map((x) => document.querySelector(x).getBoundingClientRect().top)"
    tops = browser.run(places)
    assert tops == sorted(tops)


def test_who_uses_the_farm_and_cancelling_their_calls(browser: Browser, farm: FakeFarm) -> None:
    farm.answers["cancel"] = lambda words: (200, {"cancelled": 40})
    look(browser, farm, clients=[client("bob"), client(HOSTILE, queued=0, share=0.25)])
    row = browser.text("#clients-table tbody tr")
    assert all(text in row for text in ("bob", "75 %", "40", "3.25"))
    assert len(browser.texts("#clients-table button.action:not([hidden])")) == 1
    browser.click("#clients-table button.action")
    assert "Cancel the 40 calls of bob that wait?" in browser.text("#sure")
    browser.press(ESCAPE)
    browser.until("return !document.querySelector('#sure').open")
    assert [name for _, name, _ in farm.asked if name == "cancel"] == []
    browser.click("#clients-table button.action")
    browser.click("#sure-yes")
    browser.until_text("#said", "cancelled 40")
    assert ("POST", "cancel", {"client": "bob"}) in farm.asked


def test_actions_of_the_owner_are_refused_to_others_with_the_reason(
    browser: Browser, farm: FakeFarm
) -> None:
    message = "this is for the owner of the farm"
    farm.answers["drain"] = lambda words: (403, {"error": {"type": "x", "message": message}})
    look(browser, farm, clients=[client("bob")])
    browser.click("#workers-table tbody button")
    browser.click("#workers-table tr.detail button[data-action=drain]")
    assert "Let w1 finish its calls" in browser.text("#sure")
    browser.click("#sure-yes")
    browser.until_text("#workers-table tr.detail .refusal", message)
    assert ("POST", "drain", {"worker": "w1"}) in farm.asked
    buttons = "[...document.querySelectorAll('button.action')]"
    assert browser.run(f"return {buttons}.map((x) => x.disabled && x.title)") == [message] * 3
    assert message in browser.text("#clients .refusal")


def test_actions_are_disabled_at_once_for_readers_who_are_not_the_owner(
    browser: Browser, farm: FakeFarm
) -> None:
    look(browser, farm, clients=[client("bob")], is_owner=False)
    browser.click("#workers-table tbody button")
    reason = "for the owner of the farm"
    browser.until_text("#workers-table tr.detail .refusal", reason)
    buttons = "[...document.querySelectorAll('button.action')]"
    shown = browser.run(f"return {buttons}.map((x) => x.disabled && x.title)")
    assert len(shown) == 3
    assert all(reason in title and "farm url" in title for title in shown)
    assert reason in browser.text("#clients .refusal")
    farm.state["is_owner"] = True
    browser.until(f"return {buttons}.every((x) => !x.disabled && !x.title)")
    assert browser.text("#clients .refusal") == ""
    assert farm.asked == [asked for asked in farm.asked if asked[0] == "GET"]


def test_an_action_that_the_farm_lacks_is_disabled_alone(browser: Browser, farm: FakeFarm) -> None:
    look(browser, farm)
    browser.click("#workers-table tbody button")
    browser.click("#workers-table tr.detail button[data-action=restart]")
    browser.click("#sure-yes")
    browser.until_text("#said", "this farm has no restart")
    state = "return document.querySelector(`button[data-action=${arguments[0]}]`).disabled"
    assert browser.run(state, "restart")
    assert not browser.run(state, "drain")


def test_which_job_waits_and_why(browser: Browser, farm: FakeFarm) -> None:
    job = {"id": "77", "kind": "gpu", "phase": "pending", "state": "PENDING", "nodes": ""}
    rest = {"reason": "Resources", "starts_at": time.time() + 600, "workers": 0, "ends_in_s": None}
    kind = {"name": "gpu", "models": ["beam"], "wanted": 2, "pending": 1, "running": 0}
    counts = {"max_jobs": 4, "workers": 0, "problem": "QOS limit", "next_try_in_s": 30.0}
    cluster: dict[str, Any] = {"system": "SLURM", "problem": None}
    cluster |= {"kinds": [{**kind, **counts}], "jobs": [{**job, **rest}]}
    look(browser, farm, cluster=cluster)
    shown = browser.text("#jobs")
    assert all(
        text in shown for text in ("SLURM jobs", "77", "PENDING Resources", "Expected start")
    )
    assert "gpu: QOS limit; next try in 30 s" in shown
    assert "1 job waits in the queue: Resources" in browser.text("#notices")


def test_what_models_take_and_return(browser: Browser, farm: FakeFarm) -> None:
    load = {"name": "load", "shape": [1], "dtype": "float64", "unit": "N", "description": "<b>tip"}
    field = {"name": "u", "shape": [-1, 2], "dtype": "float64"}
    beam = {"name": "beam", "description": "", "version": "", "inputs": [load], "outputs": [field]}
    scalar = {**load, "name": "scalar", "shape": [], "description": ""}
    other = {"name": "other", "inputs": [scalar], "outputs": [], "left_out": 0}
    look(browser, farm, descriptions=[{**beam, "left_out": 3}, other])
    shown = browser.text("#models")
    assert "scalar N" in shown
    assert "load [1] N (<b>tip)" in shown
    assert "u [any \u00d7 2], and 3 more" in shown


def test_what_happened_before_it_was_opened(browser: Browser, farm: FakeFarm) -> None:
    now = time.time()
    times = [now - 3600 + 10 * i for i in range(360)]
    runs = [None if 100 <= i < 120 else 0.02 for i in range(360)]
    farm.answers["history"] = history(
        times,
        calls_per_s=[float(i % 41) for i in range(360)],
        failed_per_s=[1.5] * 360,
        workers=[1000.0] * 360,
        busy=[750.0] * 360,
        queued=[0.0] * 360,
        run_p50_s=runs,
    )
    look(browser, farm)
    browser.until("return document.querySelectorAll('#charts path').length == 6")
    shown = browser.texts("#charts figcaption")
    assert shown[0].split("\n") == ["Calls per second", "31 answered", "1.5 failed", "peak 40"]
    assert shown[1].split("\n")[1:3] == ["1,000 there", "750 busy"]
    assert "20 ms median" in shown[3]
    ticks = "return [...document.querySelectorAll(`figure:nth-child(${arguments[0]}) .tick`)]"
    texts = f"{ticks}.map((x) => x.textContent)"
    assert browser.run(texts, 1)[:3] == ["0", "20", "40"]
    assert {"0", "10 ms", "20 ms"} <= set(browser.run(texts, 4))
    assert sum(":" in text for text in browser.run(texts, 1)) >= 3  # times of day
    path = browser.run(
        "return document.querySelector('figure:nth-child(4) path').getAttribute('d')"
    )
    assert path.count("M") == 2, "nothing is drawn where nothing ran"
    browser.run(
        """
        const picture = document.querySelector("figure:nth-child(1) svg");
        const { left, width } = picture.getBoundingClientRect();
        picture.dispatchEvent(new PointerEvent("pointermove", { clientX: left + width }));
        """
    )
    assert " at " in browser.texts("#charts figcaption")[0].replace("\n", " ")
    assert len(browser.texts("#charts .pointer")) == 1
    assert ("GET", "history", {"since": "-3600"}) in farm.asked
    label = "return document.querySelector('figure svg').getAttribute('aria-label')"
    assert "Calls per second, the last 1 hour: now 31 answered" in browser.run(label)
    browser.click("#ranges button:last-child")
    browser.until(
        "return document.querySelector('#ranges [aria-pressed=true]').innerText == '1 day'"
    )
    browser.until_text("#history", "peak")
    assert ("GET", "history", {"since": "-86400"}) in farm.asked


def test_a_lost_connection_is_said(browser: Browser) -> None:
    with fake_farm(bare_status(calls_per_s=5.0)) as farm:
        look(browser, farm)
    browser.until_text("#link", "no answer")
    assert "5" in browser.text("#tiles")
