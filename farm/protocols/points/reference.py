"""The page at /docs: the OpenAPI description as one self-contained HTML page.

FastAPI's own page loads its program from another host, which cluster machines cannot reach.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff }
h2 { font-size: 1.05rem; margin: 2.2rem 0 .2rem; border-top: 1px solid #ddd; padding-top: 1rem }
code, pre { font-family: ui-monospace, monospace; background: #f3f3f3; border-radius: 3px }
code { padding: .1em .3em } pre { padding: .6rem .8rem; overflow-x: auto }
.method { color: #fff; background: #357; padding: 0 .5em; border-radius: 3px; margin-right: 1ex }
th, td { text-align: left; vertical-align: top; padding: .15rem 1rem .15rem 0 }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818 }
  code, pre { background: #2a2a2a } h2 { border-color: #444 } }
"""

METHODS = ("get", "put", "post", "delete", "patch")


def reference_page(description: Mapping[str, Any]) -> str:
    """Return the page for an OpenAPI 3 description, as `FastAPI.openapi()` returns it."""
    info = description["info"]
    title = f"{info['title']} {info['version']}"
    operations = [
        part
        for path, item in description["paths"].items()
        for method in METHODS
        if method in item
        for part in _operation(method, path, item[method])
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
        f"<h1>{escape(title)}</h1><p>{escape(info.get('summary', ''))}.</p>"
        '<p>The same for programs: <a href="openapi.json">openapi.json</a>.</p>'
        f"{''.join(operations)}</html>\n"
    )


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f'<h2><span class="method">{method.upper()}</span><code>{escape(path)}</code></h2>'
    yield f"<p>{escape(operation.get('summary', ''))}.</p>"
    parameters = [
        (p["name"], f"{p['in']}; {p.get('description', '') or p['schema'].get('type', '')}")
        for p in operation.get("parameters", ())
    ]
    yield _table("Parameters", parameters)
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        properties = content.get("schema", {}).get("properties", {})
        required = content.get("schema", {}).get("required", ())
        rows = [
            (name, ("required; " if name in required else "") + about.get("description", ""))
            for name, about in properties.items()
        ]
        yield _table(f"Body, {kind}", rows)
        for name, example in content.get("examples", {}).items():
            text = json.dumps(example["value"])
            yield f"<p>Example, {escape(name)}:</p><pre>{escape(text)}</pre>"
    answers = [
        (status, f"{', '.join(answer.get('content', ()))} {answer['description']}")
        for status, answer in operation.get("responses", {}).items()
        if not answer["description"].endswith("Validation Error")
    ]
    yield _table("Answers", answers)


def _table(title: str, rows: list[tuple[str, str]]) -> str:
    if not rows:
        return ""
    cells = "".join(
        f"<tr><td><code>{escape(str(name))}</code></td><td>{escape(text)}</td></tr>"
        for name, text in rows
    )
    return f"<table><tr><th>{escape(title)}</th><th></th></tr>{cells}</table>"
