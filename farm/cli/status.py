"""`farm status`: what a farm is doing, as tables or JSON."""

from __future__ import annotations

import time
from typing import Any

import click
import orjson
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from farm.cli.target import target_option
from farm.client import connect

EXAMPLES = """\b
Examples:
  farm status                  the farm of ./farm-run
  farm status --watch          anew each second
  farm status --to http://node3:4242 --json | jq .queues
"""

EVENTS_SHOWN = 8
JOBS_SHOWN = 4


@click.command(epilog=EXAMPLES)
@target_option
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@click.option("--watch", is_flag=True, help="Show it anew each second, until Ctrl-C.")
def status(target: str | None, as_json: bool, watch: bool) -> None:
    """Show workers, calls in flight, queues, rates, overhead and idle gaps of a farm."""
    with connect(target) as client:
        if as_json:
            click.echo(orjson.dumps(client.status(), option=orjson.OPT_INDENT_2))
            return
        console = Console()
        if not watch:
            console.print(tables(client.status()))
            return
        with Live(console=console, screen=False, auto_refresh=False) as live:
            while True:
                live.update(tables(client.status()), refresh=True)
                time.sleep(1.0)


def tables(state: dict[str, Any]) -> RenderableType:
    """A snapshot of the dispatcher, for people."""
    head = (
        f"[b]{len(state['workers'])}[/b] workers, [b]{state['calls_per_s']:.4g}[/b] calls/s, "
        f"{state['done']} done, {state['failed']} failed, up {duration(state['up_s'])}"
    )
    parts: list[RenderableType] = [head, _queues(state["queues"]), _workers(state["workers"])]
    if "slurm" in state:
        parts += _slurm(state["slurm"])
    if state.get("experiments"):
        parts.append(_experiments(state["experiments"]))
    parts.extend(
        f"{title}: " + ", ".join(f"{q} {duration(value[q])}" for q in ("p50", "p95", "p99"))
        for title, value in (
            ("overhead of a call to an idle worker", state["overhead_s"]),
            ("idle gap of a worker while work waits", state["idle_gap_s"]),
        )
        if value is not None
    )
    parts.extend(
        time.strftime("%H:%M:%S ", time.localtime(event["time"]))
        + escape(f"{event['event']} {event['worker']}: {event['text']}")
        for event in state["events"][-EVENTS_SHOWN:]
    )
    return Group(*parts)


def _queues(rows: list[dict[str, Any]]) -> Table:
    table = Table("model", "operation", box=None, header_style="dim")
    for column in ("queued", "in flight", "done", "failed", "p50", "p95"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["model"],
            row["operation"],
            *(str(row[key]) for key in ("queued", "in_flight", "done", "failed")),
            duration(row["run_time_p50_s"]),
            duration(row["run_time_p95_s"]),
        )
    return table


def _workers(rows: list[dict[str, Any]]) -> Table:
    table = Table("worker", "models", "device", box=None, header_style="dim")
    for column in ("in flight", "busy for", "done"):
        table.add_column(column, justify="right")
    for row in rows:
        busy_s = row["busy_s"]
        table.add_row(
            row["name"],
            ", ".join(row["models"]),
            row.get("device") or "cpu",
            str(row["in_flight"]),
            "idle" if busy_s is None else duration(busy_s),
            str(row["done"]),
        )
    return table


def _experiments(rows: list[dict[str, Any]]) -> Table:
    table = Table("experiment", "strategy", box=None, header_style="dim")
    for column in ("asked", "told", "failed", "pending"):
        table.add_column(column, justify="right")
    table.add_column("state")
    for row in rows:
        name = f"{row['number']} {row['name']}".rstrip()
        numbers = (str(row[key]) for key in ("asked", "told", "failed", "pending"))
        state = row["run"] or ("finished" if row["finished"] else "open")
        table.add_row(escape(name), escape(row["strategy_name"]), *numbers, state)
    return table


def _slurm(state: dict[str, Any]) -> list[RenderableType]:
    """How many jobs of each kind there are and should be, where they stand, what is in the way."""
    kinds = Table("SLURM jobs of", "models", box=None, header_style="dim")
    for column in ("wanted", "pending", "running", "most", "workers"):
        kinds.add_column(column, justify="right")
    problems: list[RenderableType] = []
    if state["problem"]:
        problems.append(f"[red]SLURM does not answer: {escape(state['problem'])}[/]")
    for row in state["kinds"]:
        columns = ("wanted", "pending", "running", "max_jobs", "workers")
        models = ", ".join(row["models"])
        kinds.add_row(row["name"], models, *(str(row[key]) for key in columns))
        if row["problem"]:
            text = f"{row['name']}: {row['problem']}"
            if row["next_try_in_s"] is not None:
                text += f"; next try in {row['next_try_in_s']:.0f} s"
            problems.append(f"[red]{escape(text)}[/]")
    alike: dict[tuple[str, ...], list[str]] = {}
    for job in state["jobs"]:
        reason = job["reason"] if job["phase"] == "pending" else job["nodes"]
        key: tuple[str, ...] = (job["kind"], job["phase"], job["state"] or "submitted", reason)
        alike.setdefault(key, []).append(job["id"])
    jobs = Table("kind", "phase", "SLURM says", "reason or nodes", "jobs", box=None)
    jobs.header_style = "dim"
    for words, ids in alike.items():
        more = f" and {len(ids) - JOBS_SHOWN} more" if len(ids) > JOBS_SHOWN else ""
        jobs.add_row(*map(escape, words), ", ".join(ids[:JOBS_SHOWN]) + more)
    return [kinds, *([jobs] if alike else []), *problems]


def duration(seconds: float) -> str:
    """A time span with three digits and a unit that suits it."""
    for limit, unit, scale in ((1e-3, "us", 1e6), (1.0, "ms", 1e3), (120.0, "s", 1.0)):
        if seconds < limit:
            return f"{seconds * scale:.3g} {unit}"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
