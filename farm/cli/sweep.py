"""`farm sweep`: many evaluations into one HDF5 file that survives whatever happens."""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from farm.call import Hints
from farm.cli import sweep_read
from farm.cli.sweep_farm import OpenFarm, Target, farm_options, kept_target, open_farm
from farm.client import Client
from farm.errors import FarmError
from farm.sweep.display import Display, line
from farm.sweep.errors import SweepError
from farm.sweep.flight import Flight
from farm.sweep.journal import Status
from farm.sweep.parameters import parse_parameter
from farm.sweep.plan import Plan
from farm.sweep.points import parse_design
from farm.sweep.prepare import Request, check_model, longer_plan, make_plan
from farm.sweep.probe import probe
from farm.sweep.progress import Progress, duration
from farm.sweep.provenance import command_line, provenance
from farm.sweep.read import known_of
from farm.sweep.run import Rules, Run, Stop, pending_points
from farm.sweep.signature import signed
from farm.sweep.store import COMPLETE, Store

DONE, FAILURES, INCOMPLETE = 0, 1, 3
"""Exit statuses of a sweep; 2 is a mistake on the command line, as in all commands."""

EXAMPLES = """\b
Examples:
  farm sweep model.py:Beam --param 'E=1e9:1e11' --param 'load=log:1:1e3' \\
      --design sobol:256 --seed 7 -o beam.h5     serve the model here and sweep it
  farm sweep --to http://127.0.0.1:4242 --model forward \\
      --param 'k=log:1e-3:1' --param 'q=0:10' --fix mesh=2 --design lhs:100 -o sweep.h5
  farm sweep model.py --param 'x=1,2,3' --param 'y=0:1' --design grid:5 -o grid.h5
  farm sweep model.py --design file:points.csv -o table.h5
  farm sweep --resume sweep.h5                   whatever stopped it
  farm sweep --resume sweep.h5 --retry-failed
  farm sweep watch sweep.h5 && farm sweep plot sweep.h5

\b
Parameters:  k=0:10   k=log:1e-3:1   k=normal:MEAN:SD   k=int:1:10   k=choice:1,2,4
             k an input; x[2] an entry of input x; x every entry; any other name a config key
Designs:     grid:10,5   random:100   lhs:100[,random-cd]   sobol:256   halton:100   file:FILE
Exit status: 0 all points done, 1 some failed, 2 mistake on the command line, 3 not complete
"""


class _Group(click.Group):
    """A group whose verb is `run` when none is said."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SweepError as error:
            if error.detail:
                click.echo(error.detail.rstrip(), err=True)
            raise click.ClickException(str(error)) from error
        except BrokenPipeError:
            raise
        except OSError as error:
            raise click.ClickException(str(error)) from error


@click.group(
    cls=_Group,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def sweep() -> None:
    """Evaluate a model at many points into one HDF5 file.

    Without a verb, as in `farm sweep model.py --param ...`, it runs: see `farm sweep run --help`
    for all options.
    """


def _limit(
    ctx: click.Context, parameter: click.Parameter, text: str | None
) -> Callable[[int], int] | None:
    """From `10` or `5%` to how many that is of a number of points."""
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


def _rule_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--priority", default=0, help="Higher goes first in the farm."),
        click.option(
            "--in-flight",
            type=click.IntRange(min=1),
            help="Points in the farm at once. Default: enough for its workers.",
        ),
        click.option(
            "--max-hours", type=float, metavar="H", help="Give no more points after so long."
        ),
        click.option(
            "--max-failures",
            metavar="N|P%",
            callback=_limit,
            help="Give no more points once more than N, or P percent of all, have failed.",
        ),
    ):
        command = option(command)
    return command


_trust_option = click.option(
    "--trust", is_flag=True, help="Run the model that FILE names although FILE is not yours."
)


@sweep.command(epilog=EXAMPLES)
@farm_options
@click.option("--model", help="Name of the model; not needed when there is only one.")
@click.option("--param", "params", multiple=True, metavar="NAME=SPEC", help="What varies.")
@click.option("--fix", "fixes", multiple=True, metavar="NAME=VALUE", help="What does not.")
@click.option("--config", default="{}", help="The model's config, a JSON object.")
@click.option("--design", default="", metavar="DESIGN", help="Which points; see the examples.")
@click.option("--seed", type=click.IntRange(min=0), help="Of the design. Default: a random one.")
@click.option("--seed-key", default="", metavar="KEY", help="Config key that gets a seed a point.")
@click.option(
    "--gradient",
    "gradients",
    multiple=True,
    metavar="OUTPUT",
    help="Also the gradients of an output, like u, or of one entry, like u[3].",
)
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="The file.")
@click.option("--title", default="", help="A title for the file. Default: model and design.")
@click.option("--notes", default="", help="Whatever should be kept with the results.")
@click.option("--gzip", is_flag=True, help="Compress the file (slower in random order).")
@click.option("--no-probe", is_flag=True, help="Begin without evaluating one point first.")
@click.option(
    "--resume",
    "resumed",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Continue this sweep; its farm is the one it had unless another is given.",
)
@click.option("--retry-failed", is_flag=True, help="With --resume: also the points that failed.")
@_trust_option
@_rule_options
def run(
    target: Target,
    model: str | None,
    params: tuple[str, ...],
    fixes: tuple[str, ...],
    config: str,
    design: str,
    seed: int | None,
    seed_key: str,
    gradients: tuple[str, ...],
    out: Path | None,
    title: str,
    notes: str,
    gzip: bool,
    no_probe: bool,
    resumed: Path | None,
    retry_failed: bool,
    trust: bool,
    **rules: Any,
) -> int:
    """Run a sweep: MODEL served here by --workers processes, or the farm that --to names."""
    if resumed is not None:
        if params or fixes or design or out is not None:
            raise click.UsageError("--resume continues a sweep as it was planned: only FILE")
        return _resume(resumed, target, rules, retry_failed=retry_failed, trust=trust)
    if out is None:
        raise click.UsageError("say where the results go: -o sweep.h5")
    if retry_failed:
        raise click.UsageError("--retry-failed goes with --resume FILE")
    if not design:
        raise click.UsageError("say which points: --design sobol:256 (grid:10, lhs:100, ...)")
    seed = secrets.randbits(31) if seed is None else seed
    request = Request(
        design=parse_design(design),
        seed=seed,
        spreads=_unique(map(parse_parameter, params), "--param"),
        fixes=_unique(map(_fixed, fixes), "--fix"),
        config=_json_object(config),
        gradients=gradients,
        seed_key=seed_key,
        title=title,
        gzip=gzip,
        provenance=_signed(provenance(command_line(), target=target.to_json(), notes=notes)),
    )
    Store.refuse_to_overwrite(out)
    with _terminable(), open_farm(target, out) as farm:
        name = _the_model(farm.client, model)
        plan = make_plan(request, lambda config: farm.client.describe(name, config))
        for note in request.design.notes:
            click.echo(f"note: {note}", err=True)
        click.echo(f"{plan.size} points of {name}, seed {seed}, into {out}", err=True)
        flights = [] if no_probe else probe(plan, farm.client)
        store = Store.create(out, plan)
        return _session(store, farm, rules, flights=flights)


@sweep.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@farm_options
@click.option("--points", required=True, type=click.IntRange(min=1), help="How many there will be.")
@_trust_option
@_rule_options
def extend(
    file: Path,
    target: Target,
    points: int,
    trust: bool,
    **rules: Any,
) -> int:
    """Continue the sequence of a sobol, halton or random sweep to --points points, and run them.

    Other designs cannot be continued, and say why.
    """
    with contextlib.closing(_Opened(file)) as opened:
        store = opened.store
        plan = longer_plan(store.plan, points)
        for note in plan.design.notes:
            click.echo(f"note: {note}", err=True)
        target = _chosen(target, plan, file, trust=trust)
        store.extend(plan)
        with _terminable(), open_farm(target, file) as farm:
            return _session(opened.handed_over(farm.client), farm, rules)


@sweep.command()
@click.argument("file", type=click.Path(path_type=Path))
@farm_options
@click.option("--point", required=True, type=click.IntRange(min=0), help="Its index, from 0.")
@_trust_option
def rerun(
    file: Path,
    target: Target,
    point: int,
    trust: bool,
) -> int:
    """Evaluate one point again with the same inputs, and show all of it; FILE stays as it is."""
    plan, known = known_of(file)
    if point >= plan.size:
        raise click.UsageError(f"--point {point}: {file} has the points 0 to {plan.size - 1}")
    call = plan.calls(point)[0]
    for tensor, array in zip(plan.info.inputs, call.inputs, strict=True):
        click.echo(f"{tensor.name} = {np.array2string(array, threshold=60)}")
    click.echo(f"config = {call.config}")
    click.echo(f"so far: {Status(int(known.status[point])).name.lower()}")
    chosen = _chosen(target, plan, file, trust=trust)
    with open_farm(chosen, file.with_name(f"{file.name}.rerun")) as farm:
        try:
            result = farm.client.submit(call).result()
        except FarmError as error:
            click.echo(error.detail.rstrip() or "(no traceback)", err=True)
            click.echo(f"{type(error).__name__}: {error}", err=True)
            return FAILURES
    for tensor, array in zip(plan.info.outputs, result.outputs, strict=True):
        click.echo(f"{tensor.name} = {np.array2string(array, threshold=60)}")
    click.echo(f"({plan.info.name} ran {duration(result.run_time_s)} on {result.worker})")
    return DONE


for command in sweep_read.COMMANDS:
    sweep.add_command(command)


class _Opened:
    """A sweep that is left as it is unless it is handed over to a session, which closes it."""

    def __init__(self, path: Path) -> None:
        self.store = Store.resume(path)
        self._ours = True

    def handed_over(self, client: Client) -> Store:
        """The store; whoever gets it closes it. Raises SweepError when the model is another."""
        plan = self.store.plan
        check_model(plan, client.describe(plan.info.name, plan.config_of(0)))
        self._ours = False
        return self.store

    def close(self) -> None:
        """Leave the store if it is still ours."""
        if self._ours:
            self.store.leave()


def _resume(
    path: Path, target: Target, rules: dict[str, Any], *, retry_failed: bool, trust: bool
) -> int:
    with contextlib.closing(_Opened(path)) as opened:
        store = opened.store
        if not len(pending_points(store, retry_failed=retry_failed)):
            failed = store.plan.size - store.known.count(Status.DONE)
            click.echo(f"{path} is complete, {failed} points failed", err=True)
            return FAILURES if failed else DONE
        target = _chosen(target, store.plan, path, trust=trust)
        with _terminable(), open_farm(target, path) as farm:
            store = opened.handed_over(farm.client)
            return _session(store, farm, rules, retry_failed=retry_failed)


def _signed(facts: dict[str, str]) -> dict[str, str]:
    try:
        return signed(facts)
    except OSError as error:
        click.echo(f"note: --resume will need the model or --trust, as {error}", err=True)
        return facts


def _chosen(target: Target, plan: Plan, path: Path, *, trust: bool) -> Target:
    """The farm that the command line names, or else the one that the file names."""
    if target.models or target.to:
        return target
    return kept_target(plan.provenance, path, trust=trust)


def _session(
    store: Store,
    farm: OpenFarm,
    rules: dict[str, Any],
    *,
    flights: Sequence[Flight] = (),
    retry_failed: bool = False,
) -> int:
    """Run what is open of a sweep and say how it ended."""
    stop = Stop()
    with Display() as display, _stopped_by_signals(stop):
        told = False

        def watch(progress: Progress) -> None:
            nonlocal told
            if stop.asked and not told:
                told = True
                display.say(
                    f"stopping: waiting for {progress.in_flight} points in flight; "
                    "Ctrl-C again to leave at once"
                )
            display.show(progress)

        try:
            session = Run(
                store,
                farm.client,
                rules=_rules(rules, store, farm.start),
                stop=stop,
                flights=flights,
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
        click.echo(f"what failed: farm sweep failures {path}", err=True)
    if progress.state != COMPLETE:
        click.echo(f"{progress.state}; go on with: farm sweep --resume {path}", err=True)
        return INCOMPLETE
    return FAILURES if progress.unsuccessful else DONE


def _rules(options: dict[str, Any], store: Store, start: int) -> Rules:
    plan, hours, limit = store.plan, options["max_hours"], options["max_failures"]
    return Rules(
        max_failures=None if limit is None else limit(plan.size),
        max_s=None if hours is None else 3600 * hours,
        in_flight=options["in_flight"],
        start=start,
        hints=Hints(client=f"sweep-{plan.run_id[:8]}", priority=options["priority"]),
    )


def _the_model(client: Client, name: str | None) -> str:
    models = client.expect_models()
    if name is None and len(models) == 1:
        return models[0]
    if name is None or name not in models:
        asked = "say which --model you mean" if name is None else f"no model {name!r}"
        raise click.UsageError(f"{asked}; there are: {', '.join(models) or 'none'}")
    return name


def _fixed(text: str) -> tuple[str, Any]:
    """Name and value of `mesh=2`, `x=1,2,3`, `solver=gmres`, `options={"tol": 1e-3}`."""
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise SweepError(f"--fix {text!r}: expected NAME=VALUE")
    for candidate in (value, f"[{value}]"):
        with contextlib.suppress(ValueError):
            return name.strip(), json.loads(candidate)
    return name.strip(), value


def _unique(pairs: Iterator[tuple[str, Any]], option: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise SweepError(f"{option} {name} is given twice")
        found[name] = value
    return found


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"--config {text!r} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise click.UsageError(f"--config {text!r} is no JSON object")
    return value


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the block like Ctrl-C, so that served models and files are put away."""
    with _handlers({signal.SIGTERM: signal.default_int_handler}):
        yield


@contextlib.contextmanager
def _stopped_by_signals(stop: Stop) -> Iterator[None]:
    """Ctrl-C asks to stop, twice at once; SIGTERM and a lost terminal stop at once."""

    def ask(number: int, frame: types.FrameType | None) -> None:
        stop.ask()

    def at_once(number: int, frame: types.FrameType | None) -> None:
        stop.ask_at_once()

    handlers: dict[signal.Signals, Any] = {signal.SIGINT: ask, signal.SIGTERM: at_once}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # ignored: nohup wants it to go on
        handlers[signal.SIGHUP] = at_once
    with _handlers(handlers):
        yield


@contextlib.contextmanager
def _handlers(handlers: dict[signal.Signals, Any]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
