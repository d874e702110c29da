"""`farm experiment run`: run an experiment's closed loop on a farm until it is finished."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import uvloop
from rich.console import Console

from farm.cli import signals
from farm.cli.exits import DONE, INCOMPLETE, INTERRUPTED, VerbFailed, on_this_machine
from farm.cli.options import ANY_FILE, EXISTING_FILE, json_option
from farm.cli.sweep_farm import OpenFarm, Target, farm_options, file_version, open_farm
from farm.errors import FarmError, InvalidInput, ModelNotFound, Unavailable, UnsupportedFeature
from farm.experiment.config.evaluated_model import read_evaluated_model
from farm.experiment.config.reader import read_config
from farm.experiment.host import Experiments
from farm.experiment.loop.evaluators import RemoteEvaluator, fitting_model
from farm.experiment.loop.progress import LoopOptions, LoopProgress
from farm.experiment.loop.run import ClosedLoop, check_end
from farm.experiment.loop.runs import reported
from farm.experiment.loop.seed_files import read_seed_files
from farm.experiment.results.best import best_told
from farm.experiment.session import RunAction, RunCommand
from farm.experiment.state.events import RunPhase
from farm.experiment.state.experiment import Experiment
from farm.http1.access import Access
from farm.protocols.aepsych.service import AepsychServer, read_address
from farm.sweep.file.provenance import job_of, restarted_job
from farm.sweep.run.display import LiveBar
from farm.sweep.run.run import Stop
from farm.transports.connection import new_token
from farm.wording import counted, timespan

EXAMPLES = """\b
Examples:
  farm experiment run tune.ini model.py --workers 4     start a farm on this machine
  farm experiment run tune.ini --to http://node3:4242   use a running farm
  farm experiment run tune.ini model.py --budget 200    continue with a larger budget
  farm experiment run tune.ini model.py --seed-data week.h5
                                                        begin with evaluations that are there
  farm experiment run tune.ini model.py --aepsych 127.0.0.1:5555
                                                        let AEPsych clients query and ask
"""

SHOW_EVERY_S = 0.25

Served = tuple[Access, str, int]
"""Access rules, host and port of the AEPsych server."""


@click.command(epilog=EXAMPLES)
@click.argument("config", type=EXISTING_FILE)
@farm_options
@click.option(
    "-o",
    "--journal",
    type=ANY_FILE,
    metavar="FILE",
    help="File that stores the experiment; run again with it to continue.  [default: CONFIG with "
    "the ending .db]",
)
@click.option(
    "--new",
    is_flag=True,
    help="Start a new experiment even if the journal has one of this CONFIG to continue.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Continue even if the model has changed since the experiment began.",
)
@click.option(
    "--in-flight",
    type=click.IntRange(min=1),
    metavar="N",
    help="Points to evaluate at once; overrides CONFIG's section [farm].",
)
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    metavar="N",
    help="Total number of evaluations; overrides CONFIG's section [farm].",
)
@click.option(
    "--seed-data",
    multiple=True,
    metavar="FILE",
    help="Sweep file, such as an exported record or experiment, whose evaluations a new experiment "
    "begins with; may be repeated, overrides CONFIG's section [farm].",
)
@click.option(
    "--aepsych",
    metavar="HOST:PORT",
    help="Serve AEPsych clients at this address; they can ask and query the same experiment.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Allow an --aepsych address that other machines can reach; anyone there can connect.",
)
@json_option("Print the final state as a JSON object to stdout.")
def run(
    config: Path,
    target: Target,
    journal: Path | None,
    aepsych: str | None,
    insecure: bool,
    as_json: bool,
    **asked: Any,
) -> int:
    """Run the experiment of CONFIG: ask for points, evaluate them on a farm, tell the outcomes.

    CONFIG is an AEPsych configuration with a section [farm], which names the model and maps its
    inputs and outputs. The first Ctrl-C waits for the points in flight, a second one exits at once.
    In both cases the same command continues the experiment.
    """
    text = _text_of(config)
    model = read_evaluated_model(read_config(text))
    served = None
    if aepsych is not None:
        access = Access(None if insecure else new_token())
        served = (access, *read_address(aepsych, insecure=insecure))
    journal = journal or config.with_suffix(".db")
    target, kills = _limited(target, model.time_limit_s)
    with contextlib.ExitStack() as stack:
        experiments = stack.enter_context(_kept(journal))
        folder = Path() if asked["seed_data"] else config.parent
        closed = _Closed(experiments, text, _RunOptions(**asked, seed_folder=folder))
        if not (as_json or served) and closed.is_over(file_version(target)):
            return DONE
        farm = stack.enter_context(open_farm(target, journal, model.name))
        try:
            with signals.restored():
                return uvloop.run(closed.go(farm, served, kills=kills, as_json=as_json))
        except (InvalidInput, ModelNotFound, Unavailable, UnsupportedFeature) as error:
            # The request is wrong, not the models. A ClickException makes `open_farm` delete the
            # models' logs.
            raise VerbFailed(error) from error
        except KeyboardInterrupt:  # before any point was in flight
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
    """Return the target with the time limit of [farm], and whether the farm enforces that limit.

    Only a farm that serves the models itself can: it kills the model process.
    """
    if time_limit_s is None or not target.models or target.dask:
        return target, False
    least_s = min(filter(None, (time_limit_s, target.time_limit_s)))
    return dataclasses.replace(target, time_limit_s=least_s), True


@contextlib.contextmanager
def _kept(journal: Path) -> Iterator[Experiments]:
    """Open a journal's experiments and lock the journal for the block. Raises Unavailable."""
    experiments = Experiments(journal)
    with on_this_machine():
        uvloop.run(experiments.start())
    try:
        yield experiments
    finally:
        uvloop.run(experiments.stop())


@dataclasses.dataclass(frozen=True, slots=True)
class _RunOptions:
    """The options of the command line.

    seed_data: replaces that of [farm]; seed_folder: the folder that its paths are relative to.
    """

    new: bool
    resume: bool
    in_flight: int | None
    budget: int | None
    seed_data: Sequence[str]
    seed_folder: Path


class _Closed:
    """One run of the closed loop, with its signals, display and AEPsych server."""

    def __init__(self, experiments: Experiments, text: str, asked: _RunOptions) -> None:
        self._experiments = experiments
        self._asked = asked
        self._config = read_config(text)
        self._model = read_evaluated_model(self._config)
        self._continued = self._to_continue(new=asked.new)
        self._stop = Stop()
        self._console = Console(stderr=True)

    @property
    def _budget(self) -> int | None:
        return self._asked.budget or self._model.budget

    def is_over(self, version: str) -> bool:
        """Whether the experiment to continue has ended and nothing is left to do; says so.

        version: that of the model, which ends the experiment only if it evaluated the points; ""
        if it is not known without starting it.
        """
        if self._continued is None:
            return False
        experiment = self._experiments.experiments[self._continued]
        if (
            not version
            or version != experiment.loop.model_version
            or not self._has_ended(experiment)
        ):
            return False
        self._say(self._end_of(experiment))
        return True

    def _to_continue(self, *, new: bool) -> int | None:
        """Return the number of the last experiment with the same configuration, if it continues.

        With --new it does so only in a job that has begun it and was requeued since.
        """
        known = self._experiments.experiments
        same = [n for n, e in known.items() if e.config.text == self._config.text]
        if not same or (new and not (restarted_job() == known[same[-1]].loop.job != "")):
            return None
        return same[-1]

    def _has_ended(self, experiment: Experiment) -> bool:
        """Whether the loop would request no point and has recorded its end."""
        if experiment.loop.phase is not RunPhase.ENDED or experiment.loop.evaluating:
            return False
        if self._budget is not None and experiment.loop.evaluations >= self._budget:
            return True
        return experiment.still_wanted() == 0

    def _end_of(self, experiment: Experiment) -> str:
        which = f"experiment {experiment.number} in {self._experiments.db_name}"
        if experiment.finished:
            return f"{which} has this configuration and is finished; --new starts another"
        return (
            f"{which} has this configuration and has spent its budget of {self._budget} "
            "evaluations; --budget continues it, --new starts another"
        )

    async def go(self, farm: OpenFarm, served: Served | None, *, kills: bool, as_json: bool) -> int:
        """Run the loop, print a summary and return the exit status."""
        try:
            evaluator = RemoteEvaluator(farm.client, farm.reconnect)
            async with self._served(served):
                number = await self._number(evaluator)
                experiment = self._experiments.experiments[number]
                asked = self._asked
                options = LoopOptions(asked.in_flight, asked.budget, kills, job_of())
                run = ClosedLoop(self._experiments, number, evaluator, options)
                ended = self._has_ended(experiment)
                if not ended:
                    await run.begin()
                    self._experiments.accept_commands(_StatusOnly(run, number))
                    async with reported(run, self._experiments, number, evaluator):
                        await self._watched(run, experiment)
            if self._stop.at_once:
                farm.hurry()
            progress = run.now()
        finally:
            await self._experiments.stop()
        if as_json:
            click.echo(json.dumps(dataclasses.asdict(progress)))
        for line in () if ended else _summary(progress, experiment, self._experiments.db_name):
            self._say(line)
        if experiment.loop.phase is RunPhase.ENDED:
            return DONE
        return INTERRUPTED if self._stop.asked else INCOMPLETE

    async def _number(self, farm: RemoteEvaluator) -> int:
        """Return the number of the experiment to run.

        That is the last one with the same configuration, or a new one, whose model is checked.
        """
        known, journal = self._experiments.experiments, self._experiments.db_name
        if self._continued is None:
            # Check before creating the experiment, so that a wrong configuration adds none.
            check_end(self._model, self._config, self._asked.budget)
        bound = await fitting_model(self._model, farm)
        if self._continued is not None:
            experiment = known[self._continued]
            self._check_version(experiment, bound.info.version)
            if self._has_ended(experiment):
                self._say(self._end_of(experiment))
            else:
                told = f"{experiment.told} told"
                self._say(f"continues experiment {self._continued} in {journal}: {told}")
            if self._asked.seed_data:
                self._say(
                    "--seed-data is not read: only a new experiment begins with it, see --new"
                )
            return self._continued
        files = self._asked.seed_data or self._model.seed_data
        given = await asyncio.to_thread(
            read_seed_files, files, self._asked.seed_folder, self._config, bound
        )
        earlier = list(known.values())
        number = await self._experiments.set_up(self._config.text, given)
        if number and all(e.config.text != self._config.text for e in earlier):
            self._say(
                f"starts experiment {number} in {journal}: earlier ones have another configuration"
            )
        return number

    def _check_version(self, experiment: Experiment, version: str) -> None:
        """Raise InvalidInput if another version of the model evaluated the experiment's points."""
        then = experiment.loop.model_version
        if self._asked.resume or not version or not then or version == then:
            return
        raise InvalidInput(
            f"experiment {experiment.number} in {self._experiments.db_name} was evaluated by "
            f"version {then} of the model {self._model.name!r}, this is version {version}: its "
            "file, a package that it imports or Python has changed. --resume continues all the "
            "same, --new starts another experiment"
        )

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextlib.asynccontextmanager
    async def _served(self, served: Served | None) -> AsyncIterator[None]:
        """Serve AEPsych clients for the block, if an address is given."""
        if served is None:
            yield
            return
        access, host, port = served
        server = AepsychServer(self._experiments, access=access)
        with on_this_machine():
            self._say(f"AEPsych's clients at {await server.start(host, port)}")
        try:
            yield
        finally:
            await server.stop(0.0)

    async def _watched(self, run: ClosedLoop, experiment: Experiment) -> None:
        going = asyncio.create_task(run.go())
        for warning in experiment.warnings:
            self._say(warning)
        told = False
        with LoopDisplay(self._console) as display, signals.stopped_by_signals(self._stop):
            while not going.done():
                if self._stop.at_once:
                    going.cancel()
                elif self._stop.asked and not told:
                    told = True
                    flying = run.now().in_flight
                    what = f"{counted(flying, 'point')} in flight" if flying else "a point's choice"
                    self._say(f"waiting for {what}; Ctrl-C again to exit at once")
                    run.pause("interrupted")
                display.show(run.now(), best_text(experiment))
                await asyncio.wait([going], timeout=SHOW_EVERY_S)
            display.show(run.now(), best_text(experiment))
        with contextlib.suppress(asyncio.CancelledError):
            await going


class _StatusOnly:
    """Answers clients' commands for the loop with its status, as the terminal controls the loop."""

    def __init__(self, run: ClosedLoop, number: int) -> None:
        self._run = run
        self._number = number

    async def command(self, command: RunCommand, known: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the status; refuse other commands."""
        if command.action is not RunAction.STATUS:
            raise UnsupportedFeature(
                f"{command.action} is for `farm serve MODEL --aepsych HOST:PORT`; here "
                f"`farm experiment run` runs experiment {self._number} to its end, and Ctrl-C "
                "pauses it"
            )
        if command.experiment != self._number:
            return known
        return {**known, "loop": dataclasses.asdict(self._run.now())}


class LoopDisplay(LiveBar):
    """Shows the progress of a run on a console; call `show` with each update."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, over="goes on")

    def show(self, progress: LoopProgress, best: str) -> None:
        """Update the display."""
        done = progress.evaluations - progress.in_flight - progress.ready
        failed = f"{progress.failed} failed" if progress.failed else ""
        facts = ", ".join(filter(None, [f"{progress.in_flight} in flight", failed, best]))
        self.bring_up_to_date(progress.strategy, done, progress.budget, facts, progress.message)
        if self.is_line_due(progress.elapsed_s):
            self.say(f"{progress.strategy}: {counted(done, 'evaluation')}, {facts}")


def best_text(experiment: Experiment) -> str:
    """Return the best outcome so far as text, or "" if the experiment has no best point."""
    try:
        outcomes = best_told(experiment).outcomes
    except InvalidInput:
        return ""
    return f"best {next(iter(outcomes.values())):.6g}"


def _summary(progress: LoopProgress, experiment: Experiment, journal: str) -> list[str]:
    """Return the lines to print at the end of a run."""
    how = {RunPhase.ENDED: "ended", RunPhase.PAUSED: "paused"}.get(progress.phase, "left")
    lines = [
        f"experiment {experiment.number} {how}{f': {progress.why}' if progress.why else ''}",
        f"{progress.told} told and {progress.failed} failed in {timespan(progress.elapsed_s)}; "
        f"{progress.places} at once, busy {progress.utilisation:.0%} of the time"
        + (f"; {counted(progress.fillers, 'point')} filled in" if progress.fillers else ""),
    ]
    with contextlib.suppress(FarmError):
        lines.append(f"best: {best_told(experiment)}")
    lines.append(f"journal {journal}; see farm experiment best, plot, export")
    return lines
