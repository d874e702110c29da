"""Requests to other servers that a page of the site would make by itself.

`python -m tests.support.site.requests FOLDER`, part of `make docs`, fails if there are any.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

LOADING = {"src", "srcset", "poster", "data"}
"""Attributes that make a browser load what they name; `href` does so in `link` only."""
NOT_LOADED = {"canonical", "next", "prev", "edit"}
FOREIGN = re.compile(r"^\s*(https?:)?//")
IN_STYLE = re.compile(r"(?:@import\s+|url\()\s*[\"']?((?:https?:)?//[^)\"'\s]+)")


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        names = set(LOADING)
        if tag == "link" and values.get("rel") not in NOT_LOADED:
            names.add("href")
        self.found += [values[n] for n in sorted(names & set(values)) if FOREIGN.match(values[n])]
        self.found += IN_STYLE.findall(values.get("style", ""))


def requests(text: str) -> list[str]:
    """Return the addresses of other servers that a page of HTML loads from."""
    page = _Page()
    page.feed(text)
    return page.found + IN_STYLE.findall(text)


def main(folder: Path) -> int:
    """Print every foreign address of the site; return an exit status."""
    found = {
        f"{path.relative_to(folder)}: {address}"
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".html", ".css", ".svg")
        for address in requests(path.read_text())
    }
    print("\n".join(sorted(found)), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
