"""Documents are short, have a sentence a line, and name files that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(p for d in ("docs", "examples", "slurm") for p in ROOT.glob(f"{d}/**/*.md")),
    ]
)
MOST_WORDS = {"README.md": 800, "docs/architecture.md": 2500, "docs/messages.md": 5000}
"""The most words of a page; of a page that is not here, 3,000."""

CODE = re.compile(r"^( *)(```|~~~).*?^\1\2$|^<!--.*?-->$", re.M | re.S)
SPAN = re.compile(r"`[^`]*`|\]\([^)]*\)|<[^>]*>")
NEXT_SENTENCE = re.compile(r"(?<!\b[A-Z])(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)[.!?]\)? [A-Z](?!\w*\.py)")
NO_PROSE = re.compile(r"\s*(\||#|!|\[[^]]+\]:|<|[-=:]{3}|$| {4})")
ITEM = re.compile(r" *([-*+]|\d+[.)]) ")
ENDS = re.compile(r"[.!?:;…][*_\"')\]x]*$")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def broken_lines(text: str) -> Iterator[str]:
    """Yield lines of prose that have two sentences, or a part of one."""
    without_code = CODE.sub(lambda found: "\n" * found[0].count("\n"), text)
    lines = [*SPAN.sub(lambda found: "x" * len(found[0]), without_code).splitlines(), ""]
    for line, following in pairwise(lines):
        goes_on = not (NO_PROSE.match(following) or ITEM.match(following) or ENDS.search(line))
        if not NO_PROSE.match(line) and (goes_on or NEXT_SENTENCE.search(ITEM.sub("", line))):
            yield line


def test_each_sentence_has_a_line_of_its_own() -> None:
    """So that a diff shows the sentence that changed."""
    found = {name_of(page): list(broken_lines(page.read_text())) for page in PAGES}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_sentences_that_share_or_leave_a_line_are_seen() -> None:
    assert list(broken_lines("One thing. Another thing.\n")) == ["One thing. Another thing."]
    assert list(broken_lines("- One thing that\n  goes on.\n")) == ["- One thing that"]
    assert list(broken_lines("One, e.g. A.\n- item\n\n```\na. B\nc\n```\n")) == []


def test_a_page_is_short() -> None:
    words = {name_of(page): len(page.read_text().split()) for page in PAGES}
    assert {n: count for n, count in words.items() if count > MOST_WORDS.get(n, 3000)} == {}


def test_the_files_of_where_to_change_what_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = [r for r in text.partition("## Where do I change")[2].splitlines() if r.startswith("| ")]
    named = [re.findall(r"`([\w/.-]+)`", row) for row in rows[1:]]
    assert len(named) >= 20
    assert all(len(files) >= 2 for files in named), "a row without code or test"
    paths = [path for files in named for path in files]
    assert [p for p in paths if not any((ROOT / x / p).exists() for x in ("", "farm"))] == []
