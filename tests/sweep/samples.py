"""Plans and rows that the tests of sweeps share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from farm.call import NO_HINTS, Array, Call, Hints, ModelInfo, Operation, Result, TensorInfo
from farm.errors import Overloaded
from farm.sweep.design.plan import Plan
from farm.sweep.design.points import parse_design
from farm.sweep.design.prepare import SweepRequest, make_plan
from farm.sweep.file.journal import PointStatus, Row
from farm.sweep.file.store import Store
from farm.sweep.space.grammar import parse_distribution

BEAM = ModelInfo(
    "beam",
    (TensorInfo("E", (3,)), TensorInfo("load", (1,))),
    (TensorInfo("u", (4,)), TensorInfo("mass", (1,))),
    frozenset({Operation.EVALUATE, Operation.GRADIENT}),
)

BEAM_WITH_UNITS = ModelInfo(
    "beam",
    (
        TensorInfo("E", (3,), unit="Pa", description="Young's modulus of each layer"),
        TensorInfo("load", (1,)),
    ),
    (
        TensorInfo("u", (4,), unit="m", description="deflection"),
        TensorInfo("mass", (1,), unit="kg"),
    ),
    frozenset({Operation.EVALUATE, Operation.GRADIENT}),
)


def plan_of(
    design: str = "random:20",
    params: Mapping[str, str] | None = None,
    *,
    info: ModelInfo = BEAM,
    **options: Any,
) -> Plan:
    """Return a plan for a beam; load and stiffness vary by default."""
    spreads = {"E": "1:2", "load": "log:1e-3:1"} if params is None else params
    request = SweepRequest(
        design=parse_design(design),
        seed=options.pop("seed", 7),
        spreads={name: parse_distribution(text) for name, text in spreads.items()},
        **options,
    )
    return make_plan(request, lambda config: info)


def values_of(plan: Plan, point: int) -> Array:
    """Return values that no other point has, so that a misplaced row is noticed."""
    return float(point) + np.arange(plan.row_size) / 1000


def done(plan: Plan, point: int, **more: Any) -> Row:
    """Return the outcome of a done point."""
    times: dict[str, Any] = {
        "t_start": 1.7e9 + point,
        "t_run": 0.5,
        "t_queue": 0.25,
        "t_total": 1.0,
    }
    return Row(point, PointStatus.DONE, **{**times, "values": values_of(plan, point), **more})


def failed(point: int, **more: Any) -> Row:
    """Return the outcome of a failed point."""
    settings: dict[str, Any] = {
        "t_start": 1.7e9 + point,
        "error": "ModelFailed: boom",
        "traceback": "line 1",
    }
    return Row(point, **{"status": PointStatus.FAILED, **settings, **more})


def stored(path: Path, plan: Plan, *rows: Row, state: str = "interrupted") -> None:
    """Write a sweep with these outcomes that ended so, or whose process was killed."""
    store = Store.create(path, plan)
    for row in rows:
        store.add(row)
    store.abandon() if state == "killed" else store.close(state, {})


def raising(error: BaseException) -> Callable[..., None]:
    """Return a function that fails, in the place of one of farm or of the system."""

    def broken(*_: object, **more: object) -> None:
        raise error

    return broken


class Open:
    """Accepts `room` calls and answers none of them."""

    def __init__(self, room: int = 100) -> None:
        self.room = room
        self.futures: list[Future[Result]] = []

    def describe(self, model: str, config: Mapping[str, Any] | None = None) -> ModelInfo:
        return BEAM

    def submit(self, call: Call, hints: Hints = NO_HINTS) -> Future[Result]:
        if len(self.futures) == self.room:
            raise Overloaded("full")
        self.futures.append(Future())
        return self.futures[-1]
