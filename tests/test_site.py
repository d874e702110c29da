"""The pages of the site are complete: navigation, references, errors, drawings, links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import farm
from farm.settings import SettingsError
from tests.support.error_pages import OF_CALLS, OTHERS, page_of, table, with_table
from tests.support.printed_texts import is_printed
from tests.support.site import commands, docstring_lists, drawings, outside, pages
from tests.support.site.requests import requests

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SETTINGS = (ROOT / "mkdocs.yml").read_text()
PAGES = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
REFERENCE = "".join(page.read_text() for page in DOCS.glob("reference/api-*.md"))
PLACES = {"functions.model": "model", "sweep.api.sweep": "sweep"}
"""Public names that modules of farm have, too, by the place of the public one."""
SHOWN = re.findall(r"^::: farm\.(\S+)$", REFERENCE, re.MULTILINE)


def test_the_navigation_has_every_page_once() -> None:
    navigation = SETTINGS.partition("\nnav:\n")[2]
    listed = re.findall(r"^ +- (?:[^:\n]+: )?([\w/-]+\.md)$", navigation, re.MULTILINE)
    assert sorted(listed) == sorted(PAGES)


def test_the_reference_has_every_public_name() -> None:
    ops = {f"ops.{name}" for name in farm.ops.__all__}
    errors = {f"errors.{kind.__name__}" for kind in OF_CALLS}
    shown = [PLACES.get(name, name) for name in SHOWN]
    assert sorted(shown) == sorted({*farm.__all__, *ops, *errors})


@pytest.mark.parametrize("kind", [*OF_CALLS, *OTHERS], ids=lambda kind: str(kind.__name__))
def test_every_error_has_a_page_with_what_it_looks_like(kind: type[Exception]) -> None:
    page = page_of(kind).read_text()
    assert page.startswith(f"# {kind.__name__}\n")
    assert table(kind) in page
    assert with_table(kind, page) == page
    assert "## Usual causes" in page


def test_the_table_of_an_error_is_that_of_the_protocols() -> None:
    """One row of each table by hand, so that a table read from the wrong place is seen."""
    shown = table(farm.FarmError.kinds["DeadlineExceeded"])
    for expected in ("status 504, type `DeadlineExceeded`", "`DEADLINE_EXCEEDED`", "status 7"):
        assert expected in shown
    assert "exit status 2" in table(SettingsError)
    assert "UM-Bridge" not in table(SettingsError)


def test_every_error_is_in_the_list_of_errors() -> None:
    listed = re.findall(
        r"^\| \[(\w+)\]\(\1\.md\)", (DOCS / "reference/errors/index.md").read_text(), re.M
    )
    assert sorted(listed) == sorted(kind.__name__ for kind in (*OF_CALLS, *OTHERS))


def test_the_reference_of_commands_has_every_option() -> None:
    page = commands.reference()
    known = dict(commands.commands())
    assert {"farm", "farm serve", "farm sweep plot", "farm record export"} <= set(known)
    for name, command in known.items():
        assert f"# {name}\n" in page
        section = page.partition(f"# {name}\n")[2].partition("\n```\n")[0]
        options = [
            max(option.opts, key=len)
            for option in command.params
            if option.param_type_name == "option"
        ]
        assert [text for text in options if text not in section] == []
    assert commands.MARK in (DOCS / "reference/cli.md").read_text()
    assert "Examples:" in page  # they stand below the options


def test_every_diagram_is_drawn() -> None:
    drawn = {file.name for file in drawings.DRAWN.glob("*.svg")}
    assert drawn == set(drawings.diagrams()), "run `make diagrams`, and commit docs/diagrams"
    assert len(drawn) > 5


def test_a_page_outside_docs_is_linked_to_its_place() -> None:
    shown = outside.with_links(
        "docs/models.md", "[a](../farm/errors.py) `](../x)` [b](client.md#errors)"
    )
    assert shown == "[a](project/farm/errors.py.md) `](../x)` [b](client.md#errors)"
    assert (
        outside.with_links("examples/README.md", "[a](../docs/ops.md#x)") == "[a](../../ops.md#x)"
    )
    assert (
        outside.with_links("docs/tutorials/index.md", "[a](../../README.md)") == "[a](../index.md)"
    )


def test_what_pages_link_to_is_written_for_the_site(tmp_path: Path) -> None:
    pages.write(tmp_path)
    written = {page.relative_to(tmp_path).as_posix() for page in tmp_path.rglob("*.md")}
    assert written > PAGES
    assert {"project/farm/errors.py.md", "project/examples/README.md"} <= written
    assert "](../" not in (tmp_path / "models.md").read_text()
    assert "```mermaid" not in (tmp_path / "architecture.md").read_text()
    assert "## farm sweep" in (tmp_path / "reference/cli.md").read_text()


def test_a_docstring_becomes_lists_and_programs() -> None:
    text = (
        "First *line*, see <x>.\n\nname: what it\n    means. Raises X.\na, b: `*` both.\n\n"
        "    with farm:\n        pass\n\nLike this:\n    run()\n\n"
        "x: one.\nMore of both.\n\nf(x)      J x\ng(x)      x"
    )
    assert docstring_lists.as_markdown(text) == (
        "First \\*line\\*, see \\<x>.\n\n- `name`: what it means. Raises X.\n"
        "- `a`, `b`: `*` both.\n\n"
        "```python\nwith farm:\n    pass\n```\n\nLike this:\n\n```python\nrun()\n```\n\n"
        "- `x`: one.\n\nMore of both.\n\n```text\nf(x)      J x\ng(x)      x\n```"
    )


def test_symptoms_are_the_words_that_farm_prints() -> None:
    page = (DOCS / "how-to" / "faq.md").read_text()
    symptoms = [row.split(" | ")[0] for row in page.splitlines() if row.startswith("| ")]
    messages = [text for symptom in symptoms for text in re.findall(r"`([^`]+)`", symptom)]
    assert len(messages) > 25
    assert [message for message in messages if not is_printed(message)] == []


def test_a_text_that_farm_does_not_print_is_seen() -> None:
    assert is_printed("no farm listens at …; is the farm running?")
    assert not is_printed("no farm listens here")
    assert not is_printed("is the farm running? … no farm listens at")


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://unpkg.com/x.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/x.css">',
        '<img alt="" src=https://example.org/x.png>',
        "<style>@import url(https://example.org/x.css)</style>",
        '<p style="background: url(http://example.org/x.png)">',
    ],
)
def test_a_request_to_another_server_is_seen(text: str) -> None:
    assert requests(text) != []


def test_links_and_own_files_are_no_requests() -> None:
    assert (
        requests('<a href="https://example.org">x</a><img src="page.png"><link href=x.css>') == []
    )
