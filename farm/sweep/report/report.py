"""Writes the report of a sweep: an interactive page about the model, then about the farm."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from farm.call import Array
from farm.report.interactive import packed, write_interactive
from farm.report.page import Html, facts
from farm.sweep.design.plan import Plan
from farm.sweep.file import layout
from farm.sweep.file.journal import NO_WORKER, PointStatus
from farm.sweep.file.point_columns import PointColumns
from farm.sweep.file.reading import open_sweep
from farm.sweep.file.summary import summarise
from farm.sweep.file.unreadable import reading
from farm.sweep.report import columns, fields
from farm.sweep.report.operation import operation_of
from farm.sweep.report.ranking import ranking_of
from farm.sweep.report.shown import ShownPoints, shown_points
from farm.timespan import timespan

SCRIPTS = (
    *("text.js", "data.js", "axes.js", "selection.js", "figure.js", "scatter.js", "histogram.js"),
    *("parallel.js", "fields.js", "ranking.js", "farm.js", "row.js", "start.js"),
)
"""The scripts of the page; one that extends a class comes after it."""

LONGEST_TEXT = 4_000
"""Most characters of an error or traceback in a report."""

MOST_TEXT = 300_000
"""Most characters of all tracebacks in a report."""


def write_report(path: Path, out: Path, *, colour_by: str | None = None) -> None:
    """Write the report of a sweep, which may be running, to the HTML file `out`.

    colour_by: the output that is shown first, like u or u[3]; None: the first.

    Raises SweepError, OSError.
    """
    with open_sweep(path) as file, reading(path):
        plan, known = layout.read_plan(file), layout.read_known(file)
        state = str(file.attrs["state"])
        data = _data(file, plan, known, colour_by)
    first = data["outputs"][data["first"]]["name"] if data["outputs"] else None
    data["ranking"] = ranking_of(path, plan, first)
    title = plan.title or path.name
    texts = {
        "title": html.escape(title),
        "note": html.escape(
            f"{path.name}: {plan.size:,} points of {plan.info.name}, design {plan.design}, "
            f"seed {plan.seed}; {state}"
        ),
        "points": html.escape(_points(known)),
        "headline": facts(_headline(summarise(known, float("nan")))),
        "provenance": facts(_provenance(plan)),
        "not_shown": _not_shown(data["left_out"]),
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
    positions = columns.parameters_of(plan)
    shown = shown_points(known, len(quantities) + len(positions))
    points = shown.points
    done = known.status[points] == PointStatus.DONE
    pairs = [pair for pair in columns.outputs_of(plan) if fields.is_field(*pair)]
    pairs = pairs[: fields.MOST_FIELDS]
    share = fields.MOST_NUMBERS // max(len(pairs), 1)
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
            fields.field_of(file, column, tensor, points, done, share=share)
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
    last = {row.point: row for row in known.failures}
    texts: dict[str, int] = {}
    tracebacks: dict[str, int] = {}
    room = MOST_TEXT
    rows: list[list[int]] = []
    for place, point in enumerate(points.tolist()):
        row = last.get(point)
        if row is None or known.status[point] <= PointStatus.DONE:
            continue
        error, traceback = _cut(row.error), _cut(row.traceback)
        if traceback not in tracebacks and len(traceback) <= room:
            room -= len(traceback)
            tracebacks[traceback] = len(tracebacks)
        rows.append(
            [place, texts.setdefault(error, len(texts)), tracebacks.get(traceback, -1)],
        )
    return {"texts": list(texts), "tracebacks": list(tracebacks), "rows": rows}


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} …"


def _left_out(plan: Plan, shown: ShownPoints, quantities: int) -> list[str]:
    """Return sentences about what the report does not show."""
    notes = [shown.note]
    parameters = len(plan.parameters)
    if parameters > columns.MOST_PARAMETERS:
        notes.append(f"The first {columns.MOST_PARAMETERS} of {parameters:,} parameters are shown.")
    outputs = columns.outputs_of(plan)
    if quantities == columns.MOST_OUTPUTS:
        named = len({column.output for column, _ in outputs})
        notes.append(f"The first {quantities} columns of {named} outputs are shown.")
    flat = [t.name for c, t in outputs if c.size > 1 and not fields.is_field(c, t)]
    if flat:
        notes.append(f"Outputs with three or more axes are shown by their mean: {', '.join(flat)}.")
    count = sum(fields.is_field(*pair) for pair in outputs)
    if count > fields.MOST_FIELDS:
        notes.append(f"The first {fields.MOST_FIELDS} of {count} outputs with axes are drawn.")
    if len(plan.columns) > len(outputs):
        notes.append("Gradients are in the file, not in this report.")
    return [note for note in notes if note]


def _not_shown(notes: list[str]) -> Html:
    return Html("".join(f'<p class="note">{html.escape(note)}</p>' for note in notes))


def _points(known: PointColumns) -> str:
    counts = {status.name.lower(): known.count(status) for status in PointStatus}
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "none"


def _headline(summary: Mapping[str, float]) -> dict[str, str]:
    told = {
        "time in the model": f"{timespan(summary['work_s'])} on {int(summary['workers'])} workers",
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
