"""The report of a sweep: one HTML file with figures that needs nothing else, not even a network."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np

from farm.call import Array
from farm.sweep import figures, layout
from farm.sweep.errors import SweepError
from farm.sweep.figures import Shown
from farm.sweep.journal import Status
from farm.sweep.page import page, section, table
from farm.sweep.plan import Plan
from farm.sweep.progress import duration
from farm.sweep.read import failures_of, open_sweep
from farm.sweep.summary import summarise

FAILURES_SHOWN = 20


def write_report(path: Path, out: Path, *, colour_by: str | None = None) -> None:
    """Write the report of a sweep, which may be running. colour_by: an output, like u or u[3].

    Raises SweepError.
    """
    with open_sweep(path) as file:
        plan, known = layout.read_plan(file), layout.read_known(file)
        state = str(file.attrs["state"])
        colour, name = _colour(file, plan, known.status == Status.DONE, colour_by)
    shown = Shown(plan, known, colour, name)
    listed = failures_of(path)
    facts = summarise(known, float("nan"))
    sections = [
        section("Progress", "Points finished over time.", figures.progress(shown)),
        section(
            "Parameters and output",
            f"Colour: {name}. " + ("Red: failed points." if listed else ""),
            figures.pairs(shown),
        ),
        section("Run time against each parameter", "Of finished points.", figures.run_times(shown)),
        section(
            "Failures in parameter space",
            "Share of points that failed, along each parameter." if listed else "No point failed.",
            figures.failures(shown) if listed else "",
        ),
        _failures(listed, plan),
        section("Workers", "A bar is a run; a gap is a worker without one.", figures.gantt(shown)),
        section(
            "Overhead",
            "Time of a point from giving to answer, without the model's and the queue's.",
            figures.overhead(shown),
        ),
    ]
    body = f"{table(_headline(facts))}{''.join(sections)}{_provenance(plan)}"
    out.write_text(page(plan.title, _subtitle(plan, path, state), body), encoding="utf-8")


def _colour(file: h5py.File, plan: Plan, done: Array, wanted: str | None) -> tuple[Array, str]:
    """One number for each point, and its name: an entry of an output, or the mean of all."""
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
    values = np.full(plan.size, np.nan)
    if index or column.size == 1:
        values[:] = file[column.name][:, int(index or 0)]
        return np.where(done, values, np.nan), wanted or stem
    values[done] = np.mean(file[column.name][:][done], axis=1)
    return values, f"mean of {stem}"


def _subtitle(plan: Plan, path: Path, state: str) -> str:
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime())
    return (
        f"{path.name}: {plan.size} points of {plan.info.name}, design {plan.design}, "
        f"seed {plan.seed}; {state} on {made}"
    )


def _headline(facts: Mapping[str, float]) -> dict[str, str]:
    counts = [f"{int(facts[s.name.lower()])} {s.name.lower()}" for s in Status]
    told = {"points": ", ".join(text for text in counts if not text.startswith("0 "))}
    told["time in the model"] = f"{duration(facts['work_s'])} on {int(facts['workers'])} workers"
    told["first start to last end"] = duration(facts["makespan_s"])
    if np.isfinite(facts["efficiency"]):
        told["efficiency"] = f"{facts['efficiency']:.1%} (time in the model / workers / span)"
    for name, words in (("idle_gap", "idle gap of a worker"), ("overhead", "overhead of a point")):
        if np.isfinite(facts[f"{name}_p50_s"]):
            told[words] = ", ".join(
                f"p{percent} {duration(facts[f'{name}_p{percent}_s'])}" for percent in (50, 95, 99)
            )
    return told


def _failures(listed: Sequence[Mapping[str, object]], plan: Plan) -> str:
    if not listed:
        return ""
    names = [p.name for p in plan.parameters][:8]
    head = "".join(f"<th>{html.escape(text)}</th>" for text in ("point", *names, "error"))
    rows = []
    for row in listed[:FAILURES_SHOWN]:
        numbers = "".join(f'<td class="n">{row[name]:.5g}</td>' for name in names)
        rows.append(
            f'<tr><td class="n">{row["point"]}</td>{numbers}'
            f"<td>{html.escape(str(row['error']))}</td></tr>"
        )
    more = len(listed) - FAILURES_SHOWN
    tail = f'<p class="note">and {more} more</p>' if more > 0 else ""
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>{tail}'


def _provenance(plan: Plan) -> str:
    facts = {
        **plan.provenance,
        "config": json.dumps(dict(plan.config)),
        "theta_sha256": plan.theta_hash,
        "run_id": plan.run_id,
    }
    return f"<details><summary>Where it comes from</summary>{table(facts)}</details>"
