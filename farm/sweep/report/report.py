"""Writes the report of a sweep: an interactive page about the model, then about the farm."""

from __future__ import annotations

import html
import json
import math
import shlex
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from farm.call import Array
from farm.errors import FarmError
from farm.report.page import facts, packed, write_interactive
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.file import layout
from farm.sweep.file.journal import NO_WORKER, PointStatus
from farm.sweep.file.point_columns import PointColumns, overheads, summarise
from farm.sweep.file.reading import open_sweep, progress_of
from farm.sweep.file.unreadable import reading
from farm.sweep.report import columns
from farm.sweep.report.columns import MOST_PARAMETERS, ShownPoints, shown_points
from farm.sweep.sensitivity.analysis import Sensitivity, analyse, correlation_note
from farm.wording import counted, timespan

SCRIPTS = (
    *("text.js", "data.js", "axes.js", "selection.js", "figure.js", "scatter.js", "histogram.js"),
    *("parallel.js", "fields.js", "ranking.js", "farm.js", "row.js", "start.js"),
)
"""The scripts of the page; one that extends a class comes after it."""

LONGEST_TEXT = 4_000
"""Most characters of an error or traceback in a report."""

MOST_TEXT = 300_000
"""Most characters of all tracebacks in a report."""

MEASURES = {
    "ST": "total share of the variance (Sobol' ST)",
    "mu_star": "mean absolute elementary effect (Morris \u03bc*)",
    "abs ME": "size of the main effect",
    "delta": "delta, distance between distributions",
    "PAWN median": "PAWN median, distance between distribution functions",
}

MOST_WORK = 1_000_000
"""Most points times parameters times outputs that are ranked, which takes seconds with PAWN."""

MOST_NUMBERS = 60_000_000
"""Most numbers of an output that are read for its ranking: half a gigabyte."""


def write_report(path: Path, out: Path, *, colour_by: str | None = None) -> None:
    """Write the report of a sweep, which may be running, to the HTML file `out`.

    colour_by: the output that is shown first, like u or u[3]; None: the first.

    Raises SweepError, OSError.
    """
    with open_sweep(path) as file, reading(path):
        plan, known = layout.read_plan(file), layout.read_known(file)
        data = _data(file, plan, known, colour_by)
    first = data["outputs"][data["first"]]["name"] if data["outputs"] else None
    data["ranking"] = ranking_of(path, plan, first)
    title = plan.title or path.name
    texts = {
        "title": html.escape(title),
        "note": html.escape(
            f"{path.name}: {plan.size:,} points of {plan.info.name}, design {plan.design}, "
            f"seed {plan.seed}; {progress_of(path).state}"
        ),
        "points": html.escape(_points(known)),
        "headline": facts(_headline(summarise(known, float("nan")))),
        "provenance": facts(_provenance(plan)),
        "not_shown": "".join(
            f'<p class="note">{html.escape(note)}</p>' for note in data["left_out"]
        ),
    }
    write_interactive(
        out,
        files("farm.sweep.report").joinpath("page"),
        SCRIPTS,
        title=title,
        texts=texts,
        data=data,
    )


def _data(
    file: h5py.File, plan: Plan, known: PointColumns, colour_by: str | None
) -> dict[str, Any]:
    """Return all that the scripts of the page show, as JSON data."""
    quantities, first = columns.quantities_of(plan, colour_by)
    positions = range(min(len(plan.parameters), MOST_PARAMETERS))
    shown = shown_points(known, len(quantities) + len(positions))
    points = shown.points
    done = known.status[points] == PointStatus.DONE
    pairs = [pair for pair in plan.outputs if columns.is_field(*pair)]
    pairs = pairs[: columns.MOST_FIELDS]
    share = columns.MOST_FIELD_NUMBERS // max(len(pairs), 1)
    operation = operation_of(known)
    return {
        "points": {
            "index": packed(points, "i4"),
            "status": packed(known.status[points], "u1"),
            "attempts": packed(known.attempts[points], "u1"),
            "start": packed(known.t_start[points] - operation["begin"]),
            "run": packed(known.t_run[points], "f4"),
            "queue": packed(known.t_queue[points], "f4"),
            "worker": packed(
                np.where(known.worker[points] == NO_WORKER, -1, known.worker[points].astype("i8")),
                "i4",
            ),
            "statuses": [status.name.lower() for status in PointStatus],
            "workers": [worker.name for worker in known.workers],
        },
        "parameters": [columns.parameter_column(plan, j, points) for j in positions],
        "outputs": columns.quantity_columns(file, quantities, points, done),
        "first": first,
        "errors": _errors(known, points),
        "fields": [
            columns.field_of(file, column, tensor, points, done, share=share)
            for column, tensor in pairs
        ],
        "operation": operation,
        "weights": [
            shown.done / max(shown.done_shown, 1),
            shown.failed / max(shown.failed_shown, 1),
        ],
        "left_out": _left_out(plan, shown, len(quantities)),
    }


def _errors(known: PointColumns, points: Array) -> dict[str, Any]:
    """Return the last error of each failed point: places in tables of different texts.

    A traceback beyond MOST_TEXT has the place -1.
    """
    last = known.last_failures
    texts: dict[str, int] = {}
    tracebacks: dict[str, int] = {}
    room = MOST_TEXT
    rows: list[list[int]] = []
    for place, point in enumerate(points.tolist()):
        row = last.get(point)
        if row is None:
            continue
        error, traceback = _cut(row.error), _cut(row.traceback)
        if traceback not in tracebacks and len(traceback) <= room:
            room -= len(traceback)
            tracebacks[traceback] = len(tracebacks)
        rows.append([place, texts.setdefault(error, len(texts)), tracebacks.get(traceback, -1)])
    return {"texts": list(texts), "tracebacks": list(tracebacks), "rows": rows}


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} …"


def _left_out(plan: Plan, shown: ShownPoints, quantities: int) -> list[str]:
    """Return sentences about what the report does not show."""
    notes = [shown.note]
    parameters = len(plan.parameters)
    if parameters > MOST_PARAMETERS:
        notes.append(f"The first {MOST_PARAMETERS} of {parameters:,} parameters are shown.")
    outputs = plan.outputs
    if quantities == columns.MOST_OUTPUTS:
        named = len({column.output for column, _ in outputs})
        notes.append(f"The first {quantities} columns of {named} outputs are shown.")
    flat = [t.name for c, t in outputs if c.size > 1 and not columns.is_field(c, t)]
    if flat:
        notes.append(f"Outputs with three or more axes are shown by their mean: {', '.join(flat)}.")
    count = sum(columns.is_field(*pair) for pair in outputs)
    if count > columns.MOST_FIELDS:
        notes.append(f"The first {columns.MOST_FIELDS} of {count} outputs with axes are drawn.")
    if len(plan.columns) > len(outputs):
        notes.append("Gradients are in the file, not in this report.")
    return [note for note in notes if note]


def _points(known: PointColumns) -> str:
    counts = {status.name.lower(): known.count(status) for status in PointStatus}
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "none"


def _headline(summary: Mapping[str, float]) -> dict[str, str]:
    workers = counted(int(summary["workers"]), "worker")
    told = {
        "time in the model": f"{timespan(summary['work_s'])} on {workers}",
        "first start to last end": timespan(summary["makespan_s"]),
    }
    if np.isfinite(summary["efficiency"]):
        told["efficiency"] = f"{summary['efficiency']:.1%} (time in the model / workers / span)"
    for name, words in (("idle_gap", "idle gap of a worker"), ("overhead", "overhead of a point")):
        if np.isfinite(summary[f"{name}_p50_s"]):
            told[words] = ", ".join(
                f"p{percent} {timespan(summary[f'{name}_p{percent}_s'])}"
                for percent in (50, 95, 99)
            )
    return told


def _provenance(plan: Plan) -> dict[str, str]:
    return {
        **plan.provenance,
        "config": json.dumps(dict(plan.config)),
        "theta_sha256": plan.theta_hash,
        "run_id": plan.run_id,
    }


MOST_WORKERS = 60
"""Most workers whose runs are shown."""

MOST_STEPS = 500
"""Most steps of the curve of progress."""

FINEST = 600
"""Runs of a worker that are closer than this part of the sweep's time are shown as one."""

BINS = 40


def operation_of(known: PointColumns) -> dict[str, Any]:
    """Return the data of the figures about the farm; times in seconds since the first start."""
    ran = known.ran
    begin = float(np.min(known.t_start[ran])) if np.any(ran) else 0.0
    ends = np.sort(known.t_start[ran] + known.t_run[ran]) - begin
    steps = np.unique(np.linspace(0, max(len(ends) - 1, 0), MOST_STEPS).astype(int))[: len(ends)]
    return {
        "begin": begin,
        "size": len(known.status),
        "progress": {"times": packed(ends[steps]), "counts": packed(steps + 1, "i4")},
        "gantt": _gantt(known, ran, begin),
        "overhead": _overhead(overheads(known)),
    }


def _gantt(known: PointColumns, ran: Array, begin: float) -> dict[str, Any]:
    listed = np.flatnonzero(ran & (known.worker != NO_WORKER))
    workers = np.unique(known.worker[listed])
    starts = known.t_start[listed] - begin
    gap = float(np.max(starts + known.t_run[listed])) / FINEST if len(listed) else 0.0
    bars: list[list[float]] = []
    for line, worker in enumerate(workers[:MOST_WORKERS]):
        own = known.worker[listed] == worker
        runs = np.stack([starts[own], known.t_run[listed][own]], axis=1)
        merged = joined_runs(runs[np.argsort(runs[:, 0])], gap)
        bars += [[line, begin_s, length_s] for begin_s, length_s in merged]
    return {
        "workers": [int(worker) for worker in workers[:MOST_WORKERS]],
        "more": max(len(workers) - MOST_WORKERS, 0),
        "bars": packed(np.array(bars)),
    }


def joined_runs(runs: Array, gap: float) -> list[list[float]]:
    """Return runs (start, length), joined where the gap is below `gap`, too small to see."""
    merged: list[list[float]] = []
    for start, length in runs.tolist():
        if merged and start - sum(merged[-1]) < gap:
            merged[-1][1] = max(start + length - merged[-1][0], merged[-1][1])
        else:
            merged.append([start, length])
    return merged


def _overhead(times: Array) -> dict[str, Any]:
    """Return a histogram over log10 of milliseconds."""
    times = np.log10(1e3 * times[times > 0])
    if not len(times):
        return {"counts": packed(np.array([]), "i4"), "low": 0.0, "high": 0.0, "median": None}
    low, high = float(np.min(times)), float(np.max(times))
    counts, edges = np.histogram(times, BINS, (low, max(high, low + 0.01)))
    return {
        "counts": packed(counts, "i4"),
        "low": float(edges[0]),
        "high": float(edges[-1]),
        "median": float(10 ** np.median(times)),
    }


def ranking_of(path: Path, plan: Plan, first: str | None) -> dict[str, Any]:
    """Return the sensitivity of the outputs as JSON data: groups, and a note about missing ones.

    first: the output column that the report shows first, which is ranked as well as all outputs,
    or alone where all would take long.
    """
    outputs = plan.outputs
    if first is None:
        return {"groups": [], "note": "No ranking: the model has no outputs with entries."}
    numbers = plan.size * max(column.size for column, _ in outputs)
    work = plan.size * len(plan.parameters)
    if work > MOST_WORK or numbers > MOST_NUMBERS:
        return {"groups": [], "note": f"No ranking, as it takes long here: {_command(path)}."}
    every = work * len(outputs) <= MOST_WORK
    name = first.removeprefix("mean of ")
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # numbers near the limits of floats
            found = analyse(path) if every else analyse(path, output=name)
            if every and name.endswith("]") and name not in {s.output for s in found}:
                found = [*analyse(path, output=name), *found]
    except (FarmError, SweepError) as error:
        return {"groups": [], "note": f"No ranking: {error}"}
    note = "" if every else f"Other outputs: {_command(path)}."
    correlated = correlation_note(found)
    if correlated:
        note = f"{correlated[0].upper()}{correlated[1:]}. {note}".strip()
    return {"groups": [_group(s) for s in found], "note": note}


def _command(path: Path) -> str:
    return f"farm sweep sensitivity {shlex.quote(path.name)}"


def _group(found: Sensitivity) -> dict[str, Any]:
    """Return one output's ranking as JSON data, the most influential parameter first.

    A value or confidence that is not finite is null.
    """
    numbers = {"value": found.values, "confidence": found.confidence}
    if found.method == "sobol":
        numbers["first"] = found.others["S1"]
    keys = np.where(np.isfinite(found.values), found.values, -np.inf)
    rows = [
        {"parameter": found.parameters[j], **{n: _finite(each[j]) for n, each in numbers.items()}}
        for j in np.argsort(-keys, kind="stable")
    ]
    return {
        "output": found.output,
        "method": found.method,
        "measure": MEASURES.get(found.measure, found.measure),
        "rows": rows[:MOST_PARAMETERS],
        "points": found.points,
        "left_out": found.left_out,
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
