"""`farm failures`: print what failed at a farm and why, as tables or JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from farm.cli.options import json_option, print_json, target_option
from farm.cli.tables import printable as plain
from farm.cli.tables import short_name
from farm.client import connect
from farm.errors import LossCause, printable
from farm.wording import counted

EXAMPLES = """\b
Examples:
  farm failures                what failed at the farm of ./farm-run, and which workers were lost
  farm failures 3f2a90c1       one reason: its traceback and the last inputs
  farm failures --all          all reasons that are kept, up to 200
  farm failures --to http://node3:4242 --json | jq '.failures[].text'
"""

ROWS_SHOWN = 20
LONGEST_TEXT_SHOWN = 200

DAY_S = 86400.0


@click.command(epilog=EXAMPLES)
@click.argument("reason", metavar="[ID]", required=False)
@target_option
@json_option("Print one JSON object.")
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
            found = {key: state.get(key, []) for key in ("failures", "losses")}
    if as_json:
        print_json(found)
    elif reason is not None:
        click.echo(one(found))
    else:
        most = None if is_all else ROWS_SHOWN
        Console().print(tables(found["failures"], found["losses"], most))


def tables(
    failed: Sequence[dict[str, Any]], lost: Sequence[dict[str, Any]], most: int | None
) -> RenderableType:
    """Return the groups for a console, two lines each. most: of each kind, None: all."""
    head = summary(failed, lost) or "no call failed, no worker was lost"
    table = Table(box=None, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for row in failed[:most]:
        where = f" on {row['worker']}" if row["worker"] else ", before it ran"
        of = f" for {short_name(row['client'])}" if row["client"] else ""
        calls = counted(row["count"], "call")
        model = short_name(row["model"]) or "a model that is not known"
        about = f"{calls} of {model}, last at {at(row['last'])}{where}{of}"
        table.add_row(*_two_lines(row["id"], about, f"{row['kind']}: {row['text']}"))
    for row in lost[:most]:
        hosts = ", ".join(row["hosts"])
        workers = f"{counted(row['count'], 'worker')} lost on {hosts or 'an unknown host'}"
        about = f"{workers}, last at {at(row['last'])}: {row['worker']}"
        cause, text = row["cause"], row["text"]
        if cause != LossCause.UNKNOWN and not text.startswith(cause):
            text = f"{text} ({cause})"
        if last := row.get("detail", "").rstrip().rpartition("\n")[2].strip():
            text += f": {last}"  # the end of the worker's log, which often says why
        table.add_row(*_two_lines(row["id"], about, text))
    parts: list[RenderableType] = [Text(head), table]
    if (more := len(failed) + len(lost) - table.row_count) > 0:
        parts.append(f"and {more} more reasons; --all lists them")
    if failed or lost:
        parts.append("farm failures ID shows a traceback, or the end of a worker's log")
    return Group(*parts) if failed or lost else head


def summary(failed: Sequence[dict[str, Any]], lost: Sequence[dict[str, Any]]) -> str:
    """Return one line with the numbers of failed calls and lost workers; empty if none."""
    parts = []
    for rows, one_of, what in ((failed, "call", "failed"), (lost, "worker", "lost")):
        if rows:
            count = counted(sum(row["count"] for row in rows), one_of)
            parts.append(f"{count} {what} for {counted(len(rows), 'reason')}")
    return ", ".join(parts)


def _two_lines(name: str, about: str, text: str) -> tuple[Text, Text]:
    if len(text) > LONGEST_TEXT_SHOWN:
        text = text[: LONGEST_TEXT_SHOWN - 1] + "\u2026"
    # A Text has no markup: brackets in an error are shown as they are.
    return Text(name, style="dim"), Text(f"{plain(about)}\n{plain(text)}")


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


def at(moment: float) -> str:
    """Return a Unix time for people: the time of day, and the date if it is not of the last day."""
    recent = abs(time.time() - moment) < DAY_S
    return time.strftime("%T" if recent else "%F %H:%M", time.localtime(moment))
