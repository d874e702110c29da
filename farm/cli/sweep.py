"""`farm sweep`: evaluate a model at many points and write the results to one HDF5 file."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from farm.call import Hints
from farm.cli import sweep_read
from farm.cli.signals import stopped_by_signals, terminable
from farm.cli.sweep_farm import OpenFarm, Target, farm_options, kept_target, open_farm
from farm.client import Client
from farm.errors import FarmError
from farm.sweep.design.cost import COLUMN, CostRule, parse_cost
from farm.sweep.design.errors import SweepError
from farm.sweep.design.parameters import parse_parameter
from farm.sweep.design.plan import AUTO, ORDERS, Plan
from farm.sweep.design.points import parse_design
from farm.sweep.design.prepare import SweepRequest, check_model, longer_plan, make_plan
from farm.sweep.file.journal import PointStatus
from farm.sweep.file.progress import Progress, duration
from farm.sweep.file.provenance import command_line, provenance
from farm.sweep.file.reading import known_of
from farm.sweep.file.signature import signed
from farm.sweep.file.store import COMPLETE, Store
from farm.sweep.order.given import extended, with_costs
from farm.sweep.run.display import Display, line
from farm.sweep.run.in_flight import PointInFlight
from farm.sweep.run.model_costs import with_asked_costs
from farm.sweep.run.probe import probe
from farm.sweep.run.run import Rules, Run, Stop, pending_points

DONE, FAILURES, INCOMPLETE = 0, 1, 3
"""Exit statuses of a sweep; 2 is a mistake on the command line, as in all commands."""

EXAMPLES = """\b
Examples:
  farm sweep model.py:Beam --param 'E=1e9:1e11' --param 'load=log:1:1e3' \\
      --design sobol:256 --seed 7 -o beam.h5     serve the model on this machine and sweep it
  farm sweep --to http://127.0.0.1:4242 --model forward \\
      --param 'k=log:1e-3:1' --param 'q=0:10' --fix mesh=2 --design lhs:100 -o sweep.h5
  farm sweep model.py --param 'x=1,2,3' --param 'y=0:1' --design grid:5 -o grid.h5
  farm sweep model.py --design file:points.csv -o table.h5
  farm sweep model.py --param n=int:10:500 --design lhs:200 --cost 'n**3' -o cost.h5
  farm sweep --resume sweep.h5                   continue a sweep that stopped for any reason
  farm sweep --resume sweep.h5 --retry-failed
  farm sweep watch sweep.h5 && farm sweep plot sweep.h5

\b
Parameters:  k=0:10   k=log:1e-3:1   k=normal:MEAN:SD   k=int:1:10   k=choice:1,2,4
             k is an input; x[2] one entry of input x; x all entries; any other name a config key
Designs:     grid:10,5   random:100   lhs:100[,random-cd]   sobol:256   halton:100   file:FILE
Costs:       'n**3', of inputs and config keys;  column:NAME of a table;  sweep:FILE.h5, run times
Exit status: 0 all points done, 1 some points failed, 2 wrong command line, 3 sweep not complete
"""


class _SweepGroup(click.Group):
    """A command group that runs the subcommand `run` if the command line names none."""

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
    cls=_SweepGroup,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def sweep() -> None:
    """Evaluate a model at many points and write the results to one HDF5 file.

    Without a subcommand, as in `farm sweep model.py --param ...`, `farm sweep` means `farm sweep
    run`: see `farm sweep run --help` for all options.
    """


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


def _rule_options(command: Callable[..., Any]) -> Callable[..., Any]:
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


_trust_option = click.option(
    "--trust", is_flag=True, help="Run the model that FILE names even if you did not write FILE."
)


@sweep.command(epilog=EXAMPLES)
@farm_options
@click.option("--model", help="Name of the model; optional if there is only one.")
@click.option(
    "--param",
    "params",
    multiple=True,
    metavar="NAME=SPEC",
    help="Parameter to vary, with its range; repeatable.",
)
@click.option(
    "--fix",
    "fixes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Input or config key to hold fixed, with its value; repeatable.",
)
@click.option("--config", default="{}", help="Config of the model, as a JSON object.")
@click.option("--design", default="", metavar="DESIGN", help="Rule for the points; see Designs.")
@click.option(
    "--cost",
    metavar="COST",
    callback=lambda ctx, parameter, text: None if text is None else parse_cost(text),
    help="Expected run time of a point in any unit, to run the longest first; see Costs. Default: "
    "the model's method cost if it has one, otherwise learned from the first points.",
)
@click.option(
    "--order",
    type=click.Choice(ORDERS),
    default=AUTO,
    show_default=True,
    help="Order of the points. auto: a mixed first fifth, then the longest first if their cost is "
    "known; shuffled: mixed; given: as in the table or grid.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the design. Default: random.")
@click.option("--seed-key", default="", metavar="KEY", help="Config key for a seed per point.")
@click.option(
    "--gradient",
    "gradients",
    multiple=True,
    metavar="OUTPUT",
    help="Also compute the gradients of this output, like u, or of one entry, like u[3]; "
    "repeatable.",
)
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Output file.")
@click.option("--title", default="", help="Title to store in the file. Default: model and design.")
@click.option("--notes", default="", help="Notes to store in the file.")
@click.option("--gzip", is_flag=True, help="Compress the file; random access becomes slower.")
@click.option("--no-probe", is_flag=True, help="Skip the test evaluation before the sweep.")
@click.option(
    "--resume",
    "resumed",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Continue the sweep in this file, on the farm it used unless you name another.",
)
@click.option("--retry-failed", is_flag=True, help="With --resume: also retry failed points.")
@_trust_option
@_rule_options
def run(
    target: Target,
    model: str | None,
    params: tuple[str, ...],
    fixes: tuple[str, ...],
    config: str,
    design: str,
    cost: CostRule | None,
    order: str,
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
    """Sweep MODEL, which --workers processes serve on this machine, or a model of the farm --to."""
    if resumed is not None:
        if params or fixes or design or cost or order != AUTO or out is not None:
            raise click.UsageError(
                "--resume continues a sweep as planned; omit --param, --fix, --design, --cost, "
                "--order and --out"
            )
        return _resume(resumed, target, rules, retry_failed=retry_failed, trust=trust)
    if out is None:
        raise click.UsageError("missing the output file: -o sweep.h5")
    if retry_failed:
        raise click.UsageError("--retry-failed needs --resume FILE")
    if not design:
        raise click.UsageError("missing the design: --design sobol:256 (or grid:10, lhs:100, ...)")
    if cost is not None and order != AUTO:
        raise click.UsageError(
            f"--cost is for --order auto, which runs the longest first; "
            f"omit it with --order {order}"
        )
    seed = secrets.randbits(31) if seed is None else seed
    request = SweepRequest(
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
        order=order,
        cost_column=cost.text if cost is not None and cost.kind == COLUMN else "",
    )
    Store.refuse_to_overwrite(out)
    with terminable(), open_farm(target, out) as farm:
        name = _the_model(farm.client, model)
        plan = make_plan(request, lambda config: farm.client.describe(name, config))
        hints = _hints(plan, rules)
        plan = (
            with_asked_costs(plan, farm.client, hints) if cost is None else with_costs(plan, cost)
        )
        for note in request.design.notes:
            click.echo(f"note: {note}", err=True)
        click.echo(f"{plan.size} points of {name}, seed {seed}, into {out}", err=True)
        started = [] if no_probe else probe(plan, farm.client, _hints(plan, rules))
        store = Store.create(out, plan)
        return _session(store, farm, rules, started=started)


@sweep.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@farm_options
@click.option("--points", required=True, type=click.IntRange(min=1), help="New number of points.")
@_trust_option
@_rule_options
def extend(
    file: Path,
    target: Target,
    points: int,
    trust: bool,
    **rules: Any,
) -> int:
    """Extend a sobol, halton or random sweep to --points points and run the new ones.

    Other designs cannot be extended; the error message gives the reason.
    """
    with contextlib.closing(_Opened(file)) as opened:
        store = opened.store
        plan = extended(longer_plan(store.plan, points))
        for note in plan.design.notes:
            click.echo(f"note: {note}", err=True)
        target = _chosen(target, plan, file, trust=trust)
        store.extend(plan)
        with terminable(), open_farm(target, file) as farm:
            return _session(opened.handed_over(farm.client), farm, rules)


@sweep.command()
@click.argument("file", type=click.Path(path_type=Path))
@farm_options
@click.option(
    "--point",
    required=True,
    type=click.IntRange(min=0),
    metavar="N",
    help="Index of the point, from 0.",
)
@_trust_option
def rerun(
    file: Path,
    target: Target,
    point: int,
    trust: bool,
) -> int:
    """Evaluate one point again with the same inputs and print all details. FILE is not changed."""
    plan, known = known_of(file)
    if point >= plan.size:
        raise click.UsageError(f"--point {point}: {file} has the points 0 to {plan.size - 1}")
    call = plan.calls(point)[0]
    for tensor, array in zip(plan.info.inputs, call.inputs, strict=True):
        click.echo(f"{tensor.name} = {np.array2string(array, threshold=60)}")
    click.echo(f"config = {call.config}")
    click.echo(f"so far: {PointStatus(int(known.status[point])).name.lower()}")
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
    """An open sweep. `close` leaves it unchanged unless a session took it over and closes it."""

    def __init__(self, path: Path) -> None:
        self.store = Store.resume(path)
        self._ours = True

    def handed_over(self, client: Client) -> Store:
        """Return the store; the caller must close it. Raises SweepError if the model differs."""
        plan = self.store.plan
        check_model(plan, client.describe(plan.info.name, plan.config_of(0)))
        self._ours = False
        return self.store

    def close(self) -> None:
        """Leave the store unchanged, unless it was handed over."""
        if self._ours:
            self.store.leave()


def _resume(
    path: Path, target: Target, rules: dict[str, Any], *, retry_failed: bool, trust: bool
) -> int:
    with contextlib.closing(_Opened(path)) as opened:
        store = opened.store
        if not len(pending_points(store, retry_failed=retry_failed)):
            failed = store.plan.size - store.known.count(PointStatus.DONE)
            click.echo(f"{path} is complete, {failed} points failed", err=True)
            return FAILURES if failed else DONE
        target = _chosen(target, store.plan, path, trust=trust)
        with terminable(), open_farm(target, path) as farm:
            store = opened.handed_over(farm.client)
            return _session(store, farm, rules, retry_failed=retry_failed)


def _signed(facts: dict[str, str]) -> dict[str, str]:
    try:
        return signed(facts)
    except OSError as error:
        click.echo(f"note: --resume will need the model or --trust, as {error}", err=True)
        return facts


def _chosen(target: Target, plan: Plan, path: Path, *, trust: bool) -> Target:
    """Return the farm that the command line names, or the one that the file names."""
    if target.models or target.to:
        return target
    return kept_target(plan.provenance, path, trust=trust)


def _session(
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
        hints=_hints(plan, options),
    )


def _hints(plan: Plan, options: dict[str, Any]) -> Hints:
    return Hints(f"sweep-{plan.run_id[:8]}", options["priority"], chain="")


def _the_model(client: Client, name: str | None) -> str:
    models = client.expect_models()
    if name is None and len(models) == 1:
        return models[0]
    if name is None or name not in models:
        problem = "specify --model" if name is None else f"no model {name!r}"
        raise click.UsageError(f"{problem}; the farm has: {', '.join(models) or 'none'}")
    return name


def _fixed(text: str) -> tuple[str, Any]:
    """Return name and value of `mesh=2`, `x=1,2,3`, `solver=gmres`, `options={"tol": 1e-3}`."""
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
        raise click.UsageError(f"--config {text!r} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise click.UsageError(f"--config {text!r} is not a JSON object")
    return value
