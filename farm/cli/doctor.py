"""`farm doctor`: look for what may keep farm from working, and say what to do."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
import orjson

from farm.cli.exits import DONE, FAILURES
from farm.cli.options import ANY_FILE, target_argument
from farm.cli.tables import printable
from farm.doctor.examine import checks, examine
from farm.doctor.finding import Finding, Weight

EXAMPLES = """\b
Examples:
  farm doctor                       this machine, and the farm of ./farm-run
  farm doctor farm-4711             why does this farm not answer?
  farm doctor --cluster slurm.toml  do the partitions exist?
  farm doctor --json | jq '.[] | select(.weight != "ok")'
"""

COLOURS = {Weight.OK: "green", Weight.WARNING: "yellow", Weight.WRONG: "red"}


@click.command(epilog=EXAMPLES)
@target_argument
@click.option(
    "--cluster",
    type=ANY_FILE,
    metavar="FILE.TOML",
    help="Also check this file for `farm serve --cluster`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all findings as a JSON list.")
def doctor(target: str | None, cluster: Path | None, as_json: bool) -> int:
    """Check the environment, this machine, a farm and the batch system. Nothing is changed.

    "left on disk" lists all files and folders of farm itself, with how to remove them.

    Each line is ok, a warning, or wrong, with what to do. Exit status: 1 if something is wrong.
    """
    found = []
    for finding in examine(checks(target, cluster)):
        found.append(finding)
        if not as_json:
            _print(finding)
    wrong = sum(each.weight is Weight.WRONG for each in found)
    if as_json:
        click.echo(orjson.dumps([asdict(each) for each in found], option=orjson.OPT_INDENT_2))
    else:
        warnings = sum(each.weight is Weight.WARNING for each in found)
        click.echo(f"{wrong} wrong, {warnings} warnings")
    return FAILURES if wrong else DONE


def _print(finding: Finding) -> None:
    weight = click.style(f"{finding.weight:<8}", fg=COLOURS[finding.weight])
    click.echo(f"{weight} {finding.subject}: {printable(finding.text)}")
    if finding.remedy:
        click.echo(f"         -> {printable(finding.remedy)}")
