"""Plans and rows that the tests of sweeps share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from farm.call import Array, ModelInfo, Operation, TensorInfo
from farm.sweep.journal import Row, Status
from farm.sweep.parameters import parse_distribution
from farm.sweep.plan import Plan
from farm.sweep.points import parse_design
from farm.sweep.prepare import Request, make_plan

BEAM = ModelInfo(
    "beam",
    (TensorInfo("E", (3,)), TensorInfo("load", (1,))),
    (TensorInfo("u", (4,)), TensorInfo("mass", (1,))),
    frozenset({Operation.EVALUATE, Operation.GRADIENT}),
)


def plan_of(
    design: str = "random:20",
    params: Mapping[str, str] | None = None,
    *,
    info: ModelInfo = BEAM,
    **options: Any,
) -> Plan:
    """A plan of a beam, its load and stiffness varied unless said otherwise."""
    spreads = {"E": "1:2", "load": "log:1e-3:1"} if params is None else params
    request = Request(
        design=parse_design(design),
        seed=options.pop("seed", 7),
        spreads={name: parse_distribution(text) for name, text in spreads.items()},
        **options,
    )
    return make_plan(request, lambda config: info)


def values_of(plan: Plan, point: int) -> Array:
    """Numbers that no other point has: a row in a wrong place shows."""
    return float(point) + np.arange(plan.row_size) / 1000


def done(plan: Plan, point: int, **more: Any) -> Row:
    """A point that went well."""
    times: dict[str, Any] = {
        "t_start": 1.7e9 + point,
        "t_run": 0.5,
        "t_queue": 0.25,
        "t_total": 1.0,
    }
    return Row(point, Status.DONE, **{**times, "values": values_of(plan, point), **more})


def failed(point: int, **more: Any) -> Row:
    """A point that failed."""
    settings: dict[str, Any] = {
        "t_start": 1.7e9 + point,
        "error": "ModelFailed: boom",
        "traceback": "line 1",
    }
    return Row(point, **{"status": Status.FAILED, **settings, **more})
