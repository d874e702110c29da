"""`farm.extend_sweep(...)`: add points to a sweep from Python scripts and notebooks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from farm.errors import FarmError
from farm.functions import plain_function
from farm.model import Model
from farm.sweep.api import MODEL_CODE, ServedModel, Sweep, evaluator_of, rules_of
from farm.sweep.design.comparison import check_same_model
from farm.sweep.design.data_frame import DATA_FRAME, is_data_frame, read_data_frame
from farm.sweep.design.extension import LongerPlan, appended_plan, longer_plan
from farm.sweep.design.plan import Plan
from farm.sweep.design.points import Design, parse_design
from farm.sweep.errors import SweepError
from farm.sweep.file.claim import Claim
from farm.sweep.file.provenance import code_of
from farm.sweep.order.given import extended
from farm.sweep.run.evaluator import CallEvaluator
from farm.sweep.run.in_flight import PointsInFlight
from farm.sweep.run.run import BULK
from farm.wording import briefly, counted
from farm.worker.loader import LoadError


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
    rules = rules_of(seed, workers, in_flight, max_failures, max_hours)
    if isinstance(model, ServedModel):
        on, model = model.client, model.name
    with contextlib.ExitStack() as stack:
        claim = stack.enter_context(Claim(path))
        there = claim.existing()
        plan, note = _longer(there, design, n, points, seed)
        plan = extended(plan)
        if isinstance(model, type) and issubclass(model, Model):
            model = model()
        elif not isinstance(model, str | Model):
            model = _function_of(model, there)
        code = code_of(model) if isinstance(model, Model) else ""
        owned, evaluator, info = evaluator_of(model, on, workers, there.config_of(0))
        if owned is not None:
            stack.callback(owned.close)
        info = evaluator.describe(info.name, there.config_of(0))
        check_same_model(path, there, info, (there.provenance.get(MODEL_CODE, ""), code))
        if show:
            added = f"{counted(plan.size - there.size, 'new point')}, after {there.size}"
            print(f"{path}: {added}" + (f"; {note}" if note else ""), file=sys.stderr)
        store = claim.extend(plan)
        stack.callback(store.abandon)
        sent = PointsInFlight(evaluator, plan, BULK)
        begun = Sweep(store, sent, rules, owned=owned, show=show, stream=stream)
        stack.pop_all()  # they belong to the sweep now
    begun.begin()
    return begun


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
    model.outputs = {tensor.name: tensor for tensor in plan.info.outputs}
    return model
