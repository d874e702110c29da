"""Writes the pages of the site: those of docs/, files outside it that they link to, and drawings.

`python -m tests.support.site.pages FOLDER`, part of `make docs`. It writes plain Markdown,
which any generator of sites can read.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.support.site.commands import with_commands
from tests.support.site.drawings import DRAWN, with_drawings
from tests.support.site.outside import DOCS, ROOT, pages, place, with_links

NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"
FIRST = {"docs/how-to/faq.md": "---\nsearch:\n  boost: 4\n---\n"}
"""Pages that a search shows before others: who types a symptom wants its remedy."""
SEARCHED = ("CHANGELOG.md", "CONTRIBUTING.md", "examples/README.md", "slurm/README.md")
"""Files outside docs/ that a search finds, too; others are code."""


def write(folder: Path) -> None:
    """Write all files of the site to `folder`, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    drawings = shutil.ignore_patterns(DRAWN.name, "*.toml")
    shutil.copytree(DOCS, folder, ignore=drawings)
    for page in sorted(DOCS.rglob("*.md")):
        name = page.relative_to(ROOT).as_posix()
        text = with_commands(with_drawings(with_links(name, page.read_text())))
        (folder / page.relative_to(DOCS)).write_text(FIRST.get(name, "") + text)
    for found, text in pages().items():
        target = folder / place(found)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(("" if found in SEARCHED else NOT_SEARCHED) + with_links(found, text))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
