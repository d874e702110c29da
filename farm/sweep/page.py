"""A page of facts and figures as one HTML text that needs nothing else, not even a network."""

from __future__ import annotations

import html
from collections.abc import Mapping

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c1e21; max-width: 62rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem } h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem }
p.note { color: #5f6670; margin: .2rem 0 .6rem }
svg { max-width: 100%; height: auto; display: block }
table { border-collapse: collapse; font-size: 14px }
td, th { text-align: left; padding: .15rem .9rem .15rem 0; vertical-align: top }
th { color: #5f6670; font-weight: 500 }
td.n { text-align: right; font-variant-numeric: tabular-nums }
.scroll { overflow-x: auto } details { margin-top: 2rem } td { overflow-wrap: anywhere }
"""


def page(title: str, note: str, body: str) -> str:
    """The whole page. body: HTML; the others: plain text."""
    title = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>{title}</h1>"
        f'<p class="note">{html.escape(note)}</p>{body}</body></html>\n'
    )


def section(heading: str, note: str, figure: str) -> str:
    """A heading, a line in grey, a figure."""
    return f'<h2>{html.escape(heading)}</h2><p class="note">{html.escape(note)}</p>{figure}'


def table(facts: Mapping[str, str]) -> str:
    """Facts by name, as plain text, a row each."""
    rows = (
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
        for name, text in facts.items()
    )
    return f"<table>{''.join(rows)}</table>"
