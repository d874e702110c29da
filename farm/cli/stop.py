"""`farm stop`: end a running farm in order, and wait until it has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from farm.cli.exits import DONE, TIME_OUT
from farm.cli.options import target_argument
from farm.client import connect
from farm.client.client import ANSWER_S
from farm.doctor.target import is_url, meant, process_here
from farm.errors import Unavailable, UnsupportedFeature
from farm.storage.lock import born, machine
from farm.transports.connection import CLIENTS_FILE, read_connection

EXAMPLES = """\b
Examples:
  farm stop                    the farm of ./farm-run: running calls may finish
  farm stop farm-4711 --now    kill its running calls
  farm stop --to http://node3:4242 && echo ended
"""

LOOK_EVERY_S = 0.2
MARGIN_S = 60.0
"""Seconds beyond its grace period that a farm may take to end its workers and jobs."""


@click.command(epilog=EXAMPLES)
@target_argument
@click.option("--now", is_flag=True, help="Do not wait for running calls: kill them.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Longest time to wait for the end.  [default: --grace of the farm, and a minute]",
)
def stop(target: str | None, now: bool, timeout: float | None) -> int:
    """End a farm as Ctrl-C in its terminal does, and wait until it has ended.

    It takes no more calls, running calls get the time that its --grace allows, queued calls fail,
    its workers end, and jobs that it submitted are cancelled. If it was started with --supervise,
    it is not started again. Only its owner can stop a farm. `farm stop --now` hurries a farm that
    is stopping already.
    """
    where = meant(target)
    began = time.monotonic()
    plan = _asked(where, now)
    click.echo(_described(where, plan, now), err=True)
    limit = plan["grace_s"] + MARGIN_S if timeout is None else timeout
    has_ended = _watched(where, plan)
    while not has_ended():
        if time.monotonic() - began > limit:
            said = f"the farm has not ended in {limit:g} s; to hurry it: farm stop --now {where}"
            click.echo(f"farm: error: {said}", err=True)
            return TIME_OUT
        time.sleep(LOOK_EVERY_S)
    click.echo(f"ended after {time.monotonic() - began:.1f} s", err=True)
    return DONE


def _asked(where: str | Path, now: bool) -> dict[str, Any]:
    """Ask the farm to stop; return its answer. Raises FarmError with what else to do."""
    try:
        with connect(where) as client:
            return dict(client.ask("stop", now="true" if now else "false"))
    except UnsupportedFeature as error:
        raise UnsupportedFeature(
            f"no `farm serve` of this version serves {where}; end the program that started it, "
            f"such as a sweep or a notebook ({error.message})"
        ) from None
    except Unavailable as error:
        here = process_here(where)
        hint = f"; if it hangs, end its process on this host: kill {here.pid}" if here else ""
        raise Unavailable(error.message + hint) from None


def _described(where: str | Path, plan: dict[str, Any], now: bool) -> str:
    """Return in words what has to end."""
    process = " and ".join(map(str, plan["processes"]))
    workers = plan["workers"]
    parts = ["1 worker ends" if workers == 1 else f"{workers} workers end"]
    if plan["running"]:
        how = "are killed" if now else f"get {plan['grace_s']:g} s"
        parts.insert(0, f"{plan['running']} running calls {how}")
    if plan["queued"]:
        parts.append(f"{plan['queued']} queued calls fail")
    if plan["jobs"]:
        parts.append(f"{plan['jobs']} jobs end or are cancelled")
    return f"farm {where} stops (process {process} on {plan['host']}): {', '.join(parts)}"


def _watched(where: str | Path, plan: dict[str, Any]) -> Callable[[], bool]:
    """Return a function that returns whether the farm has ended."""
    if plan["machine"] and plan["machine"] == machine():
        first = {pid: born(pid) for pid in plan["processes"]}
        return lambda: all(not at or born(pid) != at for pid, at in first.items())
    if not is_url(where):
        file = Path(where) / CLIENTS_FILE if Path(where).is_dir() else Path(where)
        return lambda: _is_gone(file, plan["processes"])
    return lambda: _answers_no_more(where)


def _is_gone(file: Path, processes: list[int]) -> bool:
    """Whether a farm has removed its connection file, which it does last."""
    try:
        return read_connection(file).pid not in processes
    except Unavailable:
        return not file.exists()


def _answers_no_more(where: str | Path) -> bool:
    try:
        connect(where, wait=ANSWER_S / 10).close()
    except Unavailable:
        return True
    return False
