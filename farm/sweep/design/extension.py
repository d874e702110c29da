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
from farm.sweep.design.drawing import SEQUENCES, draw, keys, repeated
from farm.sweep.design.plan import DesignPart, Plan
from farm.sweep.design.points import Design, longer_design
from farm.sweep.design.salib_designs import FACTORIAL, MORRIS, SALTELLI
from farm.sweep.design.tables import PointTable, read_table, rows_of
from farm.sweep.errors import SweepError
from farm.sweep.space.category import Category
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
    there = plan.unit[before:]
    if not np.array_equal(drawn.unit[: len(there)], there):
        raise SweepError(
            f"{design} does not begin with the points of this file: it was made by other versions "
            "of numpy, scipy and SALib (see /provenance), which are needed to extend it"
        )
    longer = replace(
        plan,
        theta=np.concatenate([plan.theta, drawn.theta[len(there) :]]),
        unit=np.concatenate([plan.unit, drawn.unit[len(there) :]]),
    )
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
    unit: Array | None = None
    if design.kind == "file":
        plan, theta, asked = _of_table(plan, design, table)
    else:
        if plan.unit is None:
            raise SweepError(
                "the points of this sweep come from a table, so its parameters have no ranges: "
                f"expected another table, {worded('--design file:more.csv', 'a DataFrame')}"
            )
        space = plan.space
        if design.kind == "grid":  # which has all combinations, however others are drawn
            space = replace(space, correlations=())
        unit, theta, _ = draw(design, space, seed)
        asked = len(theta)
    there = np.zeros(len(theta), dtype=bool)
    if design.kind == "grid" or (design.kind == "file" and not plan.seed_key):
        known = set(keys(plan.theta))
        there = np.array([key in known for key in keys(theta)]) | repeated(theta)
    if np.all(there):
        raise SweepError(f"all {len(theta)} points of {design} are in this sweep already")
    added, new_unit = theta[~there], None
    if plan.unit is not None:
        new_unit = np.full(added.shape, np.nan) if unit is None else unit[~there]
        new_unit = np.concatenate([plan.unit, new_unit])
    longer = replace(
        plan,
        theta=np.concatenate([plan.theta, added]),
        unit=new_unit,
        parts=(*plan.all_parts, DesignPart(design, seed, len(added))),
    )
    out = asked - len(added)
    note = f"{len(added)} of {asked} points are added, {out} are there already" if out else ""
    return LongerPlan(longer, note)


def further_seed(plan: Plan) -> int:
    """Return the seed of the next design of a sweep, another one for each."""
    key = SEED_KEY, len(plan.all_parts)
    sequence = np.random.SeedSequence(plan.seed, spawn_key=key)
    return int(sequence.generate_state(1, np.uint32)[0] >> 1)


def _of_table(plan: Plan, design: Design, table: PointTable | None) -> tuple[Plan, Array, int]:
    """Return the plan with all words, the rows of a table in its columns, and their number."""
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
    for j, (parameter, place) in enumerate(zip(plan.parameters, places, strict=True)):
        words, spread = table.words.get(place), parameter.spread
        if words is None and not isinstance(spread, Category):
            if parameter.whole:
                _check_whole(parameter.name, theta[:, j], design)
            continue
        if words is None or not isinstance(spread, Category):
            raise SweepError(
                f"table {design.option!r}: {parameter.name!r} has "
                f"{'numbers' if words is None else 'words'}, in this sweep it has "
                f"{'words' if words is None else 'numbers'}"
            )
        new = [word for word in words.words if word not in spread.words]
        if new and plan.design.kind != "file":
            raise SweepError(
                f"table {design.option!r}: {parameter.name!r} is {new[0]!r}; expected one of "
                f"{', '.join(spread.words)}"
            )
        whole = Category((*spread.words, *new))
        index = np.array([whole.words.index(word) for word in words.words], dtype=np.float64)
        filled = ~np.isnan(theta[:, j])
        theta[filled, j] = index[theta[filled, j].astype(np.int64)]
        parameters[j] = replace(parameter, spread=whole)
    plan = replace(plan, parameters=tuple(parameters))
    space = replace(plan.space, correlations=())  # which say how points are drawn
    rows, _ = rows_of(PointTable(None, theta), space, design.option)
    return plan, rows, len(theta)


def _check_whole(name: str, column: Array, design: Design) -> None:
    """Raise SweepError unless all numbers are whole, as those of the sweep are."""
    wrong = np.flatnonzero((column != np.floor(column)) & ~np.isnan(column))
    if len(wrong):
        raise SweepError(
            f"table {design.option!r}: {name!r} is {column[wrong[0]]:g} in row {wrong[0]}; "
            "expected whole numbers, as this sweep has"
        )


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
