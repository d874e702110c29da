"""The page of a real farm, with calls that run, fail and wait."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import farm
from farm.errors import ModelFailed
from tests.support.browser import Browser
from tests.support.dispatcher_farm import BEAM, Served, run_farm, serving

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("farm")
    (folder / "beam.py").write_text(BEAM)
    with serving(folder, "beam.py", "--workers", "2") as running:
        running.wait_for_workers(2)
        yield running


def test_its_charts_begin_with_the_farm(browser: Browser, served: Served) -> None:
    browser.open(served.connection.url)
    browser.until("return document.querySelectorAll('#charts path').length == 6")
    assert "2 there" in browser.until_text("#charts", "there")
    pressed = browser.text("#ranges [aria-pressed=true]")
    assert pressed == "5 min"
    with farm.connect(served.folder) as client:
        assert client.history()["series"]["workers"][-1] == 2.0


def test_the_page_shows_a_farm_at_work(browser: Browser, served: Served) -> None:
    with farm.connect(served.folder, client="bob") as client:
        model = client.model("beam")
        for _ in range(3):
            model.evaluate([[1, 2, 3], [6]])
        with pytest.raises(ModelFailed):
            model.evaluate([[1, 2, 3], [6]], {"raise": "the load is <b>negative</b>"})
        browser.open(served.connection.url)
        browser.until_text("#link", "live")
        about = browser.text("#about")
        assert "beam" in about
        heads = browser.texts("#workers-table thead th")
        assert heads[:2] == ["Worker", "State"]
        assert len(browser.texts("#workers-table tbody tr")) == 2
        queue = browser.until_text("#queues-table tbody tr", "evaluate")
        assert "3" in queue
        with contextlib.ExitStack() as calls:
            for _ in range(2):
                calls.callback(model.submit([[1, 2, 3], [6]], {"sleep": 600}).cancel)
            for number in range(1, 3):
                browser.until_text(f"#workers-table tbody tr:nth-child({number})", "busy")
            for _ in range(300):  # more than workers hold beside the calls that they run
                calls.callback(model.submit([[1, 2, 3], [6]]).cancel)
            browser.until_text("#waits-table", "bob")
        assert browser.run("return document.querySelectorAll('td b').length") == 0
        assert "cannot be shown" not in browser.text("#link")


def test_the_address_with_the_token_works(browser: Browser, tmp_path: Path) -> None:
    """As `farm url` prints it. Browsers refuse to ask for a path of such an address."""
    (tmp_path / "beam.py").write_text(BEAM)
    with serving(tmp_path, "beam.py", "--auth", "always") as served:
        status, address, errors = run_farm("url", str(served.folder), cwd=tmp_path)
        assert status == 0, errors
        assert "@" in address
        browser.open(address.strip())
        browser.until_text("#link", "live")
        browser.until_text("#history", "peak")
