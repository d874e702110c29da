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
from farm.sweep.plan import Plan
from farm.sweep.progress import duration
from farm.sweep.read import failures_of, open_sweep
from farm.sweep.summary import summarise

FAILURES_SHOWN = 20

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c1e21; max-width: 62rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem } h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem }
p.note { color: #5f6670; margin: .2rem 0 .6rem }
svg { max-width: 100%; height: auto; display: block }
table { border-collapse: collapse; font-size: 14px }
td, th { text-align: left; padding: .15rem .9rem .15rem 0; vertical-align: top }
th { color: #5f6670; font-weight: 500 }
td.n { text-align: right; font-variant-numeric: tabular-nums }
.scroll { overflow-x: auto } details { margin-top: 2rem } td { overflow-wrap: anywhere }
"""


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
        _section("Progress", "Points finished over time.", figures.progress(shown)),
        _section(
            "Parameters and output",
            f"Colour: {name}. " + ("Red: failed points." if listed else ""),
            figures.pairs(shown),
        ),
        _section(
            "Run time against each parameter", "Of finished points.", figures.run_times(shown)
        ),
        _section(
            "Failures in parameter space",
            "Share of points that failed, along each parameter." if listed else "No point failed.",
            figures.failures(shown) if listed else "",
        ),
        _failures(listed, plan),
        _section("Workers", "A bar is a run; a gap is a worker without one.", figures.gantt(shown)),
        _section(
            "Overhead",
            "Time of a point from giving to answer, without the model's and the queue's.",
            figures.overhead(shown),
        ),
    ]
    title = html.escape(plan.title)
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>{title}</h1>"
        f'<p class="note">{html.escape(_subtitle(plan, path, state))}</p>'
        f"{_table(_headline(facts))}{''.join(sections)}{_provenance(plan)}</body></html>\n"
    )
    out.write_text(page, encoding="utf-8")


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
    table = {"points": ", ".join(text for text in counts if not text.startswith("0 "))}
    table["time in the model"] = f"{duration(facts['work_s'])} on {int(facts['workers'])} workers"
    table["first start to last end"] = duration(facts["makespan_s"])
    if np.isfinite(facts["efficiency"]):
        table["efficiency"] = f"{facts['efficiency']:.1%} (time in the model / workers / span)"
    for name, words in (("idle_gap", "idle gap of a worker"), ("overhead", "overhead of a point")):
        if np.isfinite(facts[f"{name}_p50_s"]):
            table[words] = ", ".join(
                f"p{percent} {duration(facts[f'{name}_p{percent}_s'])}" for percent in (50, 95, 99)
            )
    return table


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
    return f"<details><summary>Where it comes from</summary>{_table(facts)}</details>"


def _section(heading: str, note: str, figure: str) -> str:
    return f'<h2>{html.escape(heading)}</h2><p class="note">{html.escape(note)}</p>{figure}'


def _table(facts: Mapping[str, str]) -> str:
    rows = (
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
        for name, text in facts.items()
    )
    return f"<table>{''.join(rows)}</table>"
