"""The tables of options in docs/experiments.md, from the rows that the reader of configs uses.

`python -m tests.support.option_tables` writes them into the page, between its markers.
"""

from __future__ import annotations

import re
from pathlib import Path

from farm.experiment.config import options
from farm.experiment.config.option_table import ConfigOption, OptionTable

PAGE = Path(__file__).parents[2] / "docs" / "experiments.md"

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

MARKED = re.compile(r"(<!-- options: (\w+) -->\n\n).*?(\n\n<!-- end of options -->)", re.DOTALL)


def markdown(table: OptionTable) -> str:
    """A table for the page; the columns `taken by` and `AEPsych` where they tell rows apart."""
    columns = {
        "option": [_named(option) for option in table.options],
        "value": [option.expected for option in table.options],
        "default": [option.fallback for option in table.options],
        "meaning": [option.means for option in table.options],
        "taken by": [re.sub(r"(\w+)", r"`\1`", o.classes) for o in table.options],
        "AEPsych": [option.since for option in table.options],
    }
    for name in ("taken by", "AEPsych"):
        if len(set(columns[name])) == 1 and (name == "AEPsych" or not columns[name][0]):
            del columns[name]
    rows = [list(columns), ["---"] * len(columns), *zip(*columns.values(), strict=True)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def with_tables(page: str) -> str:
    """The page with every table between its markers."""
    return MARKED.sub(lambda found: found[1] + markdown(TABLES[found[2]]) + found[3], page)


def _named(option: ConfigOption) -> str:
    return f"`{option.name}`" + (f", before 0.8 `{option.older}`" if option.older else "")


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
