"""Longer plans: more points of the same sequence, or the points of a further design. Pure.

A sequence is continued by its own next points. A further design is drawn in the space of the sweep,
with its distributions, correlations, conditions and constraints, and comes after the points that
are there: the whole is a sample of two designs, not one of the second kind. A Latin hypercube
after another one is no Latin hypercube. Levels of a grid and rows of a table that are there already
are left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from farm.call import Array
from farm.sweep.design.plan import DesignPart, Plan
from farm.sweep.design.points import (
    FACTORIAL,
    MORRIS,
    SALTELLI,
    SEQUENCES,
    Design,
    PointTable,
    draw,
    keys,
    longer_design,
    repeated,
)
from farm.sweep.design.tables import read_table, rows_of
from farm.sweep.errors import SweepError
from farm.sweep.space.binding import BoundParameter
from farm.sweep.space.parameters import Category
from farm.wording import worded

CONTINUED = (*SEQUENCES, SALTELLI, MORRIS)
"""Designs whose first points stay the same when there are more."""

FURTHER = ("random", "lhs", "sobol", "halton", "grid", "file")
"""Designs that can follow others: their points mean something by themselves."""

SEED_KEY = 0x657874656E64
"""Spawn key of the seeds of further designs."""


class LongerPlan(NamedTuple):
    """A plan with more points. note: how many points were left out, or ""."""

    plan: Plan
    note: str = ""


def longer_plan(plan: Plan, count: int) -> Plan:
    """Return a plan with `count` points that begins with those of `plan`.

    The points of its last design go on. Raises SweepError if that design cannot be continued, or
    if the installed numpy or scipy produces another sequence than the version that made the file.
    """
    parts = plan.all_parts
    last = parts[-1]
    if last.design.kind not in CONTINUED:
        raise SweepError(f"{last.design.kind} cannot be continued: {_why_not(last.design.kind)}")
    if count <= plan.size:
        raise SweepError(f"the sweep has {plan.size} points; expected more, got {count}")
    before = plan.size - last.size
    design = longer_design(last.design, count - before, len(plan.parameters))
    drawn = draw(design, plan.space, last.seed)
    assert plan.unit is not None, "a sequence has positions in the unit cube"
    assert drawn.unit is not None
    if not np.array_equal(drawn.unit[: last.size], plan.unit[before:]):
        raise SweepError(
            f"{design} does not begin with the points of this file: it was made by other versions "
            "of numpy, scipy and SALib (see /provenance), which are needed to extend it"
        )
    longer = _with_rows(plan, drawn.rows[last.size :], drawn.unit[last.size :])
    if len(parts) == 1:
        return replace(longer, design=design)
    return replace(longer, parts=(*parts[:-1], DesignPart(design, last.seed, count - before)))


def appended_plan(
    plan: Plan, design: Design, *, seed: int | None = None, table: PointTable | None = None
) -> LongerPlan:
    """Return a plan whose points are those of `plan`, then those of a further design.

    seed: None for one that follows from the plan's. table: the rows of a design "file", if they are
    not those of its file. Raises SweepError.
    """
    for kind in (*(part.design.kind for part in plan.all_parts), design.kind):
        if kind not in FURTHER:
            raise SweepError(
                f"the points of {kind} belong together: the analysis needs exactly those of its "
                "design; run the others as a sweep of their own"
            )
    if seed is None:
        seed = further_seed(plan)
    if design.kind == "file":
        plan, drawn, asked = _of_table(plan, design, table)
    else:
        if plan.unit is None:
            raise SweepError(
                "the points of this sweep come from a table, so its parameters have no ranges: "
                f"expected another table, {worded('--design file:more.csv', 'a DataFrame')}"
            )
        space = plan.space
        if design.kind == "grid":  # which has all combinations, however others are drawn
            space = replace(space, correlations=())
        drawn = draw(design, space, seed)
        asked = len(drawn.rows)
    old = np.zeros(len(drawn.rows), dtype=bool)
    if design.kind == "grid" or (design.kind == "file" and not plan.seed_key):
        known = set(keys(plan.theta))
        old = np.array([key in known for key in keys(drawn.rows)]) | repeated(drawn.rows)
    if np.all(old):
        raise SweepError(f"all {len(old)} points of {design} are in this sweep already")
    longer = _with_rows(plan, drawn.rows[~old], None if drawn.unit is None else drawn.unit[~old])
    added = longer.size - plan.size
    longer = replace(longer, parts=(*plan.all_parts, DesignPart(design, seed, added)))
    out = asked - added
    note = f"{added} of {asked} points are added, {out} are there already" if out else ""
    return LongerPlan(longer, note)


def _with_rows(plan: Plan, rows: Array, unit: Array | None) -> Plan:
    """Return a plan with further points; `unit`: their positions in the unit cube, if they have."""
    if plan.unit is not None:
        unit = np.concatenate([plan.unit, np.full(rows.shape, np.nan) if unit is None else unit])
    return replace(plan, theta=np.concatenate([plan.theta, rows]), unit=unit)


def further_seed(plan: Plan) -> int:
    """Return the seed of the next design of a sweep, another one for each."""
    key = SEED_KEY, len(plan.all_parts)
    sequence = np.random.SeedSequence(plan.seed, spawn_key=key)
    return int(sequence.generate_state(1, np.uint32)[0] >> 1)


def _of_table(plan: Plan, design: Design, table: PointTable | None) -> tuple[Plan, PointTable, int]:
    """Return the plan with all words, a table in its columns, and the rows that it had."""
    if table is None:
        table = read_table(design.option, gaps=bool(plan.when))
    names = [p.name for p in plan.parameters]
    found = list(table.names or names)
    # Costs are learned again, as those of the points that are there are known by now.
    varying = [name for name in found if plan.cost_rule != f"column:{name}"]
    if sorted(varying) != sorted(names) or table.rows.shape[1] != len(found):
        raise SweepError(
            f"table {design.option!r} has the columns {', '.join(found)}; expected those of this "
            f"sweep: {', '.join(names)}"
        )
    places = [found.index(name) for name in names]
    theta = table.rows[:, places].astype(np.float64)
    parameters = list(plan.parameters)
    for j, place in enumerate(places):
        words = table.words.get(place)
        parameters[j], theta[:, j] = _extended_column(plan, j, theta[:, j], words, design.option)
    plan = replace(plan, parameters=tuple(parameters))
    space = replace(plan.space, correlations=())  # which say how points are drawn
    rows, _ = rows_of(PointTable(space.names, theta), space, design.option)
    return plan, PointTable(space.names, rows), len(theta)


def _extended_column(
    plan: Plan, j: int, column: Array, words: Category | None, source: str
) -> tuple[BoundParameter, Array]:
    """Return a parameter with all words, and a table's column in them. Raises SweepError.

    words: those of the column; None if it has numbers, which are whole where the sweep's are.
    """
    parameter, old = plan.parameters[j], plan.parameters[j].spread
    where = f"table {source!r}: {parameter.name!r}"
    if words is None and not isinstance(old, Category):
        wrong = np.flatnonzero((column != np.floor(column)) & ~np.isnan(column))
        if parameter.whole and len(wrong):
            raise SweepError(
                f"{where} is {column[wrong[0]]:g} in row {wrong[0]}; "
                "expected whole numbers, as this sweep has"
            )
        return parameter, column
    if words is None or not isinstance(old, Category):
        kinds = ("numbers", "words") if words is None else ("words", "numbers")
        raise SweepError(f"{where} has {kinds[0]}, in this sweep it has {kinds[1]}")
    new = [word for word in words.words if word not in old.words]
    if new and plan.design.kind != "file":
        raise SweepError(f"{where} is {new[0]!r}; expected one of {', '.join(old.words)}")
    whole = Category((*old.words, *new))
    index = np.array([*(whole.words.index(word) for word in words.words), np.nan])
    return replace(parameter, spread=whole), index[np.nan_to_num(column, nan=-1).astype(int)]


def _why_not(kind: str) -> str:
    option = worded("--design", "design=")
    return {
        "lhs": "a Latin hypercube has one point in each of its N slices, and more points need "
        f"other slices; append a further one by {option} lhs:N, or another design",
        "grid": f"a grid has levels; append those of a finer one by {option} grid:LEVELS",
        "file": f"its points come from a table; append another one by {option} file:MORE.csv",
        FACTORIAL: "a two-level design has a fixed number of points; run a new sweep, such as "
        "morris:20",
    }[kind]
