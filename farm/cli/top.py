"""`farm top`: a live view of a farm in the terminal."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from farm.cli.exits import DONE
from farm.cli.options import target_argument
from farm.cli.signals import terminable
from farm.cli.tables import Columns, printable, rows_table, short_name
from farm.client import connect
from farm.wording import timespan

EXAMPLES = """\b
Examples:
  farm top                     the farm of ./farm-run, until Ctrl-C
  farm top farm-4711 --every 5
  farm top | head -20          one snapshot, as the output is no terminal
"""

HEIGHT, WIDTH = 50, 140
"""Size of a snapshot that is not for a terminal."""

FEWEST_WORKERS = 3
"""Rows for workers if the other tables fill the terminal."""

ABOVE = 2
"""Lines above the rows of a table: an empty one and the header."""


@click.command(epilog=EXAMPLES)
@target_argument
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks at the farm.",
)
def top(target: str | None, every_s: float) -> int:
    """Show workers, queues, clients, failures and jobs of a farm, live until Ctrl-C.

    The rows of each table that matter most come first; what does not fit into the terminal is
    left out. Without a terminal, one snapshot is printed.
    """
    console = Console()
    with connect(target) as client:
        if not console.is_terminal:
            Console(width=WIDTH, soft_wrap=False).print(view(client.status(), HEIGHT))
            return DONE
        try:
            first = view(client.status(), console.height)
            live = Live(first, console=console, screen=True, auto_refresh=False)
            with terminable():
                try:  # `with live` would not end what an interrupt cuts short in its start
                    live.start(refresh=True)
                    while True:
                        time.sleep(every_s)
                        live.update(view(client.status(), console.height), refresh=True)
                finally:
                    live.stop()
        except KeyboardInterrupt:
            return DONE


def view(state: Mapping[str, Any], height: int) -> RenderableType:
    """Return a snapshot of a farm as tables that fit into `height` lines.

    Parts that the farm does not report are left out.
    """
    shown: list[RenderableType] = [*_head(state)]
    left = height - len(shown) - FEWEST_WORKERS - ABOVE
    for part in (_queues, _failures, _losses, _clients, _progress, _jobs):
        table, lines = part(state, max(0, left - ABOVE))
        if lines:
            shown += [Text(""), table]
            left -= lines + ABOVE
    workers, lines = _workers(state, FEWEST_WORKERS + left)
    if lines:
        shown += [Text(""), workers]
    return Group(*shown)


def state_of(worker: Mapping[str, Any]) -> str:
    """Return the state of a worker: busy, idle, or a phase such as draining."""
    phase = worker.get("phase") or "open"
    if phase != "open":
        return str(phase)
    return "busy" if worker.get("in_flight") else "idle"


def _head(state: Mapping[str, Any]) -> list[Text]:
    workers, queues = _rows(state, "workers"), _rows(state, "queues")
    counts = Counter(map(state_of, workers))
    by_state = ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "none"
    first = [f"workers: {len(workers)} ({by_state})"]
    if workers:
        first.append(f"hosts: {len({worker.get('host') for worker in workers})}")
    first.append(f"up {timespan(state.get('up_s') or 0.0)}")
    second = [
        f"queued: {sum(row.get('queued') or 0 for row in queues)}",
        f"running: {sum(row.get('in_flight') or 0 for row in queues)}",
        f"done: {state.get('done', 0)}",
        f"failed: {state.get('failed', 0)}",
        f"{state.get('calls_per_s') or 0.0:.4g} calls/s",
    ]
    return [
        Text("   ".join(printable(part) for part in first), style="bold", no_wrap=True),
        Text("   ".join(second), no_wrap=True),
    ]


def _queues(state: Mapping[str, Any], most: int) -> tuple[RenderableType, int]:
    rows = sorted(
        _rows(state, "queues"),
        key=lambda row: (-(row.get("queued") or 0), -(row.get("in_flight") or 0)),
    )
    kind: Columns = {"model": "model", "operation": "operation"}
    counts: Columns = {f">{key}": key for key in ("queued", "running", "done", "failed")}
    times: Columns = {
        ">p50": lambda row: _time(row.get("run_time_p50_s") or None),
        ">p95": lambda row: _time(row.get("run_time_p95_s") or None),
    }
    return _table(kind | counts | {">running": "in_flight"} | times, rows, min(most, 6))


def _failures(state: Mapping[str, Any], most: int) -> tuple[RenderableType, int]:
    columns: Columns = {"failures": "kind", "model": "model", ">count": "count", ">ago": _ago}
    return _table(columns | {"text": "text"}, _rows(state, "failures"), min(most, 5))


def _losses(state: Mapping[str, Any], most: int) -> tuple[RenderableType, int]:
    columns: Columns = {"lost workers": "cause", ">count": "count", ">ago": _ago, "last": "worker"}
    return _table(columns | {"text": "text"}, _rows(state, "losses"), min(most, 4))


def _clients(state: Mapping[str, Any], most: int) -> tuple[RenderableType, int]:
    rows = sorted(_rows(state, "clients"), key=lambda row: -(row.get("share") or 0.0))
    share: Columns = {
        "client": lambda row: short_name(str(row.get("client") or "(no name)")),
        ">share": lambda row: f"{row.get('share') or 0.0:.1%}",
    }
    counts: Columns = {f">{key}": key for key in ("queued", "running", "done", "failed")}
    return _table(share | counts | {">calls/s": _rate}, rows, min(most, 5))


def _progress(state: Mapping[str, Any], most: int) -> tuple[RenderableType, int]:
    columns: Columns = {
        "progress": "kind",
        "name": lambda row: short_name(str(row.get("name") or "(no name)")),
        ">done": "done",
        ">of": lambda row: "?" if row.get("total") is None else row["total"],
        ">failed": "failed",
        ">calls/s": _rate,
        ">ends in": lambda row: _time(row.get("ends_in_s")),
    }
    return _table(columns, _rows(state, "progress"), min(most, 5))


def _jobs(state: Mapping[str, Any], most: int) -> tuple[RenderableType, int]:
    """A table of the jobs by kind, phase and the batch system's reason; its problems first."""
    cluster = state.get("cluster") or {}
    system = str(cluster.get("system", ""))
    rows: list[dict[str, Any]] = []
    if cluster.get("problem"):
        rows.append({"kind": system, "phase": "does not answer", "reason": cluster["problem"]})
    rows += [
        {"kind": kind.get("name", ""), "phase": "problem", "reason": kind["problem"]}
        for kind in _rows(cluster, "kinds")
        if kind.get("problem")
    ]
    alike = Counter(
        (
            str(job.get("kind", "")),
            str(job.get("phase", "")),
            str(job.get("state", "")),
            str(job.get("reason") or "") if job.get("phase") == "pending" else "",
        )
        for job in _rows(cluster, "jobs")
    )
    for (kind, phase, said, reason), count in alike.most_common():
        rows.append({"kind": kind, "phase": phase, "state": said, "reason": reason, "count": count})
    columns: Columns = {f"{printable(system)} jobs of": "kind", "phase": "phase", "state": "state"}
    return _table(columns | {">jobs": "count", "reason": "reason"}, rows, min(most, 6))


def _workers(state: Mapping[str, Any], most: int) -> tuple[RenderableType, int]:
    """A table of the workers, those with the longest running calls first."""
    rows = sorted(
        _rows(state, "workers"),
        key=lambda row: (-(row.get("running_s") or 0.0), -(row.get("failed") or 0)),
    )
    knows = {key for row in rows for key in row if row[key] is not None}
    columns: Columns = {
        "worker": "name",
        "state": state_of,
        "device": lambda row: row.get("device") or "cpu",
        ">runs for": lambda row: _time(row.get("running_s")),
        ">done": "done",
    }
    more: dict[str, Columns] = {
        "failed": {">failed": "failed"},
        "processor": {">cores": lambda row: _number(row.get("processor"), "{:.2f}")},
        "memory_bytes": {">MiB": lambda row: _number(row.get("memory_bytes"), "{:.0f}", 2**-20)},
        "restarts": {">restarts": "restarts"},
        "age_s": {">age": lambda row: _time(row.get("age_s"))},
        "running": {"runs": _call_of},
    }
    for column in (more[key] for key in more if key in knows):
        columns |= column
    return _table(columns, rows, most)


def _call_of(worker: Mapping[str, Any]) -> str:
    running = worker.get("running") or {}
    client = short_name(str(running.get("client") or ""))
    words = [str(running.get("model") or ""), str(running.get("operation") or "")]
    return " ".join([*words, f"of {client}" if client else ""]).strip()


def _rows(state: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    return list(state.get(key) or ())


def _table(
    columns: Columns, rows: Sequence[Mapping[str, Any]], most: int
) -> tuple[RenderableType, int]:
    """Return a table of the first `most` rows, one line each, and its number of lines."""
    if not rows or most < 1:
        return Text(""), 0
    shown = list(rows[:most]) if len(rows) <= most else list(rows[: most - 1])
    table = rows_table(columns, shown)
    for column in table.columns:
        column.no_wrap = True
        column.overflow = "ellipsis"
    if len(shown) == len(rows):
        return table, len(shown)
    more = Text(f" and {len(rows) - len(shown)} more", style="dim")
    return Group(table, more), len(shown) + 1


def _time(seconds: Any) -> str:
    return "" if seconds is None else timespan(float(seconds))


def _ago(row: Mapping[str, Any]) -> str:
    at = row.get("last")
    return "" if at is None else timespan(max(0.0, time.time() - float(at)))


def _rate(row: Mapping[str, Any]) -> str:
    return f"{row.get('calls_per_s') or 0.0:.3g}"


def _number(value: Any, form: str, scale: float = 1.0) -> str:
    return "" if value is None else form.format(value * scale)
