"""The ranking of parameters in a report, or the reason why there is none."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from farm.errors import FarmError
from farm.sweep.design.errors import SweepError
from farm.sweep.report.columns import MOST_PARAMETERS
from farm.sweep.sensitivity.analysis import Sensitivity, analyse

MEASURES = {
    "ST": "total share of the variance (Sobol' ST)",
    "S1": "share of the variance (Sobol' S1)",
    "mu_star": "mean absolute elementary effect (Morris \u03bc*)",
    "ME": "main effect",
    "delta": "delta, distance between distributions",
    "PAWN median": "PAWN median, distance between distribution functions",
}


def ranking_of(path: Path, wanted: str | None) -> dict[str, Any]:
    """Return the sensitivity of the outputs as JSON data: groups, and a note if there are none.

    wanted: an output such as u[3] that is ranked as well as all others.
    """
    try:
        found = analyse(path)
        if wanted is not None and "[" in wanted and wanted not in {s.output for s in found}:
            found = [*analyse(path, output=wanted), *found]
    except (FarmError, SweepError) as error:
        return {"groups": [], "note": f"No ranking: {error}"}
    return {"groups": [_group(s) for s in found], "note": "" if found else "No ranking."}


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
