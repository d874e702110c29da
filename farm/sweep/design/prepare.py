"""Turns a user's request into the plan of a sweep, checked against the model."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from farm.call import BYTES, Array, ModelInfo, Operation, TensorInfo, numpy_dtype
from farm.sweep.design.binding import BoundParameter, bind, open_entries, wanted_gradients
from farm.sweep.design.cost import checked_costs, cost_option
from farm.sweep.design.errors import SweepError
from farm.sweep.design.parameters import Distribution
from farm.sweep.design.plan import AUTO, Plan
from farm.sweep.design.points import Design, continued, longer_design, sample, values
from farm.sweep.design.tables import PointTable, read_table
from farm.wording import worded

Describe = Callable[[Mapping[str, Any]], ModelInfo]
"""Returns the model's description for a config. Raises FarmError."""


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """A user's request for a sweep; for names see `farm.sweep.design.binding`.

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

    def points(self) -> PointTable | None:
        """Return the table of the design; None for other designs. Raises SweepError."""
        if self.table is not None or self.design.kind != "file":
            return self.table
        return read_table(self.design.option)


def make_plan(request: SweepRequest, describe: Describe) -> Plan:
    """Make the plan of a new sweep.

    Raises SweepError if the request is invalid, and whatever `describe` raises.
    """
    info = describe(request.config)
    if Operation.EVALUATE not in info.operations:
        offered = ", ".join(sorted(info.operations))
        raise SweepError(f"model {info.name!r} cannot be evaluated; it offers {offered}")
    for tensor in (*info.inputs, *info.outputs):
        if tensor.varies or tensor.dtype == BYTES:
            what = "sizes that vary" if tensor.varies else "texts"
            raise SweepError(
                f"{tensor.name!r} of model {info.name!r} has {what}; a sweep needs numbers of a "
                "known shape"
            )
    table = request.points()
    cost: Array | None = None
    if request.cost_column:
        table, cost = _without_cost(table, request)
    spreads: dict[str, Distribution | None] = dict(request.spreads)
    if table is not None:
        if request.spreads:
            raise SweepError(
                f"a table has its own parameters: use {worded('--fix', 'fix=')} with it, but not "
                f"{worded('--param', 'parameters')}"
            )
        names = table.names or tuple(open_entries(info, request.fixes))
        if len(names) != table.rows.shape[1]:
            raise SweepError(
                f"table {request.design.option!r} has {table.rows.shape[1]} columns without names, "
                f"the model {len(names)} entries that are not fixed: {', '.join(names[:10])}"
            )
        spreads = dict.fromkeys(names)
    if request.seed_key in spreads or request.seed_key in request.fixes:
        option = worded("--seed-key", "seed_key")
        raise SweepError(f"{option} {request.seed_key!r} is a parameter or fixed already")
    binding = bind(info, spreads, request.fixes, request.config)
    unit, theta, parameters = None, np.empty((0, 0)), binding.parameters
    if table is None:
        distributions = [p.spread for p in parameters if p.spread is not None]
        unit = sample(request.design, distributions, request.seed)
        theta = values(distributions, unit)
    else:
        theta = table.rows
        if len(parameters) != theta.shape[1]:
            raise SweepError(
                "each column of a table must name one entry, such as x[0]; "
                f"the columns {', '.join(names)} name {len(parameters)} entries"
            )
        whole = np.all(theta == np.floor(theta), axis=0)
        parameters = tuple(
            replace(p, whole=bool(w)) for p, w in zip(parameters, whole, strict=True)
        )
    _check_whole(info, parameters)
    plan = Plan(
        run_id=str(uuid.uuid4()),
        info=info,
        parameters=parameters,
        fixed=binding.fixed,
        config=binding.config,
        design=request.design,
        seed=request.seed,
        theta=theta,
        unit=unit,
        seed_key=request.seed_key,
        title=request.title or f"{info.name} {request.design}",
        gzip=request.gzip,
        provenance=request.provenance,
        order=request.order,
        cost=cost,
        cost_rule=f"column:{request.cost_column}" if cost is not None else "",
    )
    return _with_outputs(plan, request, describe)


def longer_plan(plan: Plan, count: int) -> Plan:
    """Return a plan with `count` points that begins with those of `plan`. Raises SweepError."""
    design = longer_design(plan.design, count, len(plan.parameters))
    spreads = [p.spread for p in plan.parameters if p.spread is not None]
    made = plan.unit if plan.unit is not None else np.empty((0, 0))
    unit = continued(design, spreads, plan.seed, made)
    theta = values(spreads, unit)
    theta[: plan.size] = plan.theta
    return replace(plan, design=design, unit=unit, theta=theta)


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
    rest = PointTable((*names[:j], *names[j + 1 :]), np.delete(table.rows, j, axis=1))
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
        if numpy_dtype(info.inputs[parameter.input].dtype).kind not in "f":
            raise SweepError(
                f"input {parameter.name!r} takes whole numbers: "
                + worded("int:LOWER:UPPER or choice:A,B", "farm.integer(lower, upper) or a list")
            )
