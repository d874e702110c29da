"""`farm failures`: print what failed at a farm and why, as tables or JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click
import orjson
from rich.console import Console, Group, RenderableType
from rich.table import Table

from farm.cli.options import target_option
from farm.cli.tables import short_name, text_table
from farm.client import connect
from farm.errors import printable

EXAMPLES = """\b
Examples:
  farm failures                what failed at the farm of ./farm-run, and which workers were lost
  farm failures 3f2a90c1       one reason: its traceback and the last inputs
  farm failures --all          all reasons that are kept, up to 200
  farm failures --to http://node3:4242 --json | jq '.failures[].text'
"""

ROWS_SHOWN = 20
LONGEST_TEXT_SHOWN = 120

DAY_S = 86400.0


@click.command(epilog=EXAMPLES)
@click.argument("reason", metavar="[ID]", required=False)
@target_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--all", "is_all", is_flag=True, help=f"Print more than {ROWS_SHOWN} reasons.")
def failures(reason: str | None, target: str | None, as_json: bool, is_all: bool) -> None:
    """Show the calls of a farm that failed, and the workers that it lost, by reason.

    Texts that differ only in numbers, paths and other changing parts are one reason. With the ID of
    a reason, its traceback, or the end of the worker's log, and the inputs of a failed call.
    """
    with connect(target) as client:
        if reason is not None:
            found = client.ask("failures", id=reason)
        else:
            state = client.status()
            found = {key: state[key] for key in ("failures", "losses")}
    if as_json:
        click.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    elif reason is not None:
        click.echo(one(found))
    else:
        most = None if is_all else ROWS_SHOWN
        Console().print(tables(found["failures"], found["losses"], most))


def tables(
    failed: Sequence[dict[str, Any]], lost: Sequence[dict[str, Any]], most: int | None
) -> RenderableType:
    """Return the groups as tables for a console. most: rows per table, None: all."""
    parts: list[RenderableType] = [summary(failed, lost) or "no call failed, no worker was lost"]
    if failed:
        parts.append(_failed(failed[:most]))
    if lost:
        parts.append(_lost(lost[:most]))
    shown = len(failed[:most]) + len(lost[:most])
    if shown < len(failed) + len(lost):
        parts.append(f"and {len(failed) + len(lost) - shown} more reasons; --all lists them")
    if failed or lost:
        parts.append("farm failures ID shows the traceback, or the end of the log, of one reason")
    return Group(*parts)


def summary(failed: Sequence[dict[str, Any]], lost: Sequence[dict[str, Any]]) -> str:
    """Return one line with the numbers of failed calls and lost workers; empty if none."""
    parts = []
    for rows, one_of, many in (
        (failed, "call failed", "calls failed"),
        (lost, "worker was lost", "workers were lost"),
    ):
        if count := sum(row["count"] for row in rows):
            reasons = "1 reason" if len(rows) == 1 else f"{len(rows)} reasons"
            parts.append(f"{count} {one_of if count == 1 else many} for {reasons}")
    return ", ".join(parts)


def _failed(rows: Sequence[dict[str, Any]]) -> Table:
    return text_table(
        ("id", ">calls", "last", "model", "error", "worker", "client"),
        [
            [
                *(row["id"], row["count"], at(row["last"]), short_name(row["model"])),
                _short(f"{row['kind']}: {row['text']}"),
                row["worker"] or "none",
                short_name(row["client"]),
            ]
            for row in rows
        ],
    )


def _lost(rows: Sequence[dict[str, Any]]) -> Table:
    return text_table(
        ("id", ">workers lost", "last", "cause", "reason", "last one", "hosts"),
        [
            [
                *(row["id"], row["count"], at(row["last"]), row["cause"], _short(row["text"])),
                row["worker"],
                ", ".join(row["hosts"]),
            ]
            for row in rows
        ],
    )


def one(group: dict[str, Any]) -> str:
    """Return one group in full, as text for a terminal: one fact a line, then its detail."""
    lines = []
    for key, value in group.items():
        if key == "detail" or value in ("", None, {}):
            continue
        if key in ("first", "last"):
            value = time.strftime("%F %T", time.localtime(value))
        elif isinstance(value, dict):
            value = ", ".join(f"{name} ({count})" for name, count in value.items())
        lines.append(f"{key.replace('_', ' '):<10} {printable(str(value))}")
    detail = printable(group["detail"]).strip("\n")
    return "\n".join([*lines, "", detail or "nothing more is known about it"])


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT_SHOWN else text[: LONGEST_TEXT_SHOWN - 1] + "\u2026"


def at(moment: float) -> str:
    """Return a Unix time for people: the time of day, and the date if it is not of the last day."""
    recent = abs(time.time() - moment) < DAY_S
    return time.strftime("%T" if recent else "%F %H:%M", time.localtime(moment))
