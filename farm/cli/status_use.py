"""The tables of `farm status` about clients and progress, and the lines of `--why`."""

from __future__ import annotations

from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from farm.cli.tables import printable, short_name, text_table, whole_names
from farm.client import Client
from farm.timespan import timespan

CLIENTS_SHOWN = 20
PROGRESS_SHOWN = 20

BAR = 20
"""Characters of a bar; in a narrow terminal it has fewer, `SHORTEST_BAR` at least."""

SHORTEST_BAR = 4
PART = " 100%"


def clients(rows: list[dict[str, Any]]) -> list[RenderableType]:
    """A table of the clients with the largest shares of the workers."""
    counts = (">callers", ">queued", ">running", ">done", ">failed")
    table = text_table(
        ("client", *counts, ">calls/s", ">share", ">last answer"),
        [
            [
                short_name(_client(row)),
                *(row[key.removeprefix(">")] for key in counts),
                f"{row['calls_per_s']:.3g}",
                f"{row['share']:.1%}",
                "" if row["last_s"] is None else timespan(row["last_s"]),
            ]
            for row in rows[:CLIENTS_SHOWN]
        ],
    )
    whole_names(table, "client")
    more = len(rows) - CLIENTS_SHOWN
    return [table, f"and {more} more clients; --json lists them"] if more > 0 else [table]


def _client(row: dict[str, Any]) -> str:
    if row["others"]:
        return f"{row['others']} others"
    return row["client"] or "(no name)"


def progress(rows: list[dict[str, Any]]) -> Table:
    """A table of sweeps, experiments and chains, with bars and expected ends."""
    table = text_table(
        ("progress of", "name", "client", "", ">done", ">failed", ">calls/s", "ends"),
        [
            [
                row["kind"],
                short_name(row["name"]),
                short_name(row["client"]),
                bar(row),
                row["done"] if row["total"] is None else f"{row['done']}/{row['total']}",
                row["failed"],
                f"{row['calls_per_s']:.3g}",
                _end(row),
            ]
            for row in rows[:PROGRESS_SHOWN]
        ],
    )
    whole_names(table, "client", "ends")
    return table


class Bar:
    """A bar for the part that has an outcome, as wide as there is room, with its percentage."""

    def __init__(self, finished: float) -> None:
        self._finished = finished

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(SHORTEST_BAR + len(PART), BAR + len(PART))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(0, min(BAR, options.max_width - len(PART)))
        full = int(width * self._finished)
        yield Text("█" * full + "░" * (width - full) + f" {self._finished:4.0%}", no_wrap=True)


def bar(row: dict[str, Any]) -> Bar | str:
    """Return a bar for the part that has an outcome; empty if the total is not known."""
    if not row["total"]:
        return ""
    return Bar(min(1.0, (row["done"] + row["failed"]) / row["total"]))


def _end(row: dict[str, Any]) -> str:
    if row["state"] != "running":
        return str(row["state"])
    return "" if row["ends_in_s"] is None else f"in about {timespan(row['ends_in_s'])}"


def why(client: Client, of: str, chain: str | None) -> dict[str, Any]:
    """Return why a call or a client waits. of: number or id of the call, or the client's name."""
    if chain is None:
        return dict(client.ask("why", of=of))
    return client.why(of, chain=chain)


def lines(found: dict[str, Any]) -> str:
    """Return the lines of an answer to `why`, safe for a terminal."""
    first, *others = [printable(line) for line in found["why"]]
    return "\n".join([first, *(f"  {line}" for line in others)])
