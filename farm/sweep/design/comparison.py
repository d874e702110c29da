"""Compares the plan of a sweep in a file with the one that a command or a script asks for. Pure.

Two plans are the same if their rows mean the same: model, parameters, points, fixed values, config,
seeds and gradients. Title, notes, compression, cost and order do not count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from farm.call import VERSION_OF_FILE, ModelInfo, TensorInfo
from farm.errors import shortened
from farm.sweep.design.plan import Plan
from farm.sweep.design.prepare import SweepRequest, make_plan
from farm.sweep.errors import SweepError
from farm.sweep.space.binding import entry_name
from farm.wording import worded

Pair = tuple[str, str]
"""The same fact of the plan in the file and of the plan that is asked for."""

MOST = 6
"""Most differences that a message lists."""

LONGEST = 100
"""Most characters of a value in a message."""

CHANGED = "its file, a package that it imports or Python has changed"

NOTHING = "none"


def _remedy() -> str:
    return worded(
        "replace it by --overwrite, or name another file",
        "replace it by overwrite=True, or give another out=",
    )


def check_same_plan(path: Path, there: Plan, request: SweepRequest) -> None:
    """Raise SweepError unless `request` asks for the plan of the sweep in `path`.

    The model itself is not asked: `check_same_model` compares it.
    """
    try:
        asked = make_plan(request, lambda config: there.info)
    except SweepError as error:
        raise SweepError(
            f"{path} holds a sweep of model {there.info.name!r}, to which this one does not fit: "
            f"{error}; {_remedy()}"
        ) from error
    _refuse(path, plan_differences(there, asked))


def check_same_model(path: Path, there: Plan, info: ModelInfo, sources: Pair = ("", "")) -> None:
    """Raise SweepError unless `info` describes the model of the sweep in `path`.

    info: the description for the config of the sweep's first point. sources: origins of the sweep's
    model and of this one, such as a file or a hash of the code; "" if one is not known.
    """
    _refuse(path, model_differences(there.info, info, sources))


def plan_differences(there: Plan, asked: Plan) -> list[str]:
    """Return how two plans of one model differ, one text for each difference."""
    ours, theirs = _parameters(asked), _parameters(there)
    pairs = {
        "seed": (str(there.seed), str(asked.seed)),
        **_by_name("parameter", theirs, ours),
        **_fixed(there, asked),
        **_by_name("config", _config(there), _config(asked)),
        "seed key": (there.seed_key or NOTHING, asked.seed_key or NOTHING),
        "gradients": (_gradients(there), _gradients(asked)),
        "correlations": (_listed(there.correlations), _listed(asked.correlations)),
        **_by_name("condition of", dict(there.when), dict(asked.when)),
        "constraints": (_listed(sorted(there.where)), _listed(sorted(asked.where))),
    }
    other_points = there.theta_hash != asked.theta_hash
    if other_points:  # two texts may stand for the same points, such as two paths of one table
        pairs = {"design": (there.designs, asked.designs), **pairs}
    if theirs.keys() == ours.keys():
        pairs["order of the parameters"] = ", ".join(theirs), ", ".join(ours)
    found = _differences(pairs)
    return found or (_differences(_points(there, asked)) if other_points else [])


def model_differences(there: ModelInfo, now: ModelInfo, sources: Pair = ("", "")) -> list[str]:
    """Return how the model of a sweep differs from the present one, one text for each difference.

    Versions count if both are known, otherwise `sources`, the origins of the models.
    """
    pairs = {
        "model": (there.name, now.name),
        "inputs of the model": (_tensors(there.inputs), _tensors(now.inputs)),
        "outputs of the model": (_tensors(there.outputs), _tensors(now.outputs)),
    }
    if there.version and now.version:
        why = f" ({CHANGED})" if now.version.startswith(VERSION_OF_FILE) else ""
        pairs[f"version of the model{why}"] = there.version, now.version
    elif all(sources):
        pairs["source of the model"] = sources
    return _differences(pairs)


def _refuse(path: Path, differences: Sequence[str]) -> None:
    if not differences:
        return
    more = [f"{len(differences) - MOST} more differences"] if len(differences) > MOST else []
    listed = "; ".join([*differences[:MOST], *more])
    raise SweepError(
        f"{path} holds another sweep: {listed}. "
        + worded(f"Continue that one by farm sweep --resume {path}, ", "To do this one, ")
        + _remedy()
    )


def _differences(pairs: Mapping[str, Pair]) -> list[str]:
    return [
        f"{what}: {shortened(there, LONGEST)} in the file, {shortened(here, LONGEST)} here"
        for what, (there, here) in pairs.items()
        if there != here
    ]


def _by_name(what: str, there: Mapping[str, str], here: Mapping[str, str]) -> dict[str, Pair]:
    """Return both texts of each name that either side has."""
    names = {**there, **here}
    return {f"{what} {n}": (there.get(n, NOTHING), here.get(n, NOTHING)) for n in names}


def _parameters(plan: Plan) -> dict[str, str]:
    return {
        p.name: "a column of a table" if p.spread is None else str(p.spread)
        for p in plan.parameters
    }


def _fixed(there: Plan, asked: Plan) -> dict[str, Pair]:
    """Return both values of each entry of an input that is fixed in only one plan or differs."""
    pairs: dict[str, Pair] = {}
    for tensor, old, new in zip(there.info.inputs, there.fixed, asked.fixed, strict=True):
        for k in np.flatnonzero((old != new) & ~(np.isnan(old) & np.isnan(new))).tolist():
            texts = [NOTHING if np.isnan(v) else repr(float(v)) for v in (old[k], new[k])]
            pairs[f"fixed {entry_name(tensor, k)}"] = texts[0], texts[1]
    words = [{(i, e): text for i, e, text in plan.texts} for plan in (there, asked)]
    for i, e in sorted({**words[0], **words[1]}):
        name = f"fixed {entry_name(there.info.inputs[i], e)}"
        pairs[name] = words[0].get((i, e), NOTHING), words[1].get((i, e), NOTHING)
    return pairs


def _config(plan: Plan) -> dict[str, str]:
    return {name: json.dumps(value, sort_keys=True) for name, value in plan.config.items()}


def _gradients(plan: Plan) -> str:
    outputs = plan.info.outputs
    return ", ".join(entry_name(outputs[i], k) for i, k in sorted(plan.gradients)) or NOTHING


def _listed(items: Iterable[object]) -> str:
    return "; ".join(map(str, items)) or NOTHING


def _points(there: Plan, asked: Plan) -> dict[str, Pair]:
    """Return how the points of two plans differ that are of the same design."""
    if there.size != asked.size:
        return {"points": (str(there.size), str(asked.size))}
    same = (there.theta == asked.theta) | (np.isnan(there.theta) & np.isnan(asked.theta))
    k = int(np.flatnonzero(~same.all(axis=1))[0])
    pairs = {f"point {k}": (_values(there, k), _values(asked, k))}
    if there.unit is not None:  # other versions may scramble differently
        for name in ("numpy_version", "scipy_version", "salib_version"):
            pairs[name] = there.provenance.get(name, "?"), asked.provenance.get(name, "?")
    return pairs


def _values(plan: Plan, point: int) -> str:
    return str(list(plan.values_of(point).values()))


def _tensors(tensors: Sequence[TensorInfo]) -> str:
    return ", ".join(f"{t.name} {list(t.shape)} {t.dtype}" for t in tensors) or "none"
