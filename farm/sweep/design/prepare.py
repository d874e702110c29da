"""Turns a user's request into the plan of a sweep, checked against the model."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from farm.call import BYTES, Array, ModelInfo, Operation, TensorInfo, numpy_dtype
from farm.sweep.design.plan import AUTO, Plan
from farm.sweep.design.points import Design, PointTable, draw
from farm.sweep.design.tables import read_table, rows_of, whole_columns
from farm.sweep.errors import SweepError
from farm.sweep.order.costs import checked_costs, cost_option
from farm.sweep.space.binding import BoundParameter, bind, open_entries, wanted_gradients
from farm.sweep.space.correlation import bound_correlations
from farm.sweep.space.parameters import Distribution
from farm.sweep.space.space import ParameterSpace, bound_conditions
from farm.wording import worded

Describe = Callable[[Mapping[str, Any]], ModelInfo]
"""Returns the model's description for a config. Raises FarmError."""


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """A user's request for a sweep; for names see `farm.sweep.space.binding`.

    correlations: names of two parameters -> their correlation. where: constraints on the points.
    when: name of a parameter -> condition under which it is active.
    gradients: outputs, or entries of outputs, to differentiate. cost_column: the column of a table
    that has the cost of each point; the model does not get it. table: the points of a design
    "file", if they are not those of its file.
    """

    design: Design
    seed: int
    spreads: Mapping[str, Distribution] = field(default_factory=dict)
    fixes: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    gradients: Sequence[str] = ()
    seed_key: str = ""
    title: str = ""
    gzip: bool = False
    provenance: Mapping[str, str] = field(default_factory=dict)
    order: str = AUTO
    cost_column: str = ""
    table: PointTable | None = None
    correlations: Mapping[tuple[str, str], float] = field(default_factory=dict)
    where: Sequence[str] = ()
    when: Mapping[str, str] = field(default_factory=dict)

    def points(self) -> PointTable | None:
        """Return the table of the design; None for other designs. Raises SweepError."""
        if self.table is not None or self.design.kind != "file":
            return self.table
        return read_table(self.design.option, gaps=bool(self.when))


def make_plan(request: SweepRequest, describe: Describe) -> Plan:
    """Make the plan of a new sweep.

    Raises SweepError if the request is invalid, and whatever `describe` raises.
    """
    info = describe(request.config)
    _check_model(info, request)
    table, cost = request.points(), None
    if request.cost_column:
        table, cost = _without_cost(table, request)
    spreads = dict(request.spreads) if table is None else _spreads_of(table, info, request)
    if request.seed_key in spreads or request.seed_key in request.fixes:
        option = worded("--seed-key", "seed_key")
        raise SweepError(f"{option} {request.seed_key!r} is a parameter or fixed already")
    binding = bind(
        info, spreads, request.fixes, request.config, conditional=request.when, with_texts=True
    )
    parameters = binding.parameters
    space = ParameterSpace(
        binding,
        bound_correlations(request.correlations, binding.columns, parameters),
        bound_conditions(request.when, binding.columns, parameters),
        tuple(text.strip() for text in request.where),
    )
    space.check()
    if table is None:
        drawn = draw(request.design, space, request.seed)
    else:
        if len(parameters) != len(spreads):
            raise SweepError(
                "each column of a table must name one entry, such as x[0]; "
                f"the columns {', '.join(spreads)} name {len(parameters)} entries"
            )
        rows, kept = rows_of(table, space, request.design.option)
        drawn = PointTable(space.names, rows)
        cost = None if cost is None else cost[kept]
        parameters = whole_columns(parameters, rows)
    _check_whole(info, parameters)
    plan = Plan(
        run_id=str(uuid.uuid4()),
        info=info,
        parameters=parameters,
        fixed=binding.fixed,
        texts=binding.texts,
        config=binding.config,
        design=request.design,
        seed=request.seed,
        theta=drawn.rows,
        unit=drawn.unit,
        seed_key=request.seed_key,
        title=request.title or f"{info.name} {request.design}",
        gzip=request.gzip,
        provenance=request.provenance,
        order=request.order,
        correlations=space.correlations,
        when=space.when,
        where=space.where,
        cost=cost,
        cost_rule=f"column:{request.cost_column}" if cost is not None else "",
    )
    return _with_outputs(plan, request, describe)


def _check_model(info: ModelInfo, request: SweepRequest) -> None:
    """Raise SweepError for a model that a sweep cannot evaluate."""
    if Operation.EVALUATE not in info.operations:
        offered = ", ".join(sorted(info.operations))
        raise SweepError(f"model {info.name!r} cannot be evaluated; it offers {offered}")
    for tensor in (*info.inputs, *info.outputs):
        texts = tensor.dtype == BYTES and (tensor in info.outputs or bool(request.gradients))
        if tensor.varies or texts:
            what = "sizes that vary" if tensor.varies else "texts"
            raise SweepError(
                f"{tensor.name!r} of model {info.name!r} has {what}; a sweep needs "
                + (
                    "inputs of numbers for gradients"
                    if tensor in info.inputs and texts
                    else "numbers of a known shape"
                )
            )


def _spreads_of(
    table: PointTable, info: ModelInfo, request: SweepRequest
) -> dict[str, Distribution | None]:
    """Return the parameters of a table: words, or None for numbers. Raises SweepError."""
    if request.spreads:
        raise SweepError(
            f"a table has its own parameters: use {worded('--fix', 'fix=')} with it, but not "
            f"{worded('--param', 'parameters')}"
        )
    closed = [name for name in request.fixes if name not in request.when]
    names = table.names or tuple(open_entries(info, closed))
    if len(names) != table.rows.shape[1]:
        raise SweepError(
            f"table {request.design.option!r} has {table.rows.shape[1]} columns without names, "
            f"the model {len(names)} entries that are not fixed: {', '.join(names[:10])}"
        )
    return {name: table.words.get(j) for j, name in enumerate(names)}


def check_model(plan: Plan, info: ModelInfo) -> None:
    """Raise SweepError if a model's current description does not match the plan."""
    for what, now, then in (
        ("inputs", info.inputs, plan.info.inputs),
        ("outputs", info.outputs, plan.info.outputs),
    ):
        if now != then:
            raise SweepError(
                f"model {info.name!r} has the {what} {_shown(now)}, "
                f"the sweep was planned for {_shown(then)}"
            )


def _without_cost(table: PointTable | None, request: SweepRequest) -> tuple[PointTable, Array]:
    """Return the table without its column of costs, and that column."""
    name = request.cost_column
    where = cost_option(f"column:{name}")
    if table is None:
        raise SweepError(
            f"{where} names a column of the table of a design file:FILE; "
            f"the design is {request.design}"
        )
    names = table.names or ()
    if name not in names:
        there = ", ".join(names) or "no names"
        raise SweepError(
            f"{where}: no such column in table {request.design.option!r}; it has {there}"
        )
    j = names.index(name)
    if j in table.words:
        raise SweepError(f"{where}: the column has words; expected a number for each point")
    words = {k - (k > j): category for k, category in table.words.items()}
    rest = PointTable((*names[:j], *names[j + 1 :]), np.delete(table.rows, j, axis=1), words)
    return rest, checked_costs(table.rows[:, j], len(table.rows), where)


def _shown(tensors: Sequence[TensorInfo]) -> str:
    return ", ".join(f"{t.name} {list(t.shape)}" for t in tensors) or "none"


def _with_outputs(plan: Plan, request: SweepRequest, describe: Describe) -> Plan:
    """Return the plan with the outputs that the model has for the config of the points."""
    config = plan.config_of(0)
    info = describe(config) if config != dict(request.config) else plan.info
    if info.inputs != plan.info.inputs:
        raise SweepError(
            f"model {info.name!r} has other inputs for the config {config} than for "
            f"{dict(request.config)}; give the config that decides them "
            f"with {worded('--config', 'config=')}"
        )
    return replace(plan, info=info, gradients=wanted_gradients(info, request.gradients))


def _check_whole(info: ModelInfo, parameters: Sequence[BoundParameter]) -> None:
    for parameter in parameters:
        if parameter.input is None or parameter.whole:
            continue
        if numpy_dtype(info.inputs[parameter.input].dtype).kind not in "fO":
            raise SweepError(
                f"input {parameter.name!r} takes whole numbers: "
                + worded("int:LOWER:UPPER or choice:A,B", "farm.integer(lower, upper) or a list")
            )
