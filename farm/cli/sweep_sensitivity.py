"""`farm sweep sensitivity`: which parameters of a sweep decide its outputs."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import click
from rich.console import Console

from farm.cli.options import json_option
from farm.cli.sweep_read import file_argument
from farm.cli.tables import text_table
from farm.errors import printable
from farm.sweep.sensitivity.analysis import (
    AUTO,
    METHODS,
    Sensitivity,
    analyse_with_constants,
    correlation_note,
    with_interval,
)
from farm.wording import counted

EXAMPLES = """\b
Examples:
  farm sweep model.py --param x=0:10 --param y=log:1:9 --design saltelli:256 -o sobol.h5
  farm sweep sensitivity sobol.h5                  Sobol' indices of each output
  farm sweep sensitivity sweep.h5 --output 'u[3]'  of entry 3 of output u
  farm sweep sensitivity sweep.h5 --method pawn --json

\b
Methods, which need the extra `sensitivity`:
  sobol        shares of the variance: ST with interactions, S1 alone; for a design saltelli
  morris       sizes of changes along trajectories, mu_star; for a design morris
  ff           main effects; for a design ff
  pawn         distance between distributions, for points of any design, also if some failed;
               dummy is the value up to which it may be chance
  delta        distance between densities, with intervals and S1; slower
"""

SINGLE = {
    "sobol": ("S1",),
    "morris": ("mu", "sigma"),
    "ff": ("ME",),
    "delta": ("S1",),
    "pawn": ("dummy",),
}
"""The further measures that the table shows, of methods that have some."""


@click.command(epilog=EXAMPLES)
@file_argument
@click.option(
    "--method",
    type=click.Choice((AUTO, *METHODS)),
    default=AUTO,
    show_default=True,
    help="Method of analysis. auto: sobol, morris or ff for the design of that method, otherwise "
    "pawn.",
)
@click.option(
    "--output",
    metavar="NAME",
    help="Output to analyse: u (the mean of its entries if it has several), u[3], or u[:] for each "
    "entry. Default: every output.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the resampling that confidence intervals come from.",
)
@json_option("Print all measures as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the measures of each parameter as CSV.")
def sensitivity(
    file: Path, method: str, output: str | None, seed: int, as_json: bool, as_csv: bool
) -> None:
    """Rank the parameters of a sweep by their influence on each output.

    The most influential parameter comes first, with the 95 % interval where the method has one.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    found, constant = analyse_with_constants(file, method=method, output=output, seed=seed)
    if constant:
        names = printable(", ".join(constant))
        click.echo(f"note: left out, as they are the same in all rows: {names}", err=True)
    if correlated := correlation_note(found):
        click.echo(f"note: {printable(correlated)}", err=True)
    if as_json:
        click.echo(json.dumps([each.to_json() for each in found]))
        return
    if as_csv:
        _write_csv(found)
        return
    console = Console()
    for place, each in enumerate(found):
        if place:
            click.echo()
        left_out = f", {each.left_out} left out" if each.left_out else ""
        click.echo(
            printable(f"{each.output}: {each.method}, {counted(each.points, 'point')}{left_out}")
        )
        more = SINGLE.get(each.method, ())
        rows = [
            [
                each.parameters[j],
                with_interval(each.values[j], each.confidence[j]),
                *(_cell(each, name, j) for name in more),
            ]
            for j in each.ranked
        ]
        columns = ("parameter", f">{each.measure}", *(f">{name}" for name in more))
        console.print(text_table(columns, rows))


def _cell(each: Sensitivity, name: str, j: int) -> str:
    half = each.others.get(f"{name}_conf")
    return with_interval(each.others[name][j], float("nan") if half is None else half[j])


def _write_csv(found: list[Sensitivity]) -> None:
    """Write a row for each output and parameter; methods may differ in their measures."""
    rows = []
    for each in found:
        for j in each.ranked:
            facts = {"output": each.output, "method": each.method, "parameter": each.parameters[j]}
            numbers = {name: array[j] for name, array in each.columns.items()}
            told = {name: "" if number != number else number for name, number in numbers.items()}
            rows.append({**facts, **told, "points": each.points, "left_out": each.left_out})
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(sys.stdout, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
