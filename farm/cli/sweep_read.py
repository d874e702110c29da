"""The subcommands of `farm sweep` that read a sweep file, even while the sweep is running."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
import time
import webbrowser
from pathlib import Path

import click
from rich.console import Console

from farm.cli.exits import DONE, FAILURES, INCOMPLETE, TIME_OUT
from farm.cli.options import ANY_FILE, json_option, new_file, report_option
from farm.cli.tables import text_table
from farm.errors import printable
from farm.sweep.file.progress import Progress
from farm.sweep.file.reading import (
    SILENT,
    failures_of,
    known_of,
    progress_of,
    snapshot,
    write_csv,
    write_netcdf,
)
from farm.sweep.file.recovery import RUNNING
from farm.sweep.file.store import COMPLETE
from farm.sweep.file.tables import write_parquet
from farm.sweep.report.report import write_report
from farm.sweep.run.display import Display, facts
from farm.wording import counted, timespan

NODES_SHOWN = 5
POLL_S = 1.0

file_argument = click.argument("file", type=ANY_FILE)


@click.command()
@file_argument
@json_option("Print all details as one JSON object.")
def status(file: Path, as_json: bool) -> None:
    """Show the progress of a sweep: counts, rate, expected end, run times, nodes.

    The command works on any machine that can read FILE, during the sweep and afterwards.
    """
    progress = progress_of(file)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(progress)))
        return
    click.echo(printable(describe(progress)))
    if progress.nodes:
        rows = [
            [node["host"] or "?", node["done"], node["failed"], timespan(node["mean_run_s"])]
            for node in progress.nodes[:NODES_SHOWN]
        ]
        Console().print(text_table(("node", ">done", ">failed", ">mean run time"), rows))


@click.command()
@file_argument
@click.option("--timeout", type=float, metavar="SECONDS", help="Stop watching after this time.")
def watch(file: Path, timeout: float | None) -> int:
    """Show the progress of a sweep until it ends.

    Exit status: 0 all points done, 1 some points failed, 3 the sweep ended incomplete, 7 timeout.
    """
    until = None if timeout is None else time.monotonic() + timeout
    with Display() as display:
        while True:
            progress = progress_of(file)
            display.show(progress)
            if progress.state != RUNNING:
                break
            if until is not None and time.monotonic() > until:
                display.say(f"still running after {timespan(timeout)}")
                return TIME_OUT
            time.sleep(POLL_S)
    click.echo(printable(describe(progress)), err=True)
    if progress.state != COMPLETE:
        return INCOMPLETE
    return FAILURES if progress.unsuccessful else DONE


@click.command()
@file_argument
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, which includes tracebacks.")
@click.option(
    "--all", "all_attempts", is_flag=True, help="Include failed attempts of retried points."
)
def failures(file: Path, as_csv: bool, all_attempts: bool) -> None:
    """List the points that failed: attempt, error, worker, parameters."""
    rows = failures_of(file, all_attempts=all_attempts)
    names = [p.name for p in known_of(file)[0].parameters]
    if as_csv:
        fields = ["point", "attempt", "status", "error", "traceback", "worker", *names]
        writer = csv.DictWriter(sys.stdout, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return
    if not rows:
        click.echo("no point failed")
    for row in rows:
        values = ", ".join(
            f"{name}={row[name]}" if isinstance(row[name], str) else f"{name}={row[name]:.6g}"
            for name in names
            if row[name] is not None
        )
        where = f" on {row['worker']}" if row["worker"] else ""
        shown = f"attempt {row['attempt']}{where}\t{row['error']}\t({values})"
        click.echo(printable(f"{row['point']}\t{shown}"))


@click.command()
@file_argument
@click.option("--csv", "as_csv", metavar="OUT", help="File for CSV; - is standard output.")
@click.option("--netcdf", metavar="OUT", type=click.Path(path_type=Path), help="File for netCDF.")
@click.option("--parquet", metavar="OUT", type=click.Path(path_type=Path), help="File for Parquet.")
def export(file: Path, as_csv: str | None, netcdf: Path | None, parquet: Path | None) -> None:
    """Export the points of a sweep as CSV, netCDF or Parquet."""
    if as_csv is None and netcdf is None and parquet is None:
        raise click.UsageError(
            "missing the format: --csv out.csv, --netcdf out.nc or --parquet out.parquet"
        )
    if as_csv == "-":
        write_csv(file, sys.stdout)
    elif as_csv is not None:
        with new_file(Path(as_csv)).open("x", newline="", encoding="utf-8") as out:
            write_csv(file, out)
    if netcdf is not None:
        write_netcdf(file, new_file(netcdf))
    if parquet is not None:
        write_parquet(file, new_file(parquet))


@click.command()
@file_argument
@report_option("FILE")
@click.option("--output", help="Output to show first, such as u or u[3]. Default: the first.")
@click.option("--open", "shown", is_flag=True, help="Open the report in the web browser.")
def plot(file: Path, out: Path | None, output: str | None, shown: bool) -> None:
    """Write an interactive report to one self-contained HTML file.

    It shows the model: outputs against parameters, distributions, sensitivity, fields and
    failures; then how the farm worked. It works during the sweep, too.
    """
    out = out or file.with_suffix(".html")
    write_report(file, out, colour_by=output)
    click.echo(out)
    if shown and not webbrowser.open(out.resolve().as_uri()):
        click.echo("no web browser was found; open the file in one", err=True)


@click.command(name="snapshot")
@file_argument
@click.option("-o", "--out", required=True, type=ANY_FILE, help="File for the copy.")
def copy(file: Path, out: Path) -> None:
    """Write a consistent copy of a sweep file that you can read while the sweep is running."""
    snapshot(file, out)
    click.echo(out)


COMMANDS = (status, watch, failures, export, plot, copy)


def describe(progress: Progress) -> str:
    """Describe the progress of a sweep in a few lines."""
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
    lines.append(f"{counted(progress.total, 'point')}: {', '.join(counts)}")
    if progress.run_p50_s is not None:
        lines.append(
            f"run time: mean {timespan(progress.run_mean_s)}, p50 {timespan(progress.run_p50_s)}, "
            f"p95 {timespan(progress.run_p95_s)}"
        )
    if progress.state == RUNNING:
        lines.append(facts(progress))
        if progress.basis:
            lines.append(f"order: longest first, by {progress.basis}")
    if progress.message:
        lines.append(progress.message)
    return "\n".join(text for text in lines if text)


def state(progress: Progress) -> str:
    """Return the state of a sweep in words."""
    if progress.state != SILENT:
        return progress.state
    ago = timespan(time.time() - progress.time)
    return (
        f"not complete; its process {progress.pid} on {progress.host} has not reported for {ago}. "
        "If the process is gone: farm sweep --resume"
    )
