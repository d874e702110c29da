"""`farm.sweep(...)` and `farm.extend_sweep(...)`: sweeps from Python scripts and notebooks."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm.call import Array
from farm.declared import Tensors
from farm.errors import FarmError
from farm.functions import plain_function
from farm.model import Model
from farm.sweep.design.arguments import DEFAULT_DESIGN, model_of, outputs_of, request_of
from farm.sweep.design.comparison import check_same_plan
from farm.sweep.design.extension import LongerPlan, appended_plan, longer_plan
from farm.sweep.design.plan import AUTO, ORDERS, Plan
from farm.sweep.design.points import Design, parse_design
from farm.sweep.design.prepare import SweepRequest, make_plan
from farm.sweep.design.tables import DATA_FRAME, is_data_frame, read_data_frame
from farm.sweep.errors import SweepError
from farm.sweep.file.provenance import command_line, provenance
from farm.sweep.file.store import Store
from farm.sweep.order.costs import (
    COLUMN,
    CostRule,
    extended,
    parse_cost,
    with_asked_costs,
    with_costs,
    with_model_costs,
    with_numbers,
)
from farm.sweep.run.evaluator import CallEvaluator
from farm.sweep.run.in_flight import hints_of
from farm.sweep.run.in_flight import probe as probe_first
from farm.sweep.run.run import rules_of
from farm.sweep.session import MODEL_CODE, Beginning, ServedModel, Sweep
from farm.wording import briefly, counted
from farm.worker.loader import LoadError


@briefly(SweepError, FarmError, LoadError)
def sweep(
    model: Model | type[Model] | ServedModel | Callable[..., Any] | str,
    parameters: Mapping[str, Any] | Any,
    *,
    out: str | Path,
    design: str = DEFAULT_DESIGN,
    n: int | None = None,
    seed: int | None = None,
    fix: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    cost: str | Sequence[float] | Array | None = None,
    order: str = AUTO,
    correlation: Mapping[tuple[str, str], float] | None = None,
    where: str | Sequence[str] = (),
    when: Mapping[str, str] | None = None,
    gradient: Sequence[str] = (),
    seed_key: str = "",
    on: CallEvaluator | None = None,
    workers: int | None = None,
    in_flight: int | None = None,
    max_failures: int | None = None,
    max_hours: float | None = None,
    title: str = "",
    notes: str = "",
    probe: bool = True,
    resume: bool = True,
    overwrite: bool = False,
    show: bool = True,
    stream: bool = True,
) -> Sweep:
    """Evaluate a model at many points in a thread, and write the results to the HDF5 file `out`.

    model: a function, a Model or its class, which runs on `workers` threads of this process; a
    model of a farm, `client.model("beam")`; or "model.py:Beam" or the address of a running server;
    with `on`, a client of a farm, the name of a model there.
    parameters: name -> (lower, upper), a list of values, one number to hold it fixed, a frozen
    distribution of scipy.stats, texts as in ["euler", "rk4"], or farm.log(...) and similar
    functions; names are inputs, entries of inputs ("x[2]") or keys of the config. Or a DataFrame
    with a row for each point and a column for each parameter. fix: values of further inputs and
    config keys, such as arrays. design, n: "sobol" and 256, or both as "sobol:256"; also "grid:10",
    "lhs", "halton", "random", "file:points.csv", and for `farm.sensitivity` "saltelli", "morris"
    and "ff".
    correlation: {("a", "b"): 0.7}, of the normals under the two distributions. where: constraints,
    as "load < 3*thickness". when: {"order": 'solver == "rk4"'}, conditions of parameters; without a
    value in `fix`, a key of the config is left out where its condition is false.
    cost: expected run time of a point in any unit, to run the longest first: "n**3",
    "column:hours", "sweep:old.h5", or a number for each point; None: the model's method `cost` if
    it has one, otherwise learned from the first points. order: "auto", "shuffled" or "given".
    If `out` has this very sweep, it continues: the same call again loses and repeats nothing;
    without `seed` it goes on with that of the file. Another sweep is refused.
    resume: False refuses every file that exists. overwrite: begin again; the new sweep replaces the
    one in `out` when it begins. show: show a live bar on stderr. stream: keep outputs in memory for
    `as_completed`.
    Raises SweepError, FarmError.
    """
    path = Path(out)
    if path.is_dir():
        raise SweepError(
            f"out is the folder {path}; expected a file in it, such as {path / 's.h5'}"
        )
    rules = rules_of(
        seed=seed,
        workers=workers,
        in_flight=in_flight,
        max_failures=max_failures,
        max_hours=max_hours,
    )
    if order not in ORDERS:
        raise SweepError(f"order {order!r}: expected {', '.join(ORDERS)}")
    rule = parse_cost(cost) if isinstance(cost, str) else None
    if not (resume or overwrite):
        Store.refuse_to_overwrite(path)
    space = request_of(
        parameters, fix or {}, design, n, correlation=correlation, where=where, when=when
    )
    request = replace(
        space,
        config=config or {},
        gradients=gradient,
        seed_key=seed_key,
        title=title,
        provenance=provenance(command_line(), notes=notes),
        order=order,
        cost_column=rule.text if rule is not None and rule.kind == COLUMN else "",
    )
    with Beginning(path, rules, show=show, stream=stream) as begin:
        there = begin.claim.continued(overwrite=overwrite)
        if seed is None:
            seed = secrets.randbits(31) if there is None else there.seed
        request = replace(request, seed=seed)
        if there is not None:
            check_same_plan(path, there, request)
        begin.open_model(
            model, lambda function: _function_for(function, request, there), on, workers, config
        )
        if there is not None:
            begin.check_same_model(there)
            done = there.size - begin.claim.pending
            begin.say(f"{path} has this sweep: {done} of {there.size} points are finished")
            return begin.run(begin.claim.resume())
        if begin.code:
            facts = {**request.provenance, MODEL_CODE: begin.code}
            request = replace(request, provenance=facts)
        plan = _with_costs(make_plan(request, begin.describe), rule, cost, begin)
        sent = probe_first(plan, begin.evaluator) if probe else None
        return begin.run(begin.claim.create(plan), sent)


@briefly(SweepError, FarmError, LoadError)
def extend_sweep(
    model: Model | type[Model] | ServedModel | Callable[..., Any] | str,
    path: str | Path,
    design: str | Any = None,
    *,
    n: int | None = None,
    points: int | None = None,
    seed: int | None = None,
    on: CallEvaluator | None = None,
    workers: int | None = None,
    in_flight: int | None = None,
    max_failures: int | None = None,
    max_hours: float | None = None,
    show: bool = True,
    stream: bool = True,
) -> Sweep:
    """Add points to the sweep in `path` and run them in a thread, as `farm.sweep` does.

    model, on, workers: as in `farm.sweep`; the model must be that of the sweep. points: the new
    number of points, to continue a sobol, halton or random sequence. design, n: the design whose
    points come after those that are there, as "lhs" and 100 or "lhs:100", or a DataFrame of points;
    seed: its seed, by default one that follows from the sweep's. Ranges, correlations, conditions
    and constraints are those of the sweep. If the process stops, `farm sweep --resume` continues;
    the same call again would add further points.
    Raises SweepError, FarmError.
    """
    path = Path(path)
    rules = rules_of(
        seed=seed,
        workers=workers,
        in_flight=in_flight,
        max_failures=max_failures,
        max_hours=max_hours,
    )
    with Beginning(path, rules, show=show, stream=stream) as begin:
        there = begin.claim.existing()
        plan, note = _longer(there, design, n, points, seed)
        plan = extended(plan)
        config = there.config_of(0)
        begin.open_model(model, lambda function: _function_of(function, there), on, workers, config)
        begin.check_same_model(there)
        added = f"{counted(plan.size - there.size, 'new point')}, after {there.size}"
        begin.say(f"{path}: {added}" + (f"; {note}" if note else ""))
        return begin.run(begin.claim.extend(plan))


def _function_for(function: Callable[..., Any], request: SweepRequest, there: Plan | None) -> Model:
    """Return a function as a model; a sweep in the file has its outputs, so it need not run."""
    model = model_of(function, request)
    if not model.outputs:
        model.outputs = outputs_of(model, request) if there is None else _outputs_in(there)
    return model


def _outputs_in(plan: Plan) -> Tensors:
    return {tensor.name: tensor for tensor in plan.info.outputs}


def _longer(
    plan: Plan, design: str | Any, n: int | None, points: int | None, seed: int | None
) -> LongerPlan:
    if (design is None) == (points is None):
        raise SweepError(
            "expected points=N, to continue a sequence, or a design, such as 'random:100'"
        )
    if design is None:
        if n is not None or seed is not None:
            raise SweepError("n and seed are for a design; points continues with the sweep's seed")
        assert points is not None
        return LongerPlan(longer_plan(plan, points))
    if is_data_frame(design):
        table = read_data_frame(design, gaps=bool(plan.when))
        return appended_plan(plan, Design("file", option=DATA_FRAME), seed=seed, table=table)
    if not isinstance(design, str):
        raise SweepError(
            f"design is a {type(design).__name__}; expected a text such as 'lhs:100', or a "
            "DataFrame of points"
        )
    return appended_plan(plan, parse_design(design if n is None else f"{design}:{n}"), seed=seed)


def _function_of(function: Callable[..., Any], plan: Plan) -> Model:
    """Return a function as the model of a sweep, with the sizes that it has there."""
    keys = {*plan.config, *(p.name for p in plan.parameters if p.input is None)}
    keys |= {plan.seed_key} if plan.seed_key else set()
    try:
        model = plain_function(function, {t.name: t for t in plan.info.inputs}, keys)
    except TypeError as error:
        raise SweepError(f"{error}; expected the model of the sweep, {plan.info.name!r}") from None
    model.outputs = _outputs_in(plan)
    return model


def _with_costs(
    plan: Plan,
    rule: CostRule | None,
    cost: str | Sequence[float] | Array | None,
    begin: Beginning,
) -> Plan:
    if plan.order != AUTO:
        return plan
    if rule is not None:
        return with_costs(plan, rule)
    if cost is not None:
        return with_numbers(plan, cost)
    if begin.threads is None:
        return with_asked_costs(plan, begin.evaluator, hints_of(plan))
    of_model = begin.threads.cost_of(plan.info.name)
    return plan if of_model is None else with_model_costs(plan, of_model)
