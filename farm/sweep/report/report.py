"""Writes the report of a sweep: its sections, texts and tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from farm.call import Array
from farm.report.page import Html, facts, folded, section, table, write_page
from farm.report.scatter import legend
from farm.sweep.design.errors import SweepError
from farm.sweep.design.plan import Plan
from farm.sweep.file import layout
from farm.sweep.file.journal import PointStatus
from farm.sweep.file.progress import duration
from farm.sweep.file.reading import failures_of, open_sweep
from farm.sweep.file.summary import summarise
from farm.sweep.report import figures
from farm.sweep.report.figures import SweepData
from farm.units import label

PARAMETERS_LISTED = 8
"""Most parameters shown as columns in the table of failures."""


def write_report(path: Path, out: Path, *, colour_by: str | None = None) -> None:
    """Write the report of a sweep, which may be running, to the HTML file `out`.

    colour_by: the output that colours points, like u or u[3]; None: the first.

    Raises SweepError, UnsupportedFeature without matplotlib, OSError.
    """
    with open_sweep(path) as file:
        plan, known = layout.read_plan(file), layout.read_known(file)
        state = str(file.attrs["state"])
        colour, name = _colour(file, plan, known.status == PointStatus.DONE, colour_by)
    data = SweepData(plan, known, colour, name)
    listed = failures_of(path)
    points = legend(data.parameters, name) + " Red: failed points." * bool(listed)
    failed = "Share of points that failed, along each parameter." if listed else "No point failed."
    blocks = [
        facts(_headline(summarise(known, float("nan")))),
        section("Progress", "Points finished over time.", figures.progress(data)),
        section("Parameters and output", points, figures.points(data)),
        section("Run time against each parameter", "Of finished points.", figures.run_times(data)),
        section("Failures in parameter space", failed, *_failures(data, listed)),
        section("Workers", "Bars are runs; gaps are idle time.", figures.gantt(data)),
        section(
            "Overhead",
            "Time from submission of a point to its answer, minus model and queue time.",
            figures.overhead(data),
        ),
        folded("Provenance", facts(_provenance(plan))),
    ]
    note = (
        f"{path.name}: {plan.size} points of {plan.info.name}, design {plan.design}, "
        f"seed {plan.seed}; {state}"
    )
    write_page(out, title=plan.title, note=note, blocks=blocks)


def _colour(file: h5py.File, plan: Plan, done: Array, wanted: str | None) -> tuple[Array, str]:
    """Return one number per point and its name: an entry of an output, or the mean of all."""
    outputs = [column for column in plan.columns if column.input is None]
    names = [plan.info.outputs[column.output].name for column in outputs]
    if not outputs:
        return np.full(plan.size, np.nan), "no output"
    stem, _, index = (wanted or names[0]).removesuffix("]").partition("[")
    if stem not in names or (index and not index.isdecimal()):
        raise SweepError(f"no output {wanted!r}; the outputs are {', '.join(names)}")
    column = outputs[names.index(stem)]
    if index and int(index) >= column.size:
        raise SweepError(f"output {stem!r} has the entries 0 to {column.size - 1}, got {index}")
    unit = plan.info.outputs[column.output].unit
    values = np.full(plan.size, np.nan)
    if index or column.size == 1:
        values[:] = file[column.name][:, int(index or 0)]
        return np.where(done, values, np.nan), label(wanted or stem, unit)
    values[done] = np.mean(file[column.name][:][done], axis=1)
    return values, label(f"mean of {stem}", unit)


def _headline(summary: Mapping[str, float]) -> dict[str, str]:
    counts = [f"{int(summary[s.name.lower()])} {s.name.lower()}" for s in PointStatus]
    told = {"points": ", ".join(text for text in counts if not text.startswith("0 "))}
    told["time in the model"] = (
        f"{duration(summary['work_s'])} on {int(summary['workers'])} workers"
    )
    told["first start to last end"] = duration(summary["makespan_s"])
    if np.isfinite(summary["efficiency"]):
        told["efficiency"] = f"{summary['efficiency']:.1%} (time in the model / workers / span)"
    for name, words in (("idle_gap", "idle gap of a worker"), ("overhead", "overhead of a point")):
        if np.isfinite(summary[f"{name}_p50_s"]):
            told[words] = ", ".join(
                f"p{percent} {duration(summary[f'{name}_p{percent}_s'])}"
                for percent in (50, 95, 99)
            )
    return told


def _failures(data: SweepData, listed: Sequence[Mapping[str, Any]]) -> list[Html]:
    if not listed:
        return []
    names = [p.name for p in data.plan.parameters][:PARAMETERS_LISTED]
    rows = [[row["point"], *(row[name] for name in names), row["error"]] for row in listed]
    return [figures.failures(data), table(["point", *names, "error"], rows)]


def _provenance(plan: Plan) -> dict[str, str]:
    return {
        **plan.provenance,
        "config": json.dumps(dict(plan.config)),
        "theta_sha256": plan.theta_hash,
        "run_id": plan.run_id,
    }
