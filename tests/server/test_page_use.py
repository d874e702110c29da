"""The page in use: a thousand workers, dark, as wide as a phone, and without a mouse."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.browser import ENTER, TAB, Browser
from tests.support.fake_farm import FakeFarm, bare_status, fake_farm, history, worker

pytestmark = pytest.mark.browser

HOSTS, EACH = 50, 20
TROUBLE = "was started again 4 times"
ROWS = "return [...document.querySelectorAll('#workers-table tbody tr > :first-child')]"


def thousand() -> list[dict[str, Any]]:
    rows = [
        worker(f"node{host}/{number}", host=f"node{host}", done=100 * host + number)
        for host in range(HOSTS)
        for number in range(EACH)
    ]
    rows[777] |= {"trouble": [TROUBLE], "restarts": 4}
    return rows


def everything() -> dict[str, Any]:
    """Return a status that fills all sections, with long texts."""
    now, long = time.time(), "word " * 40 + "x" * 300
    times = {"count": 3, "first": now - 9, "last": now}
    group = {"id": "1", "kind": "ModelFailed", "model": "beam", "operation": "evaluate", **times}
    counts = {"queued": 1, "in_flight": 1, "done": 9, "failed": 1, "calls_per_s": 1.0, "share": 0.5}
    of_client = {"client": long, "callers": 1, "running": 1, "worker_s": 9.0, "last_s": 1.0}
    rates = {"total": 9, "ends_in_s": 9.0, "since_s": 9.0}
    job = {"id": "7", "kind": "k", "phase": "pending", "state": "PENDING", "reason": long}
    kind = {"name": "k", "models": ["beam"] * 30, "wanted": 1, "pending": 1, "running": 0}
    of_kind = {"max_jobs": 1, "workers": 0, "problem": long, "next_try_in_s": 1.0}
    row = {"model": "beam", "operation": "evaluate"}
    queue = {"copies": 0, "run_time_p50_s": 1.0, "run_time_p95_s": 2.0}
    return bare_status(
        models=["beam"] * 30,
        workers=[worker("w1", trouble=[long], models=["beam"] * 30), worker(long[-90:])],
        queues=[{**row, **counts, **queue}],
        failures=[{**group, "text": long, "worker": long, "client": long, "inputs": long}],
        losses=[
            {**times, "cause": "crash", "text": long, "worker": "w", "host": "n", "detail": long}
        ],
        clients=[{**of_client, **counts}],
        chains=[{"client": long, "chain": long, "last_answer_s": 1.0, **counts}],
        progress=[{"kind": "sweep", "name": long, "client": long, **counts, **rates}],
        waits=[{**row, "client": long, "calls": 1, "age_s": 99.0, "why": [{"text": long}]}],
        calls=[{**row, "phase": "sent", "age_s": 9.0, "story": [long]}],
        events=[{"time": now, "event": "lost", "worker": "w", "text": long}],
        cluster={
            "system": "SLURM",
            "problem": long,
            "kinds": [{**kind, **of_kind}],
            "jobs": [{**job, "starts_at": now, "nodes": "", "workers": 0, "ends_in_s": None}],
        },
    )


@pytest.fixture
def farm() -> Iterator[FakeFarm]:
    with fake_farm(everything()) as served:
        points = [time.time() - 3000 + 100 * i for i in range(30)]
        line: list[float | None] = [float(i) for i in range(30)]
        names = ("workers", "busy", "queued", "calls_per_s", "failed_per_s", "run_p50_s")
        served.answers["history"] = history(points, **dict.fromkeys(names, line))
        served.answers["log"] = lambda words: (200, {"text": "x" * 3000, "next": "3000"})
        served.answers["failures"] = lambda words: (200, {"detail": "y " * 900 + "z" * 900})
        yield served


def look(browser: Browser, farm: FakeFarm) -> None:
    browser.open(farm.url)
    browser.until_text("#link", "live")
    browser.until("return document.querySelectorAll('#charts path').length == 6")


def names(browser: Browser) -> list[str]:
    found: list[str] = browser.run(f"{ROWS}.map((x) => x.innerText)")
    return found


def test_a_thousand_workers_are_grouped_by_host_below_the_sick(
    browser: Browser, farm: FakeFarm
) -> None:
    farm.state["workers"] = thousand()
    look(browser, farm)
    sick = "node38/17"
    shown = names(browser)
    assert shown[:3] == ["Sick or slow (1)", sick, "node0 (20)"]
    assert len(shown) == 2 + HOSTS
    assert f"{sick}: {TROUBLE}" in browser.text("#notices")
    cells = browser.texts("#workers-table tbody tr:nth-child(4) > *")
    heads = browser.texts("#workers-table thead th")
    totals = dict(zip(heads, cells, strict=True))
    assert totals["Worker"] == "node1 (20)"
    assert totals["Done"] == f"{sum(range(100, 120)):,}"
    assert totals["Memory"] == "5 GB"
    browser.click("#workers-table tbody tr:nth-child(4) button")
    assert names(browser)[3:6] == ["node1 (20)", "node1/0", "node1/1"]
    assert len(names(browser)) == 2 + HOSTS + EACH
    browser.click("#workers-table tbody tr:nth-child(4) button")
    assert len(names(browser)) == 2 + HOSTS


def test_a_thousand_workers_can_be_sorted_found_and_scrolled(
    browser: Browser, farm: FakeFarm
) -> None:
    farm.state["workers"] = thousand()
    look(browser, farm)
    head = "#workers-table thead th:nth-child(5)"
    assert browser.text(head) == "Done"
    browser.click(f"{head} button")
    assert names(browser)[2] == f"node{HOSTS - 1} (20)"
    sort = "return document.querySelector(arguments[0]).getAttribute('aria-sort')"
    assert browser.run(sort, head) == "descending"
    browser.click(f"{head} button")
    assert names(browser)[2] == "node0 (20)"
    assert browser.run(sort, head) == "ascending"
    browser.run(
        "const box = document.querySelector('#workers-find'); box.value = 'NODE7 idle';"
        "box.dispatchEvent(new Event('input'))"
    )
    assert names(browser) == [f"node7/{number}" for number in range(EACH)]
    assert browser.text("#workers-count") == "20 of 1,000"
    browser.run(
        "const box = document.querySelector('#workers-find'); box.value = 'node';"
        "box.dispatchEvent(new Event('input'))"
    )
    assert len(names(browser)) == 2 + HOSTS + HOSTS * EACH
    box = "document.querySelector('#workers .tall')"
    browser.run(f"{box}.scrollTop = 5000")
    farm.state["done"] = 123456
    browser.until_text("#tiles", "123,456")
    assert browser.run(f"return {box}.scrollTop") == 5000
    top = f"{box}.getBoundingClientRect().top"
    head_top = "document.querySelector('#workers-table thead th').getBoundingClientRect().top"
    assert browser.run(f"return Math.abs({head_top} - {top}) < 2"), "the heads stay in sight"


def test_a_thousand_workers_without_hosts_are_cut_and_can_all_be_shown(
    browser: Browser, farm: FakeFarm
) -> None:
    farm.state["workers"] = [worker(f"w{i}") for i in range(1000)]
    look(browser, farm)
    assert len(names(browser)) == 201
    assert names(browser)[-1] == "Show all 1,000 rows"
    browser.click("#workers-table tbody tr:last-child button")
    assert len(names(browser)) == 1000
    assert names(browser)[-1] == "w999"


def test_only_what_changes_is_written(browser: Browser, farm: FakeFarm) -> None:
    farm.state["workers"] = thousand()
    look(browser, farm)
    browser.run(
        """
        window.written = [];
        const note = (found) => written.push(...found.map((x) => x.target.textContent));
        const table = document.querySelector("#workers-table");
        const watched = { childList: true, characterData: true, subtree: true };
        new MutationObserver(note).observe(table, watched);
        """
    )
    farm.state["workers"][21]["done"] += 1_000_000
    browser.until_text("#workers-table tbody tr:nth-child(4)", "1,002,190")
    farm.state["done"] = 123456  # one status later
    browser.until_text("#tiles", "123,456")
    assert browser.run("return written") == ["1,002,190"]


def test_the_page_is_dark_for_those_who_like_it_dark(browser: Browser, farm: FakeFarm) -> None:
    browser.show_as(1120, 900, "dark")
    look(browser, farm)
    pairs = browser.run(
        """
        const back = (x) => {
          const own = getComputedStyle(x).backgroundColor;
          return own === "rgba(0, 0, 0, 0)" && x.parentElement ? back(x.parentElement) : own;
        };
        return [...document.querySelectorAll("h1, h2, td, th, dd, dt, a, button, input, label")]
          .filter((x) => x.checkVisibility())
          .map((x) => [x.tagName, getComputedStyle(x).color, back(x)]);
        """
    )
    assert len(pairs) > 100
    poor = {pair for pair in map(tuple, pairs) if contrast(pair[1], pair[2]) < 4.5}
    assert poor == set()
    assert luminance(browser.run("return getComputedStyle(document.body).backgroundColor")) < 0.05


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours. Source: WCAG 2.2, 1.4.3."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("width", [420, 320])
def test_a_narrow_window_scrolls_in_tables_only(
    browser: Browser, farm: FakeFarm, width: int
) -> None:
    browser.show_as(width, 900)
    look(browser, farm)
    for table in ("workers", "failures", "losses"):
        browser.click(f"#{table}-table tbody button")
    browser.until_text("#failures-table tr.detail", "zzz")
    browser.until_text("pre.log", "xxx")
    assert browser.run("return document.documentElement.scrollWidth") == width
    wide = browser.run(
        """
        return [...document.querySelectorAll("tr.detail > td > div, section, #charts svg, #tiles")]
          .filter((x) => x.checkVisibility() && x.clientWidth > innerWidth)
          .map((x) => x.outerHTML.slice(0, 80))
        """
    )
    assert wide == []


def focus(browser: Browser) -> str:
    return str(browser.run("return document.activeElement.innerText || document.activeElement.id"))


def tab_to(browser: Browser, text: str) -> None:
    """Press Tab until the focus is on the element with this text."""
    for _ in range(150):
        if focus(browser).strip() == text:
            return
        browser.press(TAB)
    raise AssertionError(f"Tab never led to {text!r}")


def test_the_page_is_used_without_a_mouse(browser: Browser, farm: FakeFarm) -> None:
    farm.answers["drain"] = lambda words: (200, {"drained": True})
    farm.state["workers"] = [worker("w1", done=1), worker("w2", done=2)]
    look(browser, farm)
    browser.run("document.querySelector('#workers-find').focus()")
    tab_to(browser, "Done")
    width = "return parseFloat(getComputedStyle(document.activeElement).outlineWidth)"
    assert browser.run(width) >= 2
    browser.press(ENTER)
    assert names(browser) == ["w2", "w1"]
    assert focus(browser) == "Done"
    tab_to(browser, "w1")
    browser.press(ENTER)
    browser.until_text("#workers-table tr.detail", "node1")
    opened = "return document.activeElement.getAttribute('aria-expanded')"
    assert (focus(browser), browser.run(opened)) == ("w1", "true")
    farm.state["workers"] = [worker("w0", done=9), worker("w1", done=5000), worker("w2", done=2)]
    browser.until_text("#workers-table tbody tr:first-child", "5,000")
    assert focus(browser) == "w1", "the focus follows a row that moves"
    tab_to(browser, "Drain")
    browser.press(ENTER)
    assert focus(browser) == "Back"
    browser.press(TAB)
    assert focus(browser) == "Drain"
    browser.press(ENTER)
    browser.until_text("#said", "Drain")
    assert ("POST", "drain", {"worker": "w1"}) in farm.asked


def test_every_control_and_table_has_a_name(browser: Browser, farm: FakeFarm) -> None:
    look(browser, farm)
    nameless = browser.run(
        """
        const named = (x) => x.getAttribute("aria-label") || x.textContent.trim()
          || x.labels?.length || x.caption?.textContent.trim();
        const kinds = "button, input, table, a, progress, svg[role], [tabindex]";
        return [...document.querySelectorAll(kinds)]
          .filter((x) => !named(x) && x.checkVisibility()).map((x) => x.outerHTML.slice(0, 90))
        """
    )
    assert nameless == []
    headless = "return [...document.querySelectorAll('tbody tr:not(.detail)')]"
    headless += ".filter((x) => x.children.length > 1 && !x.querySelector('th[scope=row]')).length"
    assert browser.run(headless) == 0
