"""The workers of a farm as tables: each one of a few, or those with trouble and all by host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import RenderableType
from rich.markup import escape

from farm.cli.tables import Columns, printable, rows_table, size, text_table
from farm.wording import timespan

Row = Mapping[str, Any]

EACH_SHOWN = 20
"""Farms with more workers are shown by host, but for the workers with trouble."""

HOSTS_SHOWN = 40
STATES = {"shut": "takes no calls", "full": "is behind", "shut and full": "is behind"}
"""Phases of the scheduler in other words; an open worker is idle or busy."""


def worker_tables(rows: Sequence[Row]) -> list[RenderableType]:
    """Return the tables for the workers in a snapshot; those with trouble come first."""
    if not rows:
        return ["no workers"]
    rows = sorted(rows, key=lambda row: (-len(row["trouble"]), -(row["running_s"] or 0.0)))
    if len(rows) <= EACH_SHOWN:
        return _each(rows)
    sick = [row for row in rows if row["trouble"]]
    parts: list[RenderableType] = []
    if sick:
        parts += _each(sick[:EACH_SHOWN])
    if len(sick) > EACH_SHOWN:
        parts.append(f"and {len(sick) - EACH_SHOWN} more workers with trouble; --json lists them")
    return [*parts, *_hosts(rows)]


def _each(rows: Sequence[Row]) -> list[RenderableType]:
    """A table with a row for each worker, and their troubles below it."""
    models = {", ".join(row["models"]) for row in rows}
    columns: Columns = {
        "worker": "name",
        "?models": lambda row: ", ".join(row["models"]) if len(models) > 1 else "",
        "?device": "device",
        "busy for": _busy,
        ">p50": lambda row: _time(row["run_times_s"]["p50"]),
        ">p99": lambda row: _time(row["run_times_s"]["p99"]),
        ">done": "done",
        "?>failed": "failed",
        "?>memory": lambda row: "" if (m := row["memory_bytes"]) is None else size(m),
        "?>cpu": lambda row: "" if (p := row["processor"]) is None else f"{p:.2f}",
        "?>restarts": "restarts",
    }
    table = rows_table(columns, rows)
    table.columns[0].no_wrap = True
    troubles = [f"{row['name']}: {'; '.join(row['trouble'])}" for row in rows if row["trouble"]]
    return [table, *(f"[red]{escape(printable(text))}[/]" for text in troubles)]


def _busy(row: Row) -> str:
    age_s = row["running_s"]
    busy = "idle" if age_s is None else timespan(age_s)
    if row["slots"] > 1:  # a Dask cluster
        busy = f"{row['in_flight']} of {row['slots']} busy"
    return f"{busy}, {STATES[row['phase']]}" if row["phase"] in STATES else busy


def _time(seconds: float | None) -> str:
    return "" if seconds is None else timespan(seconds)


def _hosts(rows: Sequence[Row]) -> list[RenderableType]:
    """A table with a row for each host, in the order of the given workers."""
    hosts: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        hosts[row["host"]].append(row)
    cells = [_host(name, those) for name, those in list(hosts.items())[:HOSTS_SHOWN]]
    counts = (">workers", ">busy", "?>trouble", "?>longest", "?>p50", ">done")
    columns = ("host", *counts, "?>failed", "?>memory", "?>cpu", "?>restarts")
    table = text_table(columns, cells)
    table.columns[0].no_wrap = True
    more = len(hosts) - HOSTS_SHOWN
    return [table, f"and {more} more hosts; --json lists all workers"] if more > 0 else [table]


def _host(name: str, rows: Sequence[Row]) -> list[object]:
    """The cells of a host, in the order of the columns of `_hosts`."""

    def known(values: Iterable[float | None]) -> list[float]:
        return [value for value in values if value is not None]

    running, memory, cores = (
        known(row[key] for row in rows) for key in ("running_s", "memory_bytes", "processor")
    )
    p50s = known(row["run_times_s"]["p50"] for row in rows)
    done, failed, restarts = (
        sum(row[key] for row in rows) for key in ("done", "failed", "restarts")
    )
    return [
        name or "?",
        len(rows),
        len(running),
        sum(bool(row["trouble"]) for row in rows) or "",
        timespan(max(running)) if running else "",
        timespan(median(p50s)) if p50s else "",
        done,
        failed or "",
        size(sum(memory)) if memory else "",
        f"{sum(cores):.1f}" if cores else "",
        restarts or "",
    ]
