"""`farm sweep`: evaluate a model at many points and write the results to one HDF5 file.

`farm sweep extend` adds points to such a file.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from click.shell_completion import CompletionItem

from farm.cli import sweep_read
from farm.cli.call import only_model
from farm.cli.exits import DONE, FAILURES, VerbFailed
from farm.cli.groups import CommandGroup, no_such_command, similar_to
from farm.cli.options import ANY_FILE
from farm.cli.signals import terminable
from farm.cli.sweep_farm import (
    Target,
    chosen_farm,
    farm_options,
    is_unchanged,
    open_farm,
    sources_of,
    trust_option,
)
from farm.cli.sweep_points import AskedSpace, space_options
from farm.cli.sweep_sensitivity import sensitivity
from farm.cli.sweep_session import rule_options, run_session
from farm.client import Client
from farm.errors import FarmError
from farm.sweep.design.comparison import check_same_model, check_same_plan
from farm.sweep.design.extension import appended_plan, longer_plan
from farm.sweep.design.plan import AUTO, ORDERS, Plan
from farm.sweep.design.points import parse_design
from farm.sweep.design.prepare import SweepRequest, check_model, make_plan
from farm.sweep.errors import SweepError
from farm.sweep.file.claim import Claim
from farm.sweep.file.journal import PointStatus
from farm.sweep.file.provenance import command_line, provenance
from farm.sweep.file.reading import known_of
from farm.sweep.file.signature import signed
from farm.sweep.order.costs import (
    COLUMN,
    CostRule,
    extended,
    parse_cost,
    with_asked_costs,
    with_costs,
)
from farm.sweep.run.in_flight import hints_of, probe
from farm.wording import counted, timespan

USUAL = """\b
Examples:
  farm sweep model.py --param x=0:10 --param y=log:1:9 --design sobol:256 -o sweep.h5
  farm sweep --to farm-run --param x=0:10 --fix y=2 --design grid:50 -o grid.h5
  farm sweep --resume sweep.h5     continue; so does the same command line again
  farm sweep watch sweep.h5 && farm sweep plot sweep.h5

\b
Options that a new sweep needs; the others: farm sweep run --help
  [MODEL] or --to FARM   the model: serve it here, or use a running farm
  --param NAME=SPEC      a parameter to vary: x=0:10   x=log:1e-3:1   x=int:1:10
                         x=1,2,3   x=normal:MEAN:SD   x=scipy:beta:2,5   solver=euler,rk4
  --design DESIGN        its points: grid:10   lhs:100   sobol:256   random:100
                         halton:100   saltelli:64   morris:20   ff   file:points.csv
  -o FILE.h5             the file for the results
"""

EXAMPLES = """\b
Examples:
  farm sweep model.py:Beam --param 'E=1e9:1e11' --param 'load=log:1:1e3' \\
      --design sobol:256 --seed 7 -o beam.h5     serve the model on this machine and sweep it
  farm sweep --to http://127.0.0.1:4242 --model forward \\
      --param 'k=log:1e-3:1' --param 'q=0:10' --fix mesh=2 --design lhs:100 -o sweep.h5
  farm sweep model.py --param 'x=1,2,3' --param 'y=0:1' --design grid:5 -o grid.h5
  farm sweep model.py --design file:points.csv -o table.h5
  farm sweep model.py --param 'a=normal:5:1' --param 'b=log:1:9' --correlation a,b=0.7 \\
      --where 'b < 3*a' --design sobol:128 -o pairs.h5
  farm sweep model.py --param solver=euler,rk4 --param order=int:1:4 \\
      --when 'order: solver == "rk4"' --design sobol:64 -o solvers.h5
  farm sweep extend solvers.h5 --design random:100
  farm sweep model.py --param n=int:10:500 --design lhs:200 --cost 'n**3' -o cost.h5
  farm sweep --resume sweep.h5                   continue a sweep that stopped for any reason; so
                                                 does the same command line again
  farm sweep --resume sweep.h5 --retry-failed
  farm sweep watch sweep.h5 && farm sweep plot sweep.h5

\b
Parameters:  k=0:10   k=log:1e-3:1   k=normal:MEAN:SD   k=int:1:10   k=choice:1,2,4
             k=scipy:beta:2,5   solver=choice:euler,rk4
             k is an input; x[2] one entry of input x; x all entries; any other name a config key
Rules:       --correlation a,b=0.7   --where 'b < 3*a'   --when 'order: solver == "rk4"'
Designs:     grid:10,5   random:100   lhs:100[,random-cd]   sobol:256   halton:100   file:FILE
             for sensitivity: saltelli:64[,first]   morris:20[,LEVELS]   ff
Costs:       'n**3', of inputs and config keys;  column:NAME of a table;  sweep:FILE.h5, run times
Exit status: 0 all points done, 1 some points failed, 3 sweep not complete; more: farm --help
"""


class _SweepGroup(CommandGroup):
    """A command group that runs the subcommand `run` if the command line names none."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            if _is_bare_word(args[0]) and similar_to(args[0], self.commands):
                raise click.UsageError(no_such_command(args[0], self.commands), ctx)
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the completions of a word; options are those of `run`."""
        found = super().shell_complete(ctx, incomplete)
        if not incomplete.startswith("-"):
            return found
        return found + self.commands["run"].shell_complete(ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SweepError as error:
            if error.detail:
                click.echo(error.detail.rstrip(), err=True)
            raise VerbFailed(error) from error


def _is_bare_word(text: str) -> bool:
    """Whether a text is no option, and names no MODEL: these have a dot, a colon or the like."""
    return text.isidentifier() and not Path(text).exists()


@click.group(
    cls=_SweepGroup,
    help=f"Evaluate a model at many points and write the results to one HDF5 file.\n\n{USUAL}",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def sweep() -> None:
    """Mean `farm sweep run` without a subcommand."""


@sweep.command(epilog=EXAMPLES)
@space_options
@click.option("--design", default="", metavar="DESIGN", help="Rule for the points; see Designs.")
@click.option("-o", "--out", type=ANY_FILE, help="Output file.")
@farm_options
@click.option("--model", help="Name of the model; optional if there is only one.")
@click.option("--config", default="{}", help="Config of the model, as a JSON object.")
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
@click.option("--title", default="", help="Title to store in the file. Default: model and design.")
@click.option("--notes", default="", help="Notes to store in the file.")
@click.option("--gzip", is_flag=True, help="Compress the file; random access becomes slower.")
@click.option("--no-probe", is_flag=True, help="Skip the test evaluation before the sweep.")
@click.option(
    "--resume",
    "resumed",
    type=ANY_FILE,
    metavar="FILE",
    help="Continue the sweep in this file, on the farm it used unless you name another.",
)
@click.option(
    "--retry-failed", is_flag=True, help="When a sweep continues: also retry failed points."
)
@click.option(
    "--overwrite",
    is_flag=True,
    help="Start over if the output file has a sweep; the new one replaces it when it begins.",
)
@trust_option
@rule_options
def run(
    target: Target,
    model: str | None,
    asked: AskedSpace,
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
    overwrite: bool,
    trust: bool,
    **rules: Any,
) -> int:
    """Sweep MODEL, which --workers processes serve on this machine, or a model of the farm --to.

    The same command line again continues the sweep in the output file.
    """
    if resumed is not None:
        if asked.is_given or design or cost or order != AUTO or out is not None or overwrite:
            raise click.UsageError(
                "--resume continues a sweep as planned; omit --param, --fix, --correlation, "
                "--where, --when, --design, --cost, --order, --out and --overwrite"
            )
        return _resume(resumed, target, rules, retry_failed=retry_failed, trust=trust)
    if out is None:
        raise click.UsageError("missing the output file: -o sweep.h5")
    if not design:
        raise click.UsageError("missing the design: --design sobol:256 (or grid:10, lhs:100, ...)")
    if cost is not None and order != AUTO:
        raise click.UsageError(
            f"--cost is for --order auto, which runs the longest first; "
            f"omit it with --order {order}"
        )
    request = SweepRequest(
        design=parse_design(design),
        seed=0,
        spreads=asked.spreads(),
        fixes=asked.fixes(),
        correlations=asked.correlations(),
        where=asked.constraints,
        when=asked.conditions(),
        config=_json_object(config),
        gradients=gradients,
        seed_key=seed_key,
        title=title,
        gzip=gzip,
        provenance=provenance(command_line(), target=target.to_json(), notes=notes),
        order=order,
        cost_column=cost.text if cost is not None and cost.kind == COLUMN else "",
    )
    with terminable(), Claim(out) as claim:
        there = claim.continued(overwrite=overwrite)
        if there is not None:
            request = replace(request, seed=there.seed if seed is None else seed)
            check_same_plan(out, there, request)
            if order != there.order or (cost is not None and str(cost) != there.cost_rule):
                click.echo(f"note: the order of the points stays that of {out}", err=True)
            return _continue(claim, there, target, model, rules, retry_failed=retry_failed)
        request = replace(request, seed=secrets.randbits(31) if seed is None else seed)
        with open_farm(target, out, model) as farm:
            plan = _planned(request, farm.client, model, cost, rules)
            _announce(plan, out, replaces=claim.plan is not None)
            started = None if no_probe else probe(plan, farm.client, rules["priority"])
            return run_session(claim.create(_signed(plan)), farm, rules, started=started)


def _planned(
    request: SweepRequest, client: Client, model: str | None, cost: CostRule | None, rules: Any
) -> Plan:
    """Return the plan of a new sweep, with the costs of its points."""
    name = _the_model(client, model)
    plan = make_plan(request, lambda config: client.describe(name, config))
    if cost is not None:
        return with_costs(plan, cost)
    return with_asked_costs(plan, client, hints_of(plan, rules["priority"]))


def _announce(plan: Plan, out: Path, *, replaces: bool) -> None:
    for note in plan.design.notes:
        click.echo(f"note: {note}", err=True)
    old = ", replacing the sweep there" if replaces else ""
    product = plan.design.product(len(plan.parameters))
    size = f"{product} = {plan.size}" if product else f"{plan.size}"
    text = f"{size} points of {plan.info.name}, seed {plan.seed}, into {out}{old}"
    click.echo(text, err=True)


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
@trust_option
def rerun(file: Path, target: Target, point: int, trust: bool) -> int:
    """Evaluate one point again with the same inputs and print all details. FILE is not changed."""
    plan, known = known_of(file)
    if point >= plan.size:
        raise click.UsageError(f"--point {point}: {file} has the points 0 to {plan.size - 1}")
    call = plan.calls(point)[0]
    for tensor, array in zip(plan.info.inputs, call.inputs, strict=True):
        click.echo(f"{tensor.name} = {np.array2string(array, threshold=60)}")
    click.echo(f"config = {call.config}")
    click.echo(f"so far: {PointStatus(int(known.status[point])).name.lower()}")
    chosen = chosen_farm(target, plan, file, trust=trust)
    with open_farm(chosen, file.with_name(f"{file.name}.rerun"), call.model) as farm:
        try:
            result = farm.client.submit(call).result()
        except FarmError as error:
            click.echo(error.detail.rstrip() or "(no traceback)", err=True)
            click.echo(f"{type(error).__name__}: {error}", err=True)
            return FAILURES
    for tensor, array in zip(plan.info.outputs, result.outputs, strict=True):
        click.echo(f"{tensor.name} = {np.array2string(array, threshold=60)}")
    click.echo(f"({plan.info.name} ran {timespan(result.run_time_s)} on {result.worker})")
    return DONE


EXTEND_EXAMPLES = """\b
Examples:
  farm sweep extend s.h5 --points 512              more points of a sobol, halton or random sweep
  farm sweep extend s.h5 --design random:100       the points of a further design, of any kind
  farm sweep extend grid.h5 --design grid:20       the combinations that are not there yet
  farm sweep extend table.h5 --design file:more.csv
"""


@click.command(epilog=EXTEND_EXAMPLES)
@click.argument("file", type=ANY_FILE)
@farm_options
@click.option("--points", type=click.IntRange(min=1), help="New number of points.")
@click.option(
    "--design", metavar="DESIGN", help="Design whose points come after those that are there."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="With --design: its seed. Default: one that follows from the sweep's.",
)
@trust_option
@rule_options
def extend(
    file: Path,
    target: Target,
    points: int | None,
    design: str | None,
    seed: int | None,
    trust: bool,
    **rules: Any,
) -> int:
    """Add points to a sweep and run them: to --points in all, or those of a further --design.

    --points continues a sobol, halton or random sequence, or saltelli and morris by whole blocks.
    --design works after any design but saltelli, morris and ff. Ranges, words, correlations,
    conditions and constraints are those of the sweep. If the command is stopped, farm sweep
    --resume FILE continues; extend again would add more.
    """
    if (points is None) == (design is None):
        raise click.UsageError(
            "expected --points N, to continue a sequence, or --design DESIGN, to add another one"
        )
    if seed is not None and design is None:
        raise click.UsageError("--seed is for --design; --points continues with the sweep's seed")
    with terminable(), Claim(file) as claim:
        there = claim.existing()
        if points is not None:
            plan, note = longer_plan(there, points), ""
        else:
            plan, note = appended_plan(there, parse_design(design or ""), seed=seed)
        plan = extended(plan)
        for text in filter(None, [*plan.all_parts[-1].design.notes, note]):
            click.echo(f"note: {text}", err=True)
        target = chosen_farm(target, there, file, trust=trust)
        with open_farm(target, file, plan.info.name) as farm:
            check_model(there, farm.client.describe(there.info.name, there.config_of(0)))
            return run_session(claim.extend(plan), farm, rules)


for command in (extend, *sweep_read.COMMANDS, sensitivity):
    sweep.add_command(command)


def _resume(
    path: Path, target: Target, rules: dict[str, Any], *, retry_failed: bool, trust: bool
) -> int:
    with terminable(), Claim(path) as claim:
        there = claim.existing()
        if claim.is_complete(retry_failed=retry_failed):
            claim.tidy()
            return _said_complete(path, claim.failed)
        target = chosen_farm(target, there, path, trust=trust)
        with open_farm(target, path, there.info.name) as farm:
            check_model(there, farm.client.describe(there.info.name, there.config_of(0)))
            return run_session(claim.resume(), farm, rules, retry_failed=retry_failed)


def _continue(
    claim: Claim,
    there: Plan,
    target: Target,
    model: str | None,
    rules: dict[str, Any],
    *,
    retry_failed: bool,
) -> int:
    """Continue the sweep of a claim with the model that the command line names."""
    path = claim.path
    is_complete = claim.is_complete(retry_failed=retry_failed)
    # A model that is surely the same need not be started only to say so.
    if not (is_complete and model in (None, there.info.name) and is_unchanged(target, there)):
        with open_farm(target, path, model) as farm:
            name = _the_model(farm.client, model)
            info = farm.client.describe(name, there.config_of(0))
            check_same_model(path, there, info, sources_of(target, there))
            if not is_complete:
                count = f"{there.size - claim.pending} of {there.size} points are finished"
                click.echo(f"{path} has this sweep: {count}, it continues", err=True)
                return run_session(claim.resume(), farm, rules, retry_failed=retry_failed)
    claim.tidy()
    return _said_complete(path, claim.failed)


def _said_complete(path: Path, failed: int) -> int:
    click.echo(f"{path} is complete, {counted(failed, 'point')} failed", err=True)
    return FAILURES if failed else DONE


def _signed(plan: Plan) -> Plan:
    try:
        return signed(plan)
    except OSError as error:
        click.echo(f"note: --resume will need the model or --trust, as {error}", err=True)
        return plan


def _the_model(client: Client, name: str | None) -> str:
    if name is None:
        return only_model(client)
    models = client.expect_models()
    if name not in models:
        raise click.UsageError(f"no model {name!r}; the farm has: {', '.join(models) or 'none'}")
    return name


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"--config {text!r} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise click.UsageError(f"--config {text!r} is not a JSON object")
    return value
