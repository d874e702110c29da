"""`farm experiment run`: a closed loop on a farm, from a configuration to its end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import uvloop
from rich.console import Console

from farm.cli.sweep_farm import OpenFarm, Target, farm_options, open_farm
from farm.errors import FarmError, InvalidInput, ModelNotFound, Unavailable, UnsupportedFeature
from farm.experiment.best import best_told
from farm.experiment.evaluators import Remote
from farm.experiment.events import RunPhase
from farm.experiment.experiment import Experiment
from farm.experiment.grammar import read_config
from farm.experiment.host import Experiments, OnRun
from farm.experiment.progress import Progress
from farm.experiment.run import Run, fitting_model
from farm.experiment.session import RunAction, RunCommand
from farm.experiment.subject import read_subject
from farm.protocols.aepsych import Request
from farm.server.access import Access
from farm.server.aepsych import AepsychServer, read_address
from farm.sweep.display import LiveBar
from farm.sweep.progress import duration
from farm.transports.connection import new_token

EXAMPLES = """\b
Examples:
  farm experiment run tune.ini model.py --workers 4     a farm of this machine meanwhile
  farm experiment run tune.ini --to http://node3:4242   a farm that runs already
  farm experiment run tune.ini model.py --budget 200    goes on where it stopped, with more to spend
  farm experiment run tune.ini model.py --aepsych 127.0.0.1:5555
                                                        AEPsych's clients may watch and ask
"""

SHOW_EVERY_S = 0.25


Served = tuple[Access, str, int]
"""Who may ask, and the host and port where."""


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
@click.option(
    "--insecure",
    is_flag=True,
    help="Let --aepsych listen beyond this machine, for everybody there.",
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
    insecure: bool,
    as_json: bool,
) -> int:
    """Run the experiment of CONFIG: ask for points, evaluate them on a farm, tell the outcomes.

    CONFIG is a configuration of AEPsych with a section [farm], which names the model and what its
    inputs and outputs mean. Ctrl-C waits for the points in flight; twice leaves at once. Either
    way the same command goes on where it stopped.
    """
    text = _text_of(config)
    subject = read_subject(read_config(text))
    served = None
    if aepsych is not None:
        access = Access(None if insecure else new_token())
        served = (access, *read_address(aepsych, insecure=insecure))
    journal = journal or config.with_suffix(".db")
    target, kills = _limited(target, subject.time_limit_s)
    with _kept(journal) as experiments, open_farm(target, journal) as farm:
        closed = _Closed(experiments, text, new=new, in_flight=in_flight, budget=budget)
        try:
            return uvloop.run(closed.go(farm, served, kills=kills, as_json=as_json))
        except (InvalidInput, ModelNotFound, Unavailable, UnsupportedFeature) as error:
            # It is refused, which is no fault of the models: what they said need not be kept.
            raise click.ClickException(error.message) from error
        except KeyboardInterrupt:  # before there is anything in flight
            farm.hurry()
            raise


def _text_of(config: Path) -> str:
    try:
        return config.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{config} is not UTF-8: byte {error.object[error.start]:#04x} at {error.start}"
        ) from None


def _limited(target: Target, time_limit_s: float | None) -> tuple[Target, bool]:
    """The farm with the time limit of [farm], and whether it keeps that one: one of our own does,
    as it can kill the model."""
    if time_limit_s is None or not target.models or target.dask:
        return target, False
    least_s = min(filter(None, (time_limit_s, target.time_limit_s)))
    return dataclasses.replace(target, time_limit_s=least_s), True


@contextlib.contextmanager
def _kept(journal: Path) -> Iterator[Experiments]:
    """The experiments of a journal, which is nobody else's for the block. Raises Unavailable."""
    experiments = Experiments(journal)
    uvloop.run(experiments.start())
    try:
        yield experiments
    finally:
        uvloop.run(experiments.stop())


class _Closed:
    """One run of the command."""

    def __init__(
        self,
        experiments: Experiments,
        text: str,
        *,
        new: bool,
        in_flight: int | None,
        budget: int | None,
    ) -> None:
        self._experiments = experiments
        self._text = text
        self._new = new
        self._in_flight = in_flight
        self._budget = budget
        self._asked_to_stop = 0
        self._console = Console(stderr=True)

    async def go(self, farm: OpenFarm, served: Served | None, *, kills: bool, as_json: bool) -> int:
        """The exit status."""
        try:
            evaluator = Remote(farm.client, farm.reconnect)
            async with self._served(served):
                number = await self._number(evaluator)
                experiment = self._experiments.experiments[number]
                run = Run(
                    self._experiments,
                    number,
                    evaluator,
                    in_flight=self._in_flight,
                    budget=self._budget,
                    kills=kills,
                )
                await run.begin()
                self._experiments.on_run = _commands(run, number)
                await self._watched(run, experiment)
            if self._asked_to_stop > 1:
                farm.hurry()
            progress = run.now()
        finally:
            await self._experiments.stop()
        if as_json:
            click.echo(json.dumps(dataclasses.asdict(progress)))
        for line in _summary(progress, experiment, self._experiments.db_name):
            self._say(line)
        if experiment.run is RunPhase.ENDED:
            return 0
        return 130 if self._asked_to_stop else 1

    async def _number(self, farm: Remote) -> int:
        """Of the experiment to run: that of the same configuration, or a new one, which fits."""
        known, journal = self._experiments.experiments, self._experiments.db_name
        config = read_config(self._text)
        same = [n for n, e in known.items() if e.config.text == config.text]
        if same and not self._new:
            experiment = known[same[-1]]
            if experiment.finished and not experiment.evaluating:
                end = "is finished; --new begins another"
                self._say(f"experiment {same[-1]} in {journal} has this configuration and {end}")
            else:
                told = f"{experiment.told} told"
                self._say(f"goes on with experiment {same[-1]} in {journal}: {told}")
            return same[-1]
        # What is refused leaves no experiment behind.
        subject = read_subject(config)
        subject.check_end(config, self._budget)
        await fitting_model(subject, farm)
        request = Request("setup", {"config_str": self._text}, {})
        reply = await self._experiments.handle(self._experiments.session(), request)
        number = int(reply.answer["strat_id"])
        if number and not same:
            self._say(
                f"begins experiment {number} in {journal}: those before have another configuration"
            )
        return number

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextlib.asynccontextmanager
    async def _served(self, served: Served | None) -> AsyncIterator[None]:
        """AEPsych's clients are served for the block, if there is an address for them."""
        if served is None:
            yield
            return
        access, host, port = served
        server = AepsychServer(self._experiments, access=access, host=host, port=port)
        self._say(f"AEPsych's clients at {await server.start()}")
        try:
            yield
        finally:
            await server.stop(0.0)

    async def _watched(self, run: Run, experiment: Experiment) -> None:
        loop = asyncio.get_running_loop()
        going = loop.create_task(run.go())

        def stop() -> None:
            self._asked_to_stop += 1
            if self._asked_to_stop == 1:
                flying = run.now().in_flight
                waited = f"{flying} points in flight" if flying else "the choice of a point"
                self._say(f"waits for {waited}; once more to leave at once")
                run.pause("interrupted")
            else:
                going.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        for warning in experiment.warnings:
            self._say(warning)
        with Display(self._console) as display:
            while not going.done():
                display.show(run.now(), best_text(experiment))
                await asyncio.wait([going], timeout=SHOW_EVERY_S)
            display.show(run.now(), best_text(experiment))
        with contextlib.suppress(asyncio.CancelledError):
            await going


def _commands(run: Run, number: int) -> OnRun:
    """What is answered to clients who command the loop: how it is; the terminal has the rest."""

    async def command(command: RunCommand, known: Mapping[str, Any]) -> Mapping[str, Any]:
        if command.action is not RunAction.STATUS:
            raise UnsupportedFeature(
                f"{command.action} is for `farm serve MODEL --aepsych HOST:PORT`; here "
                f"`farm experiment run` runs experiment {number} to its end, and Ctrl-C pauses it"
            )
        is_it = command.experiment == number
        return {**known, **({"loop": dataclasses.asdict(run.now())} if is_it else {})}

    return command


class Display(LiveBar):
    """Shows how far a run is on a console, as often as it is told."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console, over="goes on", clock=clock)

    def show(self, progress: Progress, best: str) -> None:
        """Bring it up to date."""
        done = progress.evaluations - progress.in_flight - progress.ready
        facts = ", ".join(filter(None, [*_facts(progress), best]))
        self.bring_up_to_date(progress.strategy, done, progress.budget, facts, progress.message)
        self.line_if_due(lambda: f"{progress.strategy}: {done} evaluations, {facts}")


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


def _summary(progress: Progress, experiment: Experiment, journal: str) -> list[str]:
    """What is said at the end."""
    how = {RunPhase.ENDED: "ended", RunPhase.PAUSED: "paused"}.get(progress.phase, "left")
    lines = [
        f"experiment {experiment.number} {how}{f': {progress.why}' if progress.why else ''}",
        f"{progress.told} told and {progress.failed} failed in {duration(progress.elapsed_s)}; "
        f"{progress.places} at once, busy {progress.utilisation:.0%} of the time"
        + (f"; {progress.fillers} points filled in" if progress.fillers else ""),
    ]
    with contextlib.suppress(FarmError):
        lines.append(f"best: {best_told(experiment)}")
    lines.append(f"journal {journal}; see farm experiment best, plot, export")
    return lines
