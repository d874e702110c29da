"""The page at /docs lists every operation and loads nothing from other hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest

from farm.protocols.points.endpoint import reference_page
from tests.support.front_door import Door, front_door


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with front_door({}) as opened:
        yield opened


class Links(HTMLParser):
    """Collects what a browser would load or open."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "action")]
        assert tag not in ("script", "link", "iframe", "img")


def test_the_page_needs_no_other_host(door: Door) -> None:
    answer = door.ask("GET", "/docs")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/html")
    links = Links()
    links.feed(answer.data.decode())
    assert links.found == ["openapi.json"]
    assert not re.search(r"https?://|url\(|@import", answer.data.decode())
    assert door.ask("GET", "/openapi.json").status == 200


def test_every_path_with_its_parameters_and_bodies_is_there(door: Door) -> None:
    page = door.ask("GET", "/docs").data.decode()
    for path, item in door.ask("GET", "/openapi.json").json()["paths"].items():
        for method, operation in item.items():
            assert f"{method.upper()}</span><code>{path}</code>" in page
            assert operation["summary"] in page
            for parameter in operation.get("parameters", ()):
                assert f"<code>{parameter['name']}</code>" in page
    assert "<code>inputs</code></td><td>required; " in page
    assert "application/x-ndjson One JSON object a line" in page
    assert "[[1.0, 2.0], [3.0]]" in page


def test_texts_are_no_markup() -> None:
    page = reference_page(
        {
            "info": {"title": "<b>", "version": "1", "summary": "a & b"},
            "paths": {"/<x>": {"get": {"summary": "<script>alert(1)</script>"}}},
        }
    )
    assert "<script" not in page
    assert "<b>" not in page
    assert "a &amp; b" in page
    assert "/&lt;x&gt;" in page
