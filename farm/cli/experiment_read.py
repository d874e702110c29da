"""`farm experiment status|export`: what a journal of experiments holds, whoever is writing it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from farm.errors import Unavailable
from farm.experiment.experiment import Experiment, Snapshot
from farm.experiment.export import write_csv, write_sweep
from farm.experiment.host import applied
from farm.experiment.journal import read_journal
from farm.experiment.trials import record_of
from farm.sweep.provenance import command_line, provenance

STATUS_EXAMPLES = """\b
Examples:
  farm experiment status experiments.db
  farm experiment status farm-run                  the journal in a run folder
  farm experiment status farm-run --json | jq .[0].told
"""

EXPORT_EXAMPLES = """\b
Examples:
  farm experiment export experiments.db trials.csv --id 2
  farm experiment export farm-run trials.h5        then: farm sweep plot trials.h5
"""

journal_argument = click.argument("journal", metavar="FILE|DIR", type=click.Path(path_type=Path))


def journal_of(path: Path) -> Path:
    """The journal that a path names: itself, or that of a run folder."""
    return path / "experiments.db" if path.is_dir() else path


@click.command(epilog=STATUS_EXAMPLES)
@journal_argument
@click.option("--json", "as_json", is_flag=True, help="Print everything as a JSON list.")
def status(journal: Path, as_json: bool) -> None:
    """Show the experiments of a journal: strategies, points asked, told and pending.

    It works while a server runs and after.
    """
    shown = snapshots(journal_of(journal))
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(one) for one in shown]))
        return
    if not shown:
        click.echo("no experiment yet")
        return
    Console().print(_table(shown))


@click.command(epilog=EXPORT_EXAMPLES)
@journal_argument
@click.argument("out", metavar="OUT.h5|OUT.csv", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--id", "number", type=int, metavar="N", help="Which experiment.  [default: the only one]"
)
def export(journal: Path, out: Path, number: int | None) -> None:
    """Write the trials of an experiment to a file.

    OUT.h5 has the layout of sweeps, which farm sweep, h5py and xarray read; OUT.csv one row for
    each recorded trial.
    """
    kind = out.suffix.lower()
    if kind not in (".h5", ".hdf5", ".csv"):
        raise click.UsageError(f"{out} ends in {kind or 'nothing'}; expected .h5 or .csv")
    if out.exists():
        raise click.UsageError(f"{out} exists; name another file")
    file = journal_of(journal)
    record = record_of(read_journal(file), number)
    if kind == ".csv":
        with out.open("x", newline="", encoding="utf-8") as table:
            count = write_csv(record, table)
    else:
        facts = provenance(command_line()) | {"journal": str(file.absolute())}
        count = write_sweep(record, out, facts)
    click.echo(f"{count} trials of experiment {record.number} in {out}")


COMMANDS = (status, export)


def snapshots(path: Path) -> list[Snapshot]:
    """The experiments of a journal as they are now. Raises FarmError."""
    experiments: dict[int, Experiment] = {}
    for event in read_journal(path):
        try:
            applied(experiments, event)
        except KeyError:
            raise Unavailable(f"the journal {path} is damaged: {event}") from None
    return [one.snapshot() for _, one in sorted(experiments.items())]


def _table(shown: list[Snapshot]) -> Table:
    table = Table("id", "name", "strategy", box=None, header_style="dim")
    for column in ("asked", "told", "modelled", "failed", "pending"):
        table.add_column(column, justify="right")
    table.add_column("state")
    for one in shown:
        state = str(one.run) if one.run else "finished" if one.finished else "open"
        numbers = (one.asked, one.told, one.modelled, one.failed, one.pending)
        table.add_row(
            str(one.number),
            escape(one.name or one.experiment_id),
            escape(one.strategy_name),
            *map(str, numbers),
            state,
        )
    return table
