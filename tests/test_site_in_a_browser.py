"""The built site works in a browser: served, and opened as files without a server."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import chromium

SITE = Path(__file__).parent.parent / "build" / "site"
FOREIGN = """return performance.getEntriesByType('resource').map((x) => x.name)
    .filter((x) => !x.startsWith(arguments[0]) && !/^(file|data|blob):/.test(x))"""
pytestmark = pytest.mark.browser


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""


@pytest.fixture
def served() -> Iterator[str]:
    """The address of a server of the site."""
    handler = functools.partial(Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.skipif(not (SITE / "index.html").exists(), reason="make docs has not built the site")
@pytest.mark.parametrize("place", ["server", "files"])
def test_the_search_finds_a_symptom(place: str, served: str, tmp_path: Path) -> None:
    base = served if place == "server" else SITE.as_uri()
    with chromium(tmp_path / "profile") as browser:
        browser.show_as(1300, 900)
        browser.open(f"{base}/index.html")
        browser.click(".md-search__input")
        browser.press(*"killed by signal")
        browser.until(
            "return [...document.querySelectorAll('.md-search-result__link')]"
            ".some((link) => link.href.includes('how-to/faq.html'))"
        )
        assert browser.run(FOREIGN, base) == []
        browser.open(f"{base}/messages.html")
        assert browser.run("return document.querySelectorAll('.drawing svg').length") == 5
        assert browser.complaints() == []
