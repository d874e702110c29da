"""The ranking of parameters in a report, or the reason why there is none."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from farm.errors import FarmError
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.report.columns import MOST_PARAMETERS, outputs_of
from farm.sweep.sensitivity.analysis import Sensitivity, analyse
from farm.sweep.sensitivity.ranking import correlation_note

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


def ranking_of(path: Path, plan: Plan, first: str | None) -> dict[str, Any]:
    """Return the sensitivity of the outputs as JSON data: groups, and a note about missing ones.

    first: the output column that the report shows first, which is ranked as well as all outputs,
    or alone where all would take long.
    """
    outputs = outputs_of(plan)
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
    rows = [
        {"parameter": name, "value": _finite(value), "confidence": _finite(half)}
        for name, value, half in zip(
            found.parameters, found.values.tolist(), found.confidence.tolist(), strict=True
        )
    ]
    first = found.others.get("S1")
    if first is not None and found.method == "sobol":
        for row, value in zip(rows, first.tolist(), strict=True):
            row["first"] = _finite(value)
    rows.sort(key=lambda row: -math.inf if row["value"] is None else row["value"], reverse=True)
    return {
        "output": found.output,
        "method": found.method,
        "measure": MEASURES.get(found.measure, found.measure),
        "rows": rows[:MOST_PARAMETERS],
        "points": found.points,
        "left_out": found.left_out,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
