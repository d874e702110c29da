"""One session of a sweep on the command line: its rules, its display, how it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from farm.call import Hints
from farm.cli.exits import DONE, FAILURES, INCOMPLETE
from farm.cli.signals import stopped_by_signals
from farm.cli.sweep_farm import OpenFarm
from farm.sweep.design.plan import Plan
from farm.sweep.file.progress import Progress
from farm.sweep.file.store import COMPLETE, Store
from farm.sweep.run.display import Display, line
from farm.sweep.run.in_flight import PointInFlight
from farm.sweep.run.run import Rules, Run, Stop


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


def run_session(
    store: Store,
    farm: OpenFarm,
    rules: dict[str, Any],
    *,
    started: Sequence[PointInFlight] = (),
    retry_failed: bool = False,
) -> int:
    """Run the open points of a sweep, print how it ended, and return the exit status."""
    stop = Stop()
    with Display() as display, stopped_by_signals(stop):
        told = False

        def watch(progress: Progress) -> None:
            nonlocal told
            if stop.asked and not told:
                told = True
                display.say(
                    f"stopping: waiting for {progress.in_flight} points in flight; "
                    "Ctrl-C again to exit at once"
                )
            display.show(progress)

        try:
            session = Run(
                store,
                farm.client,
                rules=_rules(rules, store, farm.start),
                stop=stop,
                started=started,
                watch=watch,
                reconnect=farm.reconnect,
            )
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


def _rules(options: dict[str, Any], store: Store, start: int) -> Rules:
    plan, hours, limit = store.plan, options["max_hours"], options["max_failures"]
    return Rules(
        max_failures=None if limit is None else limit(plan.size),
        max_s=None if hours is None else 3600 * hours,
        in_flight=options["in_flight"],
        start=start,
        hints=hints_of(plan, options),
    )


def hints_of(plan: Plan, options: dict[str, Any]) -> Hints:
    """Return the hints of all calls of a sweep."""
    return Hints(f"sweep-{plan.run_id[:8]}", options["priority"], chain="")
