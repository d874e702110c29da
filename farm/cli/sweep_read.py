"""The verbs of `farm sweep` that look at a sweep, also while it runs elsewhere."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from farm.errors import printable
from farm.sweep.display import Display, facts
from farm.sweep.errors import SweepError
from farm.sweep.progress import Progress, duration
from farm.sweep.read import (
    SILENT,
    failures_of,
    known_of,
    progress_of,
    snapshot,
    write_csv,
    write_netcdf,
)
from farm.sweep.recover import RUNNING
from farm.sweep.report import write_report
from farm.sweep.store import COMPLETE

DONE, FAILURES, TIME_OUT, INCOMPLETE = 0, 1, 2, 3
NODES_SHOWN = 5
POLL_S = 1.0

file_argument = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@click.command()
@file_argument
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def status(file: Path, as_json: bool) -> None:
    """Show how far a sweep is: counts, rate, expected end, run times, nodes.

    It works from any machine that sees FILE, while the sweep runs and after.
    """
    progress = progress_of(file)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(progress)))
        return
    click.echo(describe(progress))
    if progress.nodes:
        table = Table("node", box=None, header_style="dim")
        for column in ("done", "failed", "mean run time"):
            table.add_column(column, justify="right")
        for node in progress.nodes[:NODES_SHOWN]:
            table.add_row(
                node["host"] or "?",
                str(node["done"]),
                str(node["failed"]),
                duration(node["mean_run_s"]),
            )
        Console().print(table)


@click.command()
@file_argument
@click.option("--timeout", type=float, metavar="SECONDS", help="Give up after so long.")
def watch(file: Path, timeout: float | None) -> int:
    """Watch a sweep until it ends.

    Exit status: 0 all points done, 1 some failed, 2 time-out, 3 it ended before it was complete.
    """
    until = None if timeout is None else time.monotonic() + timeout
    with Display() as display:
        while True:
            progress = progress_of(file)
            display.show(progress)
            if progress.state != RUNNING:
                break
            if until is not None and time.monotonic() > until:
                display.say(f"still running after {duration(timeout)}")
                return TIME_OUT
            time.sleep(POLL_S)
    click.echo(describe(progress), err=True)
    if progress.state != COMPLETE:
        return INCOMPLETE
    return FAILURES if progress.unsuccessful else DONE


@click.command()
@file_argument
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, with tracebacks.")
@click.option("--all", "all_attempts", is_flag=True, help="Also of points that were retried since.")
def failures(file: Path, as_csv: bool, all_attempts: bool) -> None:
    """List the points that failed: attempt, error, worker, parameters."""
    rows = failures_of(file, all_attempts=all_attempts)
    if as_csv:
        names = [p.name for p in known_of(file)[0].parameters]
        fields = ["point", "attempt", "status", "error", "traceback", "worker", *names]
        writer = csv.DictWriter(sys.stdout, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return
    if not rows:
        click.echo("no point failed")
    for row in rows:
        values = ", ".join(
            f"{name}={value:.6g}" for name, value in row.items() if isinstance(value, float)
        )
        where = f" on {row['worker']}" if row["worker"] else ""
        shown = f"attempt {row['attempt']}{where}\t{row['error']}\t({values})"
        click.echo(printable(f"{row['point']}\t{shown}"))


@click.command()
@file_argument
@click.option("--csv", "as_csv", metavar="OUT", help="Write CSV; - for the standard output.")
@click.option("--netcdf", metavar="OUT", type=click.Path(path_type=Path), help="Write netCDF.")
def export(file: Path, as_csv: str | None, netcdf: Path | None) -> None:
    """Write a sweep as CSV or netCDF."""
    if as_csv is None and netcdf is None:
        raise click.UsageError("say what to write: --csv out.csv or --netcdf out.nc")
    if as_csv == "-":
        write_csv(file, sys.stdout)
    elif as_csv is not None:
        with _new(Path(as_csv)).open("w", newline="", encoding="utf-8") as out:
            write_csv(file, out)
    if netcdf is not None:
        write_netcdf(file, _new(netcdf))


@click.command()
@file_argument
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The report. Default: FILE with .html for its ending.",
)
@click.option("--output", help="The output that colours points. Default: the first one.")
def plot(file: Path, out: Path | None, output: str | None) -> None:
    """Write a report with figures as one HTML file that needs nothing else."""
    out = out or file.with_suffix(".html")
    write_report(file, out, colour_by=output)
    click.echo(out)


@click.command(name="snapshot")
@file_argument
@click.option(
    "-o", "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The copy."
)
def copy(file: Path, out: Path) -> None:
    """Write a closed copy of a sweep, to read while it runs on."""
    snapshot(file, out)
    click.echo(out)


COMMANDS = (status, watch, failures, export, plot, copy)


def describe(progress: Progress) -> str:
    """A few lines about a moment of a sweep."""
    counts = [f"{progress.done} done"]
    counts += [
        f"{count} {name}"
        for name, count in (
            ("failed", progress.failed),
            ("cancelled", progress.cancelled),
            ("timed out", progress.timeout),
            ("pending", progress.pending),
            ("in flight", progress.in_flight),
        )
        if count
    ]
    lines = [f"{progress.title}: {state(progress)}"]
    lines.append(f"{progress.total} points: {', '.join(counts)}")
    if progress.run_p50_s is not None:
        lines.append(
            f"run time: mean {duration(progress.run_mean_s)}, p50 {duration(progress.run_p50_s)}, "
            f"p95 {duration(progress.run_p95_s)}"
        )
    if progress.state == RUNNING:
        lines.append(facts(progress))
    if progress.message:
        lines.append(progress.message)
    return "\n".join(text for text in lines if text)


def state(progress: Progress) -> str:
    """The state of a sweep in words."""
    if progress.state != SILENT:
        return progress.state
    ago = duration(time.time() - progress.time)
    return (
        f"not complete; its process {progress.pid} on {progress.host} has said nothing for {ago}. "
        "If it is gone: farm sweep --resume"
    )


def _new(path: Path) -> Path:
    if path.exists():
        raise SweepError(f"{path} exists; name another file")
    return path
