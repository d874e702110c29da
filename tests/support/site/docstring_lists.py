"""Docstrings of farm as Markdown: their lines `name: meaning` become lists."""

from __future__ import annotations

import re
import textwrap

ITEM = re.compile(r"^(?P<names>[a-z_]\w*(?:, [a-z_]\w*)*): +(?P<rest>\S.*)$")
ALIGNED = re.compile(r"\S {3,}\S")
SENTENCE = re.compile(r"[A-Z`][^.:]* ")
STARRED = re.compile(r"(`[^`]*`)")


def as_markdown(text: str) -> str:
    """Return a docstring as Markdown, in which `name: meaning` at the start of a line is an item.

    A meaning goes on over the lines up to the next item, a sentence that begins a line, or an empty
    line. Paragraphs that are indented, or aligned in columns, are programs or tables: they stay.
    """
    paragraphs = re.split(r"\n[ \t]*\n", text.strip("\n"))
    return "\n\n".join(_paragraph(paragraph) for paragraph in paragraphs)


def _paragraph(text: str) -> str:
    lines = text.splitlines()
    if all(line.startswith("    ") for line in lines):
        return f"```python\n{textwrap.dedent(text)}\n```"
    if ALIGNED.search(text):
        return f"```text\n{text}\n```"
    prose: list[str] = []
    items: list[str] = []
    after: list[str] = []
    for number, line in enumerate(lines):
        found = ITEM.match(line)
        if found and not after:
            names = ", ".join(f"`{name}`" for name in found["names"].split(", "))
            items.append(f"- {names}: {_escaped(found['rest'])}")
        elif number and line.startswith("    ") and lines[number - 1].endswith(":"):
            rest = textwrap.dedent("\n".join(lines[number:]))  # a program right below its sentence
            return "\n".join(prose) + f"\n\n```python\n{rest}\n```"
        elif after or (items and lines[number - 1].endswith(".") and SENTENCE.match(line)):
            after.append(_escaped(line))
        elif items:
            items[-1] += f" {_escaped(line.strip())}"
        else:
            prose.append(_escaped(line))
    return "\n\n".join(
        part for part in ("\n".join(prose), "\n".join(items), "\n".join(after)) if part
    )


def _escaped(text: str) -> str:
    """Return a line with the signs that Markdown would take for emphasis or for HTML escaped."""
    parts = STARRED.split(text)
    parts[::2] = [re.sub(r"([*<])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)
