"""`farm sweep extend`: add points to a sweep that is there."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from farm.cli.signals import terminable
from farm.cli.sweep_farm import Target, farm_options, open_farm
from farm.cli.sweep_opened import OpenedSweep, chosen_farm, trust_option
from farm.cli.sweep_session import rule_options, run_session
from farm.sweep.design.extension import appended_plan, longer_plan
from farm.sweep.design.plan import Plan
from farm.sweep.design.points import parse_design
from farm.sweep.order.given import extended

EXAMPLES = """\b
Examples:
  farm sweep extend s.h5 --points 512              more points of a sobol, halton or random sweep
  farm sweep extend s.h5 --design random:100       the points of a further design, of any kind
  farm sweep extend grid.h5 --design grid:20       the combinations that are not there yet
  farm sweep extend table.h5 --design file:more.csv
"""


@click.command(epilog=EXAMPLES)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@farm_options
@click.option("--points", type=click.IntRange(min=1), help="New number of points.")
@click.option(
    "--design", metavar="DESIGN", help="Design whose points come after those that are there."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="With --design: its seed. Default: one that follows from the sweep's.",
)
@trust_option
@rule_options
def extend(
    file: Path,
    target: Target,
    points: int | None,
    design: str | None,
    seed: int | None,
    trust: bool,
    **rules: Any,
) -> int:
    """Add points to a sweep and run them: to --points in all, or those of a further --design.

    --points continues a sobol, halton or random sequence, or saltelli and morris by whole blocks.
    --design works after any design but saltelli, morris and ff. Ranges, words, correlations,
    conditions and constraints are those of the sweep. If the command is stopped, farm sweep
    --resume FILE continues; extend again would add more.
    """
    if (points is None) == (design is None):
        raise click.UsageError(
            "expected --points N, to continue a sequence, or --design DESIGN, to add another one"
        )
    if seed is not None and design is None:
        raise click.UsageError("--seed is for --design; --points continues with the sweep's seed")
    with contextlib.closing(OpenedSweep(file)) as opened:
        plan, note = _longer(opened.store.plan, points, design, seed)
        plan = extended(plan)
        for text in filter(None, [*plan.all_parts[-1].design.notes, note]):
            click.echo(f"note: {text}", err=True)
        target = chosen_farm(target, plan, file, trust=trust)
        opened.store.extend(plan)
        with terminable(), open_farm(target, file, plan.info.name) as farm:
            return run_session(opened.handed_over(farm.client), farm, rules)


def _longer(
    plan: Plan, points: int | None, design: str | None, seed: int | None
) -> tuple[Plan, str]:
    """Return the longer plan and a note. Raises SweepError."""
    if points is not None:
        return longer_plan(plan, points), ""
    assert design is not None
    return appended_plan(plan, parse_design(design), seed=seed)
