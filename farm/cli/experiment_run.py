"""`farm experiment run`: a closed loop on a farm, from a configuration to its end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import click
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from farm.cli.sweep_farm import OpenFarm, Target, farm_options, open_farm
from farm.errors import FarmError, InvalidInput
from farm.experiment.best import best_told
from farm.experiment.evaluators import Remote
from farm.experiment.events import RunPhase
from farm.experiment.experiment import Experiment
from farm.experiment.grammar import read_config
from farm.experiment.host import Experiments
from farm.experiment.run import Progress, Run
from farm.experiment.subject import read_subject
from farm.protocols.aepsych import Request
from farm.server.aepsych import AepsychServer, read_address
from farm.sweep.progress import duration

EXAMPLES = """\b
Examples:
  farm experiment run tune.ini model.py --workers 4     a farm of this machine meanwhile
  farm experiment run tune.ini --to http://node3:4242   a farm that runs already
  farm experiment run tune.ini model.py --budget 200    goes on where it stopped, with more to spend
  farm experiment run tune.ini model.py --aepsych 127.0.0.1:5555
                                                        AEPsych's clients may watch and ask
"""

SHOW_EVERY_S = 0.25
LINE_EVERY_S = 60.0


@click.command(epilog=EXAMPLES)
@click.argument("config", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@farm_options
@click.option(
    "-o",
    "--journal",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="What keeps the experiment; the same file goes on.  [default: CONFIG ending in .db]",
)
@click.option(
    "--new", is_flag=True, help="Begin anew, also where the journal has one to go on with."
)
@click.option(
    "--in-flight",
    type=click.IntRange(min=1),
    metavar="N",
    help="Points evaluated at once, instead of what [farm] says.",
)
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    metavar="N",
    help="Evaluations in all, instead of what [farm] says.",
)
@click.option(
    "--aepsych",
    metavar="HOST:PORT",
    help="Serve AEPsych's clients meanwhile, who may ask and query the same experiment.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the end as JSON on stdout.")
def run(
    config: Path,
    target: Target,
    journal: Path | None,
    new: bool,
    in_flight: int | None,
    budget: int | None,
    aepsych: str | None,
    as_json: bool,
) -> int:
    """Run the experiment of CONFIG: ask for points, evaluate them on a farm, tell the outcomes.

    CONFIG is a configuration of AEPsych with a section [farm], which names the model and what its
    inputs and outputs mean. Ctrl-C waits for the points in flight; twice leaves at once. Either
    way the same command goes on where it stopped.
    """
    text = config.read_text(encoding="utf-8")
    read_subject(read_config(text))
    address = None if aepsych is None else read_address(aepsych, insecure=False)
    journal = journal or config.with_suffix(".db")
    with open_farm(target, journal) as farm:
        closed = _Closed(journal, text, new=new, in_flight=in_flight, budget=budget)
        return uvloop.run(closed.go(farm, address, as_json=as_json))


class _Closed:
    """One run of the command."""

    def __init__(
        self, journal: Path, text: str, *, new: bool, in_flight: int | None, budget: int | None
    ) -> None:
        self._journal = journal
        self._text = text
        self._new = new
        self._in_flight = in_flight
        self._budget = budget
        self._asked_to_stop = 0

    async def go(self, farm: OpenFarm, address: tuple[str, int] | None, *, as_json: bool) -> int:
        """The exit status."""
        experiments = Experiments(self._journal)
        await experiments.start()
        console = Console(stderr=True)
        try:
            number = await self._experiment(experiments, console)
            run = Run(
                experiments,
                number,
                Remote(farm.client, farm.reconnect),
                in_flight=self._in_flight,
                budget=self._budget,
            )
            async with _served(experiments, address, console):
                await run.begin()
                await self._watched(run, experiments.experiments[number], console)
            if self._asked_to_stop > 1:
                farm.hurry()
            progress = run.now()
        finally:
            await experiments.stop()
        experiment = experiments.experiments[number]
        if as_json:
            click.echo(json.dumps(dataclasses.asdict(progress)))
        for line in _summary(progress, experiment, self._journal):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        if experiment.run is RunPhase.ENDED:
            return 0
        return 130 if self._asked_to_stop else 1

    async def _experiment(self, experiments: Experiments, console: Console) -> int:
        """The number of the experiment to run: that of the same configuration, or a new one."""
        wanted = read_config(self._text).text
        same = [n for n, e in experiments.experiments.items() if e.config.text == wanted]
        if same and not self._new:
            known = experiments.experiments[same[-1]]
            if known.finished:
                raise InvalidInput(
                    f"experiment {same[-1]} in {self._journal} has this configuration and is "
                    "finished; --new begins another"
                )
            console.print(
                f"goes on with experiment {same[-1]} in {self._journal}: {known.told} told",
                highlight=False,
            )
            return same[-1]
        request = Request("setup", {"config_str": self._text}, {})
        reply = await experiments.handle(experiments.session(), request)
        return int(reply.answer["strat_id"])

    async def _watched(self, run: Run, experiment: Experiment, console: Console) -> None:
        loop = asyncio.get_running_loop()
        going = loop.create_task(run.go())

        def stop() -> None:
            self._asked_to_stop += 1
            if self._asked_to_stop == 1:
                waiting = run.now().in_flight
                console.print(f"waits for {waiting} points in flight; once more to leave at once")
                run.pause("interrupted")
            else:
                going.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        for warning in experiment.warnings:
            console.print(warning, highlight=False, markup=False, soft_wrap=True)
        with Display(console) as display:
            while not going.done():
                display.show(run.now(), best_text(experiment))
                await asyncio.wait([going], timeout=SHOW_EVERY_S)
            display.show(run.now(), best_text(experiment))
        with contextlib.suppress(asyncio.CancelledError):
            await going


@contextlib.asynccontextmanager
async def _served(
    experiments: Experiments, address: tuple[str, int] | None, console: Console
) -> AsyncIterator[None]:
    """AEPsych's clients are served for the block, if there is an address for them."""
    if address is None:
        yield
        return
    server = AepsychServer(experiments, host=address[0], port=address[1])
    console.print(f"AEPsych's clients at {await server.start()}", highlight=False)
    try:
        yield
    finally:
        await server.stop(0.0)


class Display:
    """A live bar in a terminal, else a line a minute. A context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._line_at_s = LINE_EVERY_S
        self._message = ""
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("experiment", total=None, facts="")

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def show(self, progress: Progress, best: str) -> None:
        """Bring it up to date."""
        done = progress.evaluations - progress.in_flight - progress.ready
        facts = ", ".join(filter(None, [*_facts(progress), best]))
        self._bar.update(
            self._task,
            description=progress.strategy,
            total=progress.budget,
            completed=done,
            facts=facts,
        )
        if progress.message != self._message:
            self._message = progress.message
            self._say(progress.message or "goes on")
        if not self._console.is_terminal and progress.elapsed_s >= self._line_at_s:
            self._line_at_s += LINE_EVERY_S
            self._say(f"{progress.strategy}: {done} evaluations, {facts}")

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def best_text(experiment: Experiment) -> str:
    """The best outcome so far, where there is one number to tell."""
    try:
        outcomes = best_told(experiment).outcomes
    except InvalidInput:
        return ""
    return f"best {next(iter(outcomes.values())):.6g}"


def _facts(progress: Progress) -> list[str]:
    facts = [f"{progress.in_flight} in flight"]
    if progress.failed:
        facts.append(f"{progress.failed} failed")
    return facts


def _summary(progress: Progress, experiment: Experiment, journal: Path) -> list[str]:
    """What is said at the end."""
    how = {RunPhase.ENDED: "ended", RunPhase.PAUSED: "paused"}.get(progress.phase, "left")
    lines = [
        f"experiment {experiment.number} {how}{f': {progress.why}' if progress.why else ''}",
        f"{progress.told} told and {progress.failed} failed in {duration(progress.elapsed_s)}; "
        f"{progress.places} at once, busy {progress.utilisation:.0%} of the time"
        + (f"; {progress.fillers} points filled in" if progress.fillers else ""),
    ]
    with contextlib.suppress(FarmError):
        best = best_told(experiment)
        values = {**best.point, **best.outcomes}
        lines.append("best: " + ", ".join(f"{k} = {_number(v)}" for k, v in values.items()))
    lines.append(f"journal {journal}; see farm experiment best, plot, export")
    return lines


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
