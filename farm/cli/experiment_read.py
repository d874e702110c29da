"""`farm experiment status|best|plot|export`: what a journal holds, whoever is writing it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from farm.errors import InvalidInput, Unavailable, UnsupportedFeature
from farm.experiment.best import Best, best_expected, best_told, place_of
from farm.experiment.events import RunPhase
from farm.experiment.experiment import Experiment, Snapshot
from farm.experiment.export import write_csv, write_sweep
from farm.experiment.host import applied
from farm.experiment.journal import is_served, read_journal
from farm.experiment.report import write_report
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

BEST_EXAMPLES = """\b
Examples:
  farm experiment best tune.db
  farm experiment best tune.db --id 2 --json | jq .told.point
"""

PLOT_EXAMPLES = """\b
Examples:
  farm experiment plot tune.db                     writes tune.html
  farm experiment plot farm-run --id 2 -o two.html
"""

id_option = click.option(
    "--id", "number", type=int, metavar="N", help="Which experiment.  [default: the only one]"
)

journal_argument = click.argument("journal", metavar="FILE|DIR", type=click.Path(path_type=Path))


def journal_of(path: Path) -> Path:
    """The journal that a path names: itself, or that of a run folder."""
    return path / "experiments.db" if path.is_dir() else path


@click.command(epilog=STATUS_EXAMPLES)
@journal_argument
@click.option("--json", "as_json", is_flag=True, help="Print everything as a JSON list.")
def status(journal: Path, as_json: bool) -> None:
    """Show the experiments of a journal: strategies, points asked, told and pending.

    It works while a server runs and after. A closed loop is interrupted when its process is gone.
    """
    shown = snapshots(journal_of(journal))
    served = is_served(journal_of(journal))
    if as_json:
        listed = [
            dataclasses.asdict(one) | {"interrupted": _is_interrupted(one, served)} for one in shown
        ]
        click.echo(json.dumps(listed))
        return
    if not shown:
        click.echo("no experiment yet")
        return
    Console().print(_table(shown, served))


@click.command(epilog=EXPORT_EXAMPLES)
@journal_argument
@click.argument("out", metavar="OUT.h5|OUT.csv", type=click.Path(dir_okay=False, path_type=Path))
@id_option
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


@click.command(epilog=BEST_EXAMPLES)
@journal_argument
@id_option
@click.option("--outcome", metavar="NAME", help="Which, of several.  [default: the first]")
@click.option("--min", "least", is_flag=True, help="The least instead of the greatest.")
@click.option("--json", "as_json", is_flag=True, help="Print it as a JSON object.")
def best(
    journal: Path, number: int | None, outcome: str | None, least: bool, as_json: bool
) -> None:
    """Show the best point: of those told, and where the surrogate expects it.

    Of a binary outcome it is the point where a 1 is most likely.
    """
    file = journal_of(journal)
    chosen = experiments_of(file)[record_of(read_journal(file), number).number]
    place_of(chosen.config, outcome)  # else it would be said twice
    found: dict[str, Best | str] = {}
    for name, ask in (("told", best_told), ("expected", best_expected)):
        try:
            found[name] = ask(chosen, outcome, least=least)
        except (InvalidInput, UnsupportedFeature) as error:
            found[name] = error.message
    if as_json:
        known = {k: dataclasses.asdict(v) for k, v in found.items() if isinstance(v, Best)}
        click.echo(json.dumps({"told": None, "expected": None} | known))
    else:
        for name, one in found.items():
            click.echo(f"{name}: {one}")
    if not any(isinstance(one, Best) for one in found.values()):
        raise click.ClickException(f"experiment {chosen.number} has no best point yet")


@click.command(epilog=PLOT_EXAMPLES)
@journal_argument
@id_option
@click.option("--outcome", metavar="NAME", help="Which, of several.  [default: the first]")
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The report.  [default: the journal's name with .html for its ending]",
)
def plot(journal: Path, number: int | None, outcome: str | None, out: Path | None) -> None:
    """Write a report with figures as one HTML file that needs nothing else."""
    file = journal_of(journal)
    record = record_of(read_journal(file), number)
    out = out or file.with_suffix(".html")
    write_report(record, experiments_of(file)[record.number], out, outcome=outcome)
    click.echo(out)


COMMANDS = (status, best, plot, export)


def snapshots(path: Path) -> list[Snapshot]:
    """The experiments of a journal as they are now. Raises FarmError."""
    return [one.snapshot() for _, one in sorted(experiments_of(path).items())]


def experiments_of(path: Path) -> dict[int, Experiment]:
    """The experiments of a journal, by number. Raises FarmError."""
    experiments: dict[int, Experiment] = {}
    for event in read_journal(path):
        try:
            applied(experiments, event)
        except KeyError:
            raise Unavailable(f"the journal {path} is damaged: {event}") from None
    return experiments


def _is_interrupted(one: Snapshot, served: bool) -> bool:
    """Whether its loop was running when its process ended, and can go on."""
    return one.run is RunPhase.RUNNING and not served


def _table(shown: list[Snapshot], served: bool) -> Table:
    table = Table("id", "name", "strategy", box=None, header_style="dim")
    for column in ("asked", "told", "modelled", "failed", "pending"):
        table.add_column(column, justify="right")
    table.add_column("state")
    for one in shown:
        state = str(one.run) if one.run else "finished" if one.finished else "open"
        state = "interrupted" if _is_interrupted(one, served) else state
        numbers = (one.asked, one.told, one.modelled, one.failed, one.pending)
        table.add_row(
            str(one.number),
            escape(one.name or one.experiment_id),
            escape(one.strategy_name),
            *map(str, numbers),
            state,
        )
    return table
