"""`farm record`: show, export, merge and import records of evaluations."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from farm.cli.groups import CommandGroup
from farm.cli.options import ANY_FILE, EXISTING_FILE, json_option, new_file
from farm.cli.tables import printable, text_table
from farm.errors import FarmError
from farm.record.exchange.export import Selection, points_of, write_sweep
from farm.record.exchange.joining import import_sweep, merge
from farm.record.exchange.parquet import write_parquet
from farm.record.exchange.survey import survey
from farm.storage.frames import Damage
from farm.sweep.errors import SweepError
from farm.sweep.file.provenance import command_line, provenance
from farm.wording import counted

EXAMPLES = """\b
Examples:
  farm record status beam.record
  farm record export beam.record -o beam.h5           then: farm sweep plot beam.h5
  farm record merge monday.record tuesday.record -o week.record
  farm record import sweep.h5 beam.record --version 3
\b
A farm writes one:
  farm serve model.py --record beam.record --reuse    and answers repeats from it
"""

STATUS_EXAMPLES = """\b
Examples:
  farm record status beam.record
  farm record status beam.record --json | jq '.evaluations[].points'
"""

EXPORT_EXAMPLES = """\b
Examples:
  farm record export beam.record -o beam.h5
  farm record export beam.record -o beam.parquet
  farm record export beam.record -o beam.h5 --model Beam --version 3 --config '{"mesh": 2}'
\b
Then, for example:
  farm sweep plot beam.h5                             a report with figures
  farm sweep export beam.h5 --csv beam.csv
  farm sweep model.py --design file:beam.h5 -o again.h5
"""

MERGE_EXAMPLES = """\b
Examples:
  farm record merge monday.record tuesday.record -o week.record
  farm record merge damaged.record -o repaired.record
"""

IMPORT_EXAMPLES = """\b
Examples:
  farm record import sweep.h5 beam.record --version 3
"""

record_argument = click.argument("file", metavar="RECORD", type=EXISTING_FILE)


@click.group(cls=CommandGroup, epilog=EXAMPLES)
def record() -> None:
    """Show, export, merge and import records: files with every evaluation of a farm."""


@record.command(epilog=STATUS_EXAMPLES)
@record_argument
@json_option("Print all details as one JSON object.")
def status(file: Path, as_json: bool) -> None:
    """Show what a record holds, and its damaged places. A farm may be writing it."""
    with _errors(), _bar(file.stat().st_size, "reading") as tick:
        found = survey(file, tick)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
        return
    points = sum(counts.points for counts in found.counts.values())
    use = ", in use by a farm" if found.in_use else ""
    _say(f"{file}: {counted(points, 'evaluation')}, {found.bytes} bytes{use}")
    columns = (">points", ">failed", ">NaN", ">hours", "last")
    Console().print(
        text_table(
            ("model", "version", "operation", *columns),
            [
                [
                    counts.model,
                    counts.version or "(none: not reused)",
                    counts.operation,
                    counts.points,
                    counts.failed,
                    counts.not_finite,
                    f"{counts.run_time_s / 3600:.4g}",
                    time.strftime("%Y-%m-%d %H:%M", time.localtime(counts.last)),
                ]
                for counts in found.counts.values()
            ],
        )
    )
    _tell_damage(file, found.damage)


@record.command(epilog=EXPORT_EXAMPLES)
@record_argument
@click.option(
    "-o",
    "--out",
    required=True,
    type=ANY_FILE,
    metavar="FILE.h5|FILE.parquet",
    help="File to write: HDF5 in the layout of sweeps, or a Parquet table.",
)
@click.option("--model", metavar="NAME", help="Model to export.  [default: the only one]")
@click.option("--version", metavar="TEXT", help="Its version.  [default: the only one]")
@click.option(
    "--config", metavar="JSON", help="Export only evaluations whose config has these entries."
)
def export(
    file: Path, out: Path, model: str | None, version: str | None, config: str | None
) -> None:
    """Export the evaluations of one model as a sweep file or a table.

    Each point is one row: the last evaluation of these inputs and this config. Config entries that
    differ between points become columns. Of value_and_gradient the values are exported, and no
    derivatives.
    """
    if out.suffix not in (".h5", ".hdf5", ".parquet"):
        raise click.UsageError(f"{out} has an unknown ending; expected FILE.h5 or FILE.parquet")
    new_file(out)
    asked = Selection(model, version, _config(config))
    with _errors():
        with _bar(file.stat().st_size, "reading") as tick:
            points = points_of(file, asked, tick)
        if out.suffix == ".parquet":
            count = write_parquet(points, out)
        else:
            facts = provenance(command_line()) | {"record": str(file.absolute())}
            count = write_sweep(points, out, facts)
    _tell_damage(file, points.damage)
    _say(f"{out}: {counted(count, 'point')} of {points.info.name}")


def _config(text: str | None) -> dict[str, Any]:
    try:
        config = json.loads(text or "{}")
    except ValueError as error:
        raise click.UsageError(f"--config is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise click.UsageError(f"--config is {text}; expected a JSON object")
    return config


@record.command(name="merge", epilog=MERGE_EXAMPLES)
@click.argument("files", metavar="RECORD...", nargs=-1, required=True, type=EXISTING_FILE)
@click.option(
    "-o",
    "--out",
    required=True,
    type=ANY_FILE,
    metavar="RECORD",
    help="Record to add to; created if it does not exist.",
)
def merge_(files: tuple[Path, ...], out: Path) -> None:
    """Join records. What is intact of damaged ones is taken."""
    if out.exists() and any(out.samefile(file) for file in files):
        raise click.UsageError(f"{out} is one of the records to merge; name another file")
    damage: list[tuple[Path, Damage]] = []
    size = sum(file.stat().st_size for file in files)
    with _errors(), _bar(size, "merging") as tick:
        added, there = merge(files, out, lambda *place: damage.append(place), tick)
    for file, place in damage:
        _tell_damage(file, [place])
    _say(f"{out}: {counted(added, 'evaluation')} added, {there} were there")


@record.command(name="import", epilog=IMPORT_EXAMPLES)
@click.argument("sweep", metavar="SWEEP.h5", type=EXISTING_FILE)
@click.argument("out", metavar="RECORD", type=ANY_FILE)
@click.option(
    "--version",
    required=True,
    metavar="TEXT",
    help="Version of the model that the sweep ran: answers are reused only for the same one.",
)
def import_(sweep: Path, out: Path, version: str) -> None:
    """Add the finished points of a sweep to a record, with their gradients."""
    with _errors(), _bar(None, "importing") as tick:
        added, there = import_sweep(sweep, out, version, tick)
    _say(f"{out}: {counted(added, 'evaluation')} added, {there} were there")


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (FarmError, SweepError, OSError) as error:
        raise click.ClickException(printable(str(error))) from None


@contextmanager
def _bar(length: int | None, label: str) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal."""
    if length is None or not sys.stderr.isatty():
        yield lambda done: None
        return
    with click.progressbar(length=length, label=label, file=sys.stderr) as bar:
        yield bar.update


def _tell_damage(file: Path, damage: list[Damage]) -> None:
    for place in damage:
        _say(
            f"{file} is damaged from byte {place.start} to byte {place.end}; what is intact is "
            f"used. To repair it: farm record merge {shlex.quote(str(file))} -o REPAIRED",
            err=True,
        )


def _say(line: str, *, err: bool = False) -> None:
    """Print one line. Names in it, from a record or a folder, cannot change a terminal."""
    click.echo(printable(line), err=err)
