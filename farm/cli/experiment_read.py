"""`farm experiment status|best|plot|export`: read a journal, even while it is being written."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from farm.cli.exits import on_this_machine
from farm.cli.options import ANY_FILE, json_option, new_file, report_option
from farm.cli.tables import Columns, rows_table
from farm.errors import InvalidInput, Unavailable, UnsupportedFeature
from farm.experiment.host import applied
from farm.experiment.results.best import Best, best_expected, best_told, place_of
from farm.experiment.results.export import write_csv, write_sweep
from farm.experiment.results.report import write_report
from farm.experiment.state.events import RunPhase
from farm.experiment.state.experiment import Experiment
from farm.experiment.state.journal import is_served, read_journal
from farm.experiment.state.trials import record_of
from farm.sweep.file.provenance import command_line, provenance
from farm.wording import counted

STATUS_EXAMPLES = """\b
Examples:
  farm experiment status experiments.db
  farm experiment status farm-run                  use the journal in a run folder
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
    "--id",
    "number",
    type=int,
    metavar="N",
    help="Number of the experiment.  [default: the only one]",
)

outcome_option = click.option(
    "--outcome", metavar="NAME", help="Name of the outcome.  [default: the first]"
)

journal_argument = click.argument("journal", metavar="FILE|DIR", type=click.Path(path_type=Path))


def _state(row: Mapping[str, Any]) -> str:
    if row["interrupted"]:
        return "interrupted"
    return str(row["run"] or ("finished" if row["finished"] else "open"))


COLUMNS: Columns = {
    "id": "number",
    "name": lambda row: row["name"] or row["experiment_id"],
    "strategy": "strategy_name",
    **{f">{key}": key for key in ("asked", "told", "modelled", "failed", "pending")},
    "state": _state,
}


def journal_of(path: Path) -> Path:
    """Return the journal at `path`: `path` itself, or the journal in it if it is a run folder."""
    return path / "experiments.db" if path.is_dir() else path


@click.command(epilog=STATUS_EXAMPLES)
@journal_argument
@json_option("Print all details as a JSON list.")
@on_this_machine()
def status(journal: Path, as_json: bool) -> None:
    """Show the experiments of a journal: strategies, points asked, told and pending.

    The command works while a server runs and afterwards. The state "interrupted" means that the
    process of a closed loop ended before the loop did.
    """
    found = experiments_of(journal_of(journal))
    shown = [dataclasses.asdict(found[number].snapshot()) for number in sorted(found)]
    served = is_served(journal_of(journal))
    for row in shown:
        row["interrupted"] = row["run"] is RunPhase.RUNNING and not served
    if as_json:
        click.echo(json.dumps(shown))
        return
    if not shown:
        click.echo("no experiment yet")
        return
    Console().print(rows_table(COLUMNS, shown))


@click.command(epilog=EXPORT_EXAMPLES)
@journal_argument
@click.argument("out", metavar="OUT.h5|OUT.csv", type=ANY_FILE)
@id_option
@on_this_machine()
def export(journal: Path, out: Path, number: int | None) -> None:
    """Write the trials of an experiment to a file.

    OUT.h5 has the layout of a sweep file, which farm sweep, h5py and xarray can read. OUT.csv has
    one row for each recorded trial.
    """
    kind = out.suffix.lower()
    if kind not in (".h5", ".hdf5", ".csv"):
        raise click.UsageError(f"{out} ends in {kind or 'nothing'}; expected .h5 or .csv")
    new_file(out)
    file = journal_of(journal)
    record = record_of(read_journal(file), number)
    if kind == ".csv":
        with out.open("x", newline="", encoding="utf-8") as table:
            count = write_csv(record, table)
    else:
        facts = provenance(command_line()) | {"journal": str(file.absolute())}
        count = write_sweep(record, out, facts)
    click.echo(f"{counted(count, 'trial')} of experiment {record.number} in {out}")


@click.command(epilog=BEST_EXAMPLES)
@journal_argument
@id_option
@outcome_option
@click.option("--min", "least", is_flag=True, help="Find the minimum instead of the maximum.")
@json_option("Print the result as a JSON object.")
@on_this_machine()
def best(
    journal: Path, number: int | None, outcome: str | None, least: bool, as_json: bool
) -> None:
    """Show the best point among the told trials and the best point that the surrogate predicts.

    For a binary outcome, the best point is the one where a 1 is most likely.
    """
    file = journal_of(journal)
    chosen = experiments_of(file)[record_of(read_journal(file), number).number]
    place_of(chosen.config, outcome)  # reports a wrong name once; the calls below would do so twice
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
@outcome_option
@report_option("the journal's name")
@on_this_machine()
def plot(journal: Path, number: int | None, outcome: str | None, out: Path | None) -> None:
    """Write a report with figures to one self-contained HTML file."""
    file = journal_of(journal)
    record = record_of(read_journal(file), number)
    out = out or file.with_suffix(".html")
    write_report(record, experiments_of(file)[record.number], out, outcome=outcome)
    click.echo(out)


COMMANDS = (status, best, plot, export)


def experiments_of(path: Path) -> dict[int, Experiment]:
    """Return the experiments of a journal by number. Raises FarmError."""
    experiments: dict[int, Experiment] = {}
    for event in read_journal(path):
        try:
            applied(experiments, event)
        except KeyError:
            raise Unavailable(f"the journal {path} is damaged: {event}") from None
    return experiments
