"""An interactive report as one HTML file, which needs neither a server nor a network.

The page contains the plotting library of `vendored/`, the report's own scripts and its data. Its
security policy allows only these scripts, by their hashes: text from a file of results, such as the
message of an error, cannot run as a script.
"""

from __future__ import annotations

import base64
import html
import json
import re
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np

from farm.call import Array
from farm.report.page import policy
from farm.storage.files import replacing, resolved

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
    written = time.strftime("%Y-%m-%d %H:%M", time.localtime())
    told = {"written": written, **texts}
    body = NAME.sub(lambda found: told[found[1]], body)
    style = folder.joinpath("style.css").read_text(encoding="utf-8")
    own = "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in scripts)
    whole = [library(), f'(function () {{\n"use strict";\n{own}\nstart();\n}})();\n']
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"{policy(whole)}"
        f"<title>{html.escape(title)}</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{style}</style></head><body>{body}"
        f'<script type="application/json" id="data">{as_json(data)}</script>'
        f"{''.join(f'<script>{script}</script>' for script in whole)}</body></html>\n"
    )
    with replacing(resolved(out)) as new:
        new.write_bytes(page.encode("utf-8", "replace"))


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
