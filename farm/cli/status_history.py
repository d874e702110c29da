"""`farm status --since`: the numbers, failures and events of the last minutes or hours."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from farm.cli import failures
from farm.cli.tables import printable, text_table
from farm.client import Client
from farm.wording import timespan

ROWS = 12
"""Most rows of the table: each is the mean of some steps of the history."""

EVENTS_SHOWN = 8
SAME_S = 60.0
"""Events of one kind with less time between them are one."""

KINDS = ("failures", "losses")

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

COLUMNS = {
    "workers": ">workers",
    "busy": ">busy",
    "queued": ">queued",
    "calls_per_s": ">calls/s",
    "failed_per_s": ">failed/s",
    "run_p50_s": ">run p50",
}


def time_span(text: str) -> float:
    """Return the seconds of a time span such as 90s, 10m, 3h or 1d. Raises click.BadParameter."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if found is None or not float(found[1]):
        raise click.BadParameter(f"{text!r}; expected a time span such as 90s, 10m, 3h or 1d")
    return float(found[1]) * UNITS[found[2]]


def since(client: Client, seconds: float) -> RenderableType:
    """Return what happened in the last seconds: numbers, failures, losses and events."""
    begin = time.time() - seconds
    told, state = client.history(since=-seconds), client.status()
    late = {key: [row for row in state[key] if row["last"] >= begin] for key in KINDS}
    parts: list[RenderableType] = [numbers(told)]
    if any(late.values()):
        parts.append(failures.tables(late["failures"], late["losses"], failures.ROWS_SHOWN))
    recent = [event for event in state["events"] if event["time"] >= begin]
    return Group(*parts, *event_lines(recent, most=3 * EVENTS_SHOWN))


def numbers(told: dict[str, Any]) -> Table:
    """Return a history as a table of at most `ROWS` rows, each the mean of some steps."""
    times, series = told["times"], told["series"]
    each = max(1, -(-len(times) // ROWS))
    cells = []
    for first in range(0, len(times), each):
        last = min(first + each, len(times)) - 1
        row = [_mean(series[key][first : last + 1]) for key in COLUMNS]
        *counts, p50_s = ("" if value is None else f"{value:.3g}" for value in row)
        if row[-1] is not None:
            p50_s = timespan(row[-1])
        cells.append([failures.at(times[last]), *counts, p50_s])
    return text_table(("until", *COLUMNS.values()), cells)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def event_lines(events: Sequence[dict[str, Any]], most: int = EVENTS_SHOWN) -> list[str]:
    """Return the last events, oldest first; those of one kind within a minute are one line.

    So joins of many workers do not hide the rest. Texts of workers from elsewhere differ for each.
    """
    rows: list[dict[str, Any]] = []
    latest: dict[tuple[str, str], dict[str, Any]] = {}
    for event in events:
        kind = event["event"]
        key = kind, "" if kind == "from elsewhere" else event["text"]
        row = latest.get(key)
        if row is not None and event["time"] - row["time"] < SAME_S:
            row.update(event, count=row["count"] + 1)
        else:
            latest[key] = {**event, "count": 1}
            rows.append(latest[key])
    rows.sort(key=lambda row: row["time"])
    return [_line(row) for row in rows[-most:]]


def _line(row: dict[str, Any]) -> str:
    more = f" and {row['count'] - 1} before" if row["count"] > 1 else ""
    text = f"{row['event']} {row['worker']}{more}: {row['text']}"
    return time.strftime("%H:%M:%S ", time.localtime(row["time"])) + escape(printable(text))
