"""Drawings of the diagrams in the documents, which are text in the language of mermaid.

`docs/diagrams` holds each drawing under a name made from its text, so that the site needs neither
JavaScript nor the network. `make diagrams` draws those that are missing, by headless Chromium.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
from pathlib import Path

from tests.support.site.outside import DOCS

DRAWN = DOCS / "diagrams"
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)

RENDER = """
mermaid.initialize({startOnLoad: false, theme: 'neutral', fontFamily: 'sans-serif'});
return mermaid.render(arguments[0], arguments[1]).then(drawn => drawn.svg, error => String(error));
"""


def name_of(text: str) -> str:
    """Return the file name of the drawing of a diagram."""
    return f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.svg"


def diagrams() -> dict[str, str]:
    """Return the text of every diagram in docs/, by the name of its drawing."""
    texts = (page.read_text() for page in sorted(DOCS.rglob("*.md")))
    return {name_of(text): text for page in texts for text in DIAGRAM.findall(page)}


def with_drawings(page: str) -> str:
    """Return the text of a page with drawings in place of diagrams. Raises FileNotFoundError."""

    def drawn(match: re.Match[str]) -> str:
        file = DRAWN / name_of(match[1])
        if not file.exists():
            raise FileNotFoundError(f"{file} is missing: run `make diagrams`, and commit it")
        return f'<div class="drawing">{file.read_text()}</div>'

    return DIAGRAM.sub(drawn, page)


def draw(mermaid: Path) -> None:
    """Write the missing drawings, and remove those of diagrams that are gone."""
    from tests.support.browser import chromium

    wanted = diagrams()
    DRAWN.mkdir(exist_ok=True)
    for old in DRAWN.glob("*.svg"):
        if old.name not in wanted:
            old.unlink()
    missing = {name: text for name, text in wanted.items() if not (DRAWN / name).exists()}
    with tempfile.TemporaryDirectory() as folder, chromium(Path(folder) / "profile") as browser:
        page = Path(folder) / "page.html"
        page.write_text(f"<meta charset=utf-8><script src={mermaid.resolve().as_uri()}></script>")
        browser.open(page.as_uri())
        for name, text in missing.items():
            svg = browser.run(RENDER, f"d{name.removesuffix('.svg')}", text)
            if not svg.startswith("<svg"):
                raise SystemExit(f"{name}: {svg}\n{text}")
            (DRAWN / name).write_text(svg + "\n")


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
