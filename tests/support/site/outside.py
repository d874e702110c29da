"""Files outside docs/ that pages link to, as pages of the site.

The documents read well in a clone, where a link to ../examples/legacy/ opens that folder. The site
has a page below `project/` for each such file and folder.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
FRONT = "README.md"
"""The page of the clone in place of which the site has its first page."""

LINK = re.compile(r"(\]\()([^)\s:]+)(\))")
CODE = re.compile(r"(^ *```.*?^ *```|`[^`\n]*`)", re.DOTALL | re.MULTILINE)
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".ini": "ini", ".json": "json"}
SHOWN = {*LANGUAGES, ".proto", ".c", ".csv", ".txt", ".md"}
"""Suffixes of files that the page of a folder shows."""


def outside(page: str, target: str) -> str | None:
    """Return the file or folder of the project that a link leads to; None if it is in docs/.

    page: the page's path below the project, `docs/models.md`; target: the link without its anchor.
    """
    if not target or target.startswith("/"):
        return None
    found = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    if (found.startswith(("docs/", "..")) and not found.endswith(".toml")) or not (
        ROOT / found
    ).exists():
        return None
    return found


def place(found: str) -> str:
    """Return the page below docs/ that shows a file or folder of the project."""
    if found == FRONT:
        return "index.md"
    if found.startswith("docs/") and not found.endswith(".toml"):
        return found.removeprefix("docs/")
    return f"project/{found}" if found.endswith(".md") else f"project/{found}.md"


def linked(page: str, text: str) -> Iterator[str]:
    """Yield the files and folders outside docs/ that a page links to."""
    for part in CODE.split(text)[::2]:
        for match in LINK.finditer(part):
            if found := outside(page, match[2].partition("#")[0]):
                yield found


def with_links(page: str, text: str) -> str:
    """Return the text of a page with links to the pages of files outside docs/."""
    here = posixpath.dirname(place(page))

    def replaced(match: re.Match[str]) -> str:
        target, mark, anchor = match[2].partition("#")
        found = outside(page, target)
        if found is None and not page.startswith("docs/") and target:
            inside = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
            found = inside if inside.startswith("docs/") else None
        if found is None:
            return match[0]
        return match[1] + posixpath.relpath(place(found), here or ".") + mark + anchor + match[3]

    parts = CODE.split(text)
    parts[::2] = [LINK.sub(replaced, part) for part in parts[::2]]
    return "".join(parts)


def page_of(found: str) -> str:
    """Return the text of the page for a file or folder of the project."""
    path = ROOT / found
    if path.suffix == ".md":
        return path.read_text()
    if path.is_file():
        return f"# {found}\n\n{_block(path)}"
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and file.suffix in SHOWN]
    parts = [f"## {file.relative_to(path)}\n\n{_block(file)}" for file in files]
    return "\n\n".join([f"# {found}", *parts])


def _block(file: Path) -> str:
    return f"````{LANGUAGES.get(file.suffix, 'text')}\n{file.read_text().rstrip()}\n````"


def pages() -> dict[str, str]:
    """Return the text of each page outside docs/, by the file or folder that it shows."""
    texts: dict[str, str] = {}
    waiting = [
        found
        for page in sorted(DOCS.rglob("*.md"))
        for found in linked(page.relative_to(ROOT).as_posix(), page.read_text())
    ]
    while waiting:
        found = waiting.pop()
        if found in texts or found == FRONT:
            continue
        texts[found] = page_of(found)
        if found.endswith(".md"):
            waiting += linked(found, texts[found])
    return texts
