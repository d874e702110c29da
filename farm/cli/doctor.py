"""`farm doctor`: look for what may keep farm from working, and say what to do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from queue import Empty, Queue

import click

from farm.cli.exits import DONE, FAILURES
from farm.cli.options import ANY_FILE, json_option, print_json, target_argument
from farm.cli.tables import printable
from farm.doctor import batch, folder, machine, packages
from farm.doctor import target as farm_target
from farm.doctor.finding import Finding, Weight, warning

EXAMPLES = """\b
Examples:
  farm doctor                       this machine, and the farm of ./farm-run
  farm doctor farm-4711             why does this farm not answer?
  farm doctor --cluster slurm.toml  do the partitions exist?
  farm doctor --json | jq '.[] | select(.weight != "ok")'
"""

COLOURS = {Weight.OK: "green", Weight.WARNING: "yellow", Weight.WRONG: "red"}

LIMIT_S = 20.0
"""Time limit of one check; those that ask other programs have shorter ones of their own."""

Check = Callable[[], list[Finding]]


@click.command(epilog=EXAMPLES)
@target_argument
@click.option(
    "--cluster",
    type=ANY_FILE,
    metavar="FILE.TOML",
    help="Also check this file for `farm serve --cluster`.",
)
@json_option("Print all findings as a JSON list.")
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
        print_json([asdict(each) for each in found])
    else:
        warnings = sum(each.weight is Weight.WARNING for each in found)
        click.echo(f"{wrong} wrong, {warnings} warnings")
    return FAILURES if wrong else DONE


def _print(finding: Finding) -> None:
    weight = click.style(f"{finding.weight:<8}", fg=COLOURS[finding.weight])
    click.echo(f"{weight} {finding.subject}: {printable(finding.text)}")
    if finding.remedy:
        click.echo(f"         -> {printable(finding.remedy)}")


def checks(named: str | None, cluster: Path | None) -> dict[str, Check]:
    """Return all checks by their subjects. named: the farm; cluster: a file for `--cluster`."""
    where = farm_target.folder_of(named)
    return {
        "Python": packages.python_is_new_enough,
        "interpreter": packages.interpreter,
        "packages": packages.versions,
        "program farm": packages.program_is_this_one,
        "environment": packages.environment,
        "memory": machine.memory,
        "open files": machine.open_files,
        "processors": machine.processes,
        "GPUs": machine.gpus,
        "containers": machine.containers,
        "clock": machine.clock,
        "time limits": machine.time_limits,
        "disk": partial(folder.disk, where),
        "keys": partial(folder.permissions, where),
        "left on disk": partial(folder.left, where),
        "port": partial(farm_target.port, named),
        "farm": partial(farm_target.answers, named),
        "batch system": lambda: batch.systems(cluster, farm_target.batch_system(named)),
        **({} if cluster is None else {"cluster file": partial(batch.plan, cluster)}),
    }


def examine(all_checks: dict[str, Check], *, limit_s: float = LIMIT_S) -> Iterator[Finding]:
    """Carry out the checks, at most `limit_s` each; a check that fails is a finding, too."""
    for subject, check in all_checks.items():
        yield from _within(limit_s, subject, check)


def _within(limit_s: float, subject: str, check: Check) -> list[Finding]:
    """Run a check in a thread that is left alone if it hangs, as on a dead file server."""
    answers: Queue[list[Finding]] = Queue()

    def run() -> None:
        try:
            answers.put(check())
        except Exception as error:
            text = f"the check failed: {type(error).__name__}: {error}"
            answers.put([warning(subject, text, "look at that by hand")])

    threading.Thread(target=run, name=f"check {subject}", daemon=True).start()
    try:
        return answers.get(timeout=limit_s)
    except Empty:
        text = f"no result in {limit_s:g} s"
        return [warning(subject, text, "a file server, a command or a server does not answer")]
