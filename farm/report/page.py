"""Reports as one self-contained HTML file, which needs no network, some with scripts.

Every function accepts plain text and escapes it; only `Html` is inserted unchanged. An interactive
page has the plotting library of `vendored/`, the report's own scripts and its data. Its policy
allows only these scripts, by their hashes: a text from a file of results cannot run as one.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NewType

import numpy as np

from farm.call import Array, ModelInfo
from farm.storage.files import replacing, resolved

Html = NewType("Html", str)
"""Text that is HTML already."""

MOST_ROWS = 20
"""Most rows of a table that are shown; the page states the number of the others."""

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c1e21; max-width: 62rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem } h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem }
p.note { color: #5f6670; margin: .2rem 0 .6rem }
svg { max-width: 100%; height: auto; display: block }
table { border-collapse: collapse; font-size: 14px }
td, th { text-align: left; padding: .15rem .9rem .15rem 0; vertical-align: top }
th { color: #5f6670; font-weight: 500 }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
.scroll { overflow-x: auto } details { margin-top: 2rem } td { overflow-wrap: anywhere }
"""


def write_page(out: Path, *, title: str, note: str, blocks: Sequence[Html]) -> None:
    """Write a page to a file: title, a grey line with the time of writing, blocks. Raises OSError.

    The file is written after the page is complete, so an earlier error keeps the old file.
    """
    heading = f"<h1>{html.escape(title)}</h1>{_note(f'{note}; report of {_now()}')}"
    _write(out, title, STYLE, f"{heading}{''.join(blocks)}")


def _write(out: Path, title: str, style: str, body: str, scripts: Sequence[str] = ()) -> None:
    """Write a page that may run these scripts."""
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{policy(scripts)}'
        f"<title>{html.escape(title)}</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{style}</style></head><body>{body}</body></html>\n"
    )
    with replacing(resolved(out)) as new:
        new.write_bytes(page.encode("utf-8", "replace"))


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime())


def policy(scripts: Sequence[str] = ()) -> Html:
    """Return the element that lets a page run these scripts only, and load nothing."""
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    ]
    sources = " ".join(hashes or ["'none'"])
    rules = (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return Html(f'<meta http-equiv="Content-Security-Policy" content="{rules}">')


def section(heading: str, note: str, *blocks: Html) -> Html:
    """Return a section: a heading, a grey note and blocks."""
    return Html(f"<h2>{html.escape(heading)}</h2>{_note(note)}{''.join(blocks)}")


def folded(summary: str, block: Html) -> Html:
    """Return a block that is shown after a click on its summary."""
    return Html(f"<details><summary>{html.escape(summary)}</summary>{block}</details>")


def preformatted(text: str) -> Html:
    """Return text with its line breaks and spaces preserved, such as a file."""
    return Html(f"<pre>{html.escape(text)}</pre>")


def facts(values: Mapping[str, str]) -> Html:
    """Return a table of facts by name, one per row."""
    rows = (
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
        for name, text in values.items()
    )
    return Html(f"<table>{''.join(rows)}</table>")


def table(columns: Sequence[str], rows: Sequence[Sequence[str | float]]) -> Html:
    """Return a table of the first MOST_ROWS rows, and a note with the number of the others.

    Numbers are right-aligned; floats have five significant digits.
    """
    numeric = [not isinstance(cell, str) for cell in rows[0]] if rows else [False] * len(columns)
    head = "".join(_cell("th", text, n) for text, n in zip(columns, numeric, strict=True))
    body = "".join(
        f"<tr>{''.join(_cell('td', cell, not isinstance(cell, str)) for cell in row)}</tr>"
        for row in rows[:MOST_ROWS]
    )
    more = len(rows) - MOST_ROWS
    tail = _note(f"and {more} more") if more > 0 else ""
    return Html(f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>{tail}')


def tensors(info: ModelInfo) -> Html:
    """Return a table of a model's inputs and outputs, with units and descriptions if it has any."""
    sides = ("input", info.inputs), ("output", info.outputs)
    columns = ["", "name", "shape", "type", "unit", "description"]
    rows = [
        [side, t.name, str(t.shape), t.dtype, t.unit, t.description]
        for side, ts in sides
        for t in ts
    ]
    stated = [k for k in range(len(columns)) if k < 4 or any(row[k] for row in rows)]
    return table([columns[k] for k in stated], [[row[k] for k in stated] for row in rows])


def _cell(tag: str, value: str | float, is_number: bool) -> str:
    text = f"{value:.5g}" if isinstance(value, float) else html.escape(str(value))
    return f'<{tag} class="n">{text}</{tag}>' if is_number else f"<{tag}>{text}</{tag}>"


def _note(text: str) -> str:
    return f'<p class="note">{html.escape(text)}</p>'


LIBRARY = "echarts.min.js"

NAME = re.compile(r"\{(\w+)\}")

FLOAT32_MAX = float(np.finfo("f4").max)


def library() -> str:
    """Return the text of the plotting library."""
    return files("farm.report").joinpath("vendored", LIBRARY).read_text(encoding="utf-8")


def write_interactive(
    out: Path,
    folder: Traversable,
    scripts: Sequence[str],
    *,
    title: str,
    texts: Mapping[str, str],
    data: Any,
) -> None:
    """Write a page to a file. Raises OSError.

    folder: holds body.html, style.css and the scripts, which are joined to one function; they
    define a function `start`, which is called last. texts: HTML by name, which replaces {name} in
    body.html; the name `written` stands for the time. data: JSON data, which the scripts find in
    the element `data`.
    The file is written after the page is complete, so an earlier error keeps the old file.
    """
    body = folder.joinpath("body.html").read_text(encoding="utf-8")
    told = {"written": _now(), **texts}
    body = NAME.sub(lambda found: told[found[1]], body)
    style = folder.joinpath("style.css").read_text(encoding="utf-8")
    own = "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in scripts)
    whole = [library(), f'(function () {{\n"use strict";\n{own}\nstart();\n}})();\n']
    elements = [f'<script type="application/json" id="data">{as_json(data)}</script>']
    elements += [f"<script>{script}</script>" for script in whole]
    _write(out, title, style, f"{body}{''.join(elements)}", whole)


def as_json(data: Any) -> str:
    """Return data as JSON text that may stand in a script element: it has no `<`."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e")


def packed(numbers: Array, dtype: str = "f8") -> dict[str, str]:
    """Return numbers as JSON data: the name of a type and the base64 text of its bytes.

    dtype: f8, f4, i4 or u1, little-endian; f4 becomes f8 for numbers beyond its range. NaN and
    infinities are kept.
    """
    flat = np.ravel(numbers)
    if dtype == "f4":
        finite = np.abs(flat[np.isfinite(flat)])
        if len(finite) and float(np.max(finite)) > FLOAT32_MAX:
            dtype = "f8"
    raw = np.ascontiguousarray(flat, dtype=f"<{dtype}").tobytes()
    return {"type": dtype, "data": base64.b64encode(raw).decode()}
