"""The tables of options in docs/experiments/, from the rows that the reader of configs uses.

`python -m tests.support.option_tables` writes them into the pages, between their markers. Their
columns `meaning` and `AEPsych` are written by hand.
"""

from __future__ import annotations

import re
from pathlib import Path

from farm.experiment.config import options
from farm.experiment.config.option_table import ConfigOption, OptionTable

PAGES = sorted((Path(__file__).parents[2] / "docs" / "experiments").glob("*.md"))

TABLES = {
    "farm": options.FARM,
    "common": options.COMMON,
    "parameter": options.PARAMETER,
    "strategy": options.STRATEGY,
    "generator": options.GENERATOR,
    "model": options.MODEL,
    "acquisition": options.ACQUISITION,
    "metadata": options.METADATA,
}
"""Each table by the name that its markers in the page have."""

MARKED = re.compile(r"(<!-- options: (\w+) -->\n\n)(.*?)(\n\n<!-- end of options -->)", re.DOTALL)


def rows_of(markdown: str) -> list[dict[str, str]]:
    """Return the rows of a table, each by the names of the columns."""
    head, _, *rows = (line[2:-2].split(" | ") for line in markdown.splitlines())
    return [dict(zip(head, row, strict=True)) for row in rows]


def with_rows(table: OptionTable, markdown: str) -> str:
    """Return a table of the page with the rows of the code; other columns stay as they are."""
    head, line, *_ = markdown.splitlines()
    written = {row["option"]: row for row in rows_of(markdown)}
    rows = []
    for option in table.options:
        stated = {
            "option": _named(option),
            "value": option.expected,
            "default": option.fallback,
            "taken by": re.sub(r"(\w+)", r"`\1`", option.classes),
        }
        row = written.get(_named(option), {}) | stated
        rows.append(f"| {' | '.join(row.get(name, '') for name in head[2:-2].split(' | '))} |")
    return "\n".join([head, line, *rows])


def with_tables(page: str) -> str:
    """The page with every table between its markers."""
    return MARKED.sub(
        lambda found: found[1] + with_rows(TABLES[found[2]], found[3]) + found[4], page
    )


def _named(option: ConfigOption) -> str:
    return f"`{option.name}`" + (f", before 0.8 `{option.older}`" if option.older else "")


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_tables(path.read_text()))
