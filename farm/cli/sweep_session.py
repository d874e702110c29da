"""One session of a sweep on the command line: its rules, its display, how it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from farm.cli.exits import DONE, FAILURES, INCOMPLETE
from farm.cli.signals import stopped_by_signals
from farm.cli.sweep_farm import OpenFarm
from farm.sweep.file.progress import Progress
from farm.sweep.file.recovery import RUNNING
from farm.sweep.file.store import COMPLETE, Store
from farm.sweep.run.display import Display, line
from farm.sweep.run.evaluator import CallEvaluator
from farm.sweep.run.in_flight import PointsInFlight
from farm.sweep.run.run import Rules, Run, RunHost, Stop


def _limit(
    ctx: click.Context, parameter: click.Parameter, text: str | None
) -> Callable[[int], int] | None:
    """Parse `10` or `5%` to a function from the number of points to the limit."""
    if text is None:
        return None
    number = text.removesuffix("%")
    try:
        if number == text:
            limit = int(text)
            return lambda size: limit
        share = float(number) / 100
        return lambda size: int(share * size)
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected 10 or 5%") from None


def rule_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a session; the command receives them as keywords."""
    for option in (
        click.option("--priority", default=0, help="Priority in the farm; higher goes first."),
        click.option(
            "--in-flight",
            type=click.IntRange(min=1),
            metavar="N",
            help="Points submitted to the farm at once. Default: enough for its workers.",
        ),
        click.option(
            "--max-hours", type=float, metavar="H", help="Submit no more points after H hours."
        ),
        click.option(
            "--max-failures",
            metavar="N|P%",
            callback=_limit,
            help="Submit no more points once more than N points, or P percent of all, have failed.",
        ),
    ):
        command = option(command)
    return command


class _Terminal(RunHost):
    """Shows a run on the terminal, and finds its farm again after a restart of the farm."""

    def __init__(self, display: Display, farm: OpenFarm, stop: Stop) -> None:
        self._display = display
        self._farm = farm
        self._stop = stop
        self._told = False

    def show(self, progress: Progress) -> None:
        """Update the display; report once that the sweep stops."""
        running = progress.state == RUNNING and not self._stop.at_once
        if self._stop.asked and running and not self._told:
            self._told = True
            self._display.say("stopping: waiting for running points; Ctrl-C again to exit at once")
        self._display.show(progress)

    def reconnect(self, evaluator: CallEvaluator) -> CallEvaluator:
        """Return a client of the restarted farm. Raises FarmError."""
        return evaluator if self._farm.reconnect is None else self._farm.reconnect()


def run_session(
    store: Store,
    farm: OpenFarm,
    rules: dict[str, Any],
    *,
    started: PointsInFlight | None = None,
    retry_failed: bool = False,
) -> int:
    """Run the open points of a sweep, print how it ended, and return the exit status."""
    stop = Stop()
    sent = started or PointsInFlight(farm.client, store.plan, rules["priority"])
    with Display() as display, stopped_by_signals(stop):
        try:
            host = _Terminal(display, farm, stop)
            session = Run(store, sent, rules=_rules(rules, store.plan.size), stop=stop, host=host)
        except BaseException:
            store.abandon()
            raise
        progress = session.go(retry_failed=retry_failed)
    click.echo(line(progress), err=True)
    path = store.path
    if progress.unsuccessful:
        click.echo(f"list the failures: farm sweep failures {path}", err=True)
    if progress.state != COMPLETE:
        click.echo(f"{progress.state}; continue with: farm sweep --resume {path}", err=True)
        return INCOMPLETE
    return FAILURES if progress.unsuccessful else DONE


def _rules(options: dict[str, Any], points: int) -> Rules:
    hours, limit = options["max_hours"], options["max_failures"]
    return Rules(
        max_failures=None if limit is None else limit(points),
        max_s=None if hours is None else 3600 * hours,
        in_flight=options["in_flight"],
    )
