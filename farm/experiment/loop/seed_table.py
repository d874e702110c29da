"""The evaluations in a sweep file as calls of an experiment's model.

Sweeps, and records exported as one, have the model's inputs, config and outputs. An export of an
experiment has parameters and outcomes instead; the configuration in it says which calls they were.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import h5py
import numpy as np

from farm.call import Array, Result, TensorInfo
from farm.errors import FarmError, InvalidInput, InvalidOutput
from farm.experiment.config.definition import Config
from farm.experiment.config.evaluated_model import (
    BoundModel,
    output_places,
    read_evaluated_model,
)
from farm.experiment.config.reader import read_config
from farm.expression import Expression
from farm.sweep.design.plan import Column, Plan
from farm.sweep.design.points import point_seed
from farm.sweep.file import layout
from farm.sweep.space.parameters import Category

EXPERIMENT = "experiment_config"
"""The attribute of /provenance with the configuration of an exported experiment."""
BLOCK_ROWS, BLOCK_NUMBERS = 1024, 10**6
"""Maximum points, and values, that are read from a file at once."""

_BY_POSITION = re.compile(r"(in|out)(put_)?\d+")
"""Names of tensors of which only the position is known."""


@dataclass(frozen=True, slots=True, eq=False)
class SeedTable:
    """The calls of a file's points.

    status: of each point. fixed: of each input of the model, the values that all points have, NaN
    where they differ; entries: the values of the others, by input and entry. config: keys that all
    points have; columns: keys whose values differ. outcomes: for at most `block` points. version:
    of the model that evaluated the points, "" if not known.
    """

    status: Array
    fixed: tuple[Array, ...]
    entries: Mapping[tuple[int, int], Array]
    config: Mapping[str, Any]
    columns: Mapping[str, Sequence[Any]]
    outcomes: Callable[[Array], list[Sequence[float] | str]]
    block: int = BLOCK_ROWS
    version: str = ""

    @property
    def size(self) -> int:
        """Number of points."""
        return len(self.status)

    def entry(self, input: int, entry: int) -> Array:
        """Return the values of one entry of an input, shape (points,)."""
        column = self.entries.get((input, entry))
        return np.full(self.size, self.fixed[input][entry]) if column is None else column

    def setting(self, key: str) -> Sequence[Any] | None:
        """Return the values of a config key, one for each point, or None without that key."""
        if key in self.columns:
            return self.columns[key]
        return [self.config[key]] * self.size if key in self.config else None


def read_seed_table(file: h5py.File, config: Config, model: BoundModel) -> SeedTable:
    """Read an open sweep file for an experiment and its model.

    Raises InvalidInput, UnsupportedFeature if it is of another model, or lacks inputs or outputs.
    """
    plan = layout.read_plan(file)
    if EXPERIMENT in plan.provenance:
        return _of_experiment(file, plan, config, model)
    return _of_sweep(file, plan, model)


def _of_sweep(file: h5py.File, plan: Plan, bound: BoundModel) -> SeedTable:
    info, name = bound.info, bound.model.name
    if plan.info.name != name:
        raise InvalidInput(f"it has evaluations of {plan.info.name!r}; expected {name!r}")
    places = _places("inputs", plan.info.inputs, info.inputs)
    if len(plan.info.inputs) != len(info.inputs) or None in places:
        raise _unlike("inputs", plan.info.inputs, info.inputs)
    position = {place: here for here, place in enumerate(places)}
    entries = {
        (position[p.input], p.entry): np.where(
            np.isnan(plan.theta[:, j]), plan.fixed[p.input][p.entry], plan.theta[:, j]
        )
        for j, p in enumerate(plan.parameters)
        if p.input is not None
    }
    columns: dict[str, Sequence[Any]] = {
        p.name: p.spread.all_words(plan.theta[:, j])
        if isinstance(p.spread, Category)
        else plan.theta[:, j].tolist()
        for j, p in enumerate(plan.parameters)
        if p.input is None
    }
    keys = {p.name for p in bound.binding.parameters if p.input is None}
    if plan.seed_key in keys | set(bound.binding.config):
        # Without such a key the experiment, too, has a new random number for each point.
        columns[plan.seed_key] = [point_seed(plan.seed, point) for point in range(plan.size)]
    return SeedTable(
        status=file["status"][:],
        fixed=tuple(plan.fixed[place] for place in places if place is not None),
        entries=entries,
        config={key: value for key, value in plan.config.items() if key not in columns},
        columns=columns,
        outcomes=_of_outputs(file, plan, bound),
        block=max(1, min(BLOCK_ROWS, BLOCK_NUMBERS // max(1, plan.row_size))),
        version=plan.provenance.get("model_version", "") or plan.info.version,
    )


def _places(what: str, old: Sequence[TensorInfo], new: Sequence[TensorInfo]) -> list[int | None]:
    """Return which of a file's tensors is each of the model's: that of its name and shape.

    If names say nothing, as of servers without names, it is that of its position.
    """
    names = [[tensor.name for tensor in tensors] for tensors in (old, new)]
    if any(all(map(_BY_POSITION.fullmatch, several)) for several in names):
        places: list[int | None] = [i if i < len(old) else None for i in range(len(new))]
    else:
        by_name = {name: i for i, name in reversed(list(enumerate(names[0])))}
        places = [by_name.get(name) for name in names[1]]
    for tensor, i in zip(new, places, strict=True):
        if i is not None and old[i].size != tensor.size:
            raise _unlike(what, old, new)
    return places


def _unlike(what: str, old: Sequence[TensorInfo], new: Sequence[TensorInfo]) -> InvalidInput:
    return InvalidInput(f"it has the {what} {_shown(old)}; expected {_shown(new)}")


def _shown(tensors: Sequence[TensorInfo]) -> str:
    return ", ".join(f"{t.name} {list(t.shape)}" for t in tensors) or "none"


def _of_outputs(
    file: h5py.File, plan: Plan, bound: BoundModel
) -> Callable[[Array], list[Sequence[float] | str]]:
    """Return the outcomes of points from the outputs in a file. Raises InvalidInput."""
    info, positions = bound.info, output_places(bound.info.outputs)
    needed = {positions[name] for e in bound.expressions.values() for name in e.names}
    places = _places("outputs", plan.info.outputs, info.outputs)
    if any(places[i] is None for i in needed):
        raise _unlike("outputs", plan.info.outputs, info.outputs)
    columns = [
        (i, _output_column(plan, place))
        for i, place in enumerate(places)
        if place is not None and i in needed
    ]
    unread = [np.full(tensor.shape, np.nan) for tensor in info.outputs]

    def outcomes(points: Array) -> list[Sequence[float] | str]:
        arrays = {i: layout.read_values(file, [column], points) for i, column in columns}
        values: list[Sequence[float] | str] = []
        for row in range(len(points)):
            outputs = list(unread)
            for i, array in arrays.items():
                outputs[i] = array[row]
            try:
                values.append(list(bound.outcomes(Result(tuple(outputs))).values()))
            except (InvalidInput, InvalidOutput) as error:
                values.append(error.message)
        return values

    return outcomes


def _output_column(plan: Plan, output: int) -> Column:
    return next(c for c in plan.columns if c.input is None and c.output == output)


def _of_experiment(file: h5py.File, plan: Plan, config: Config, model: BoundModel) -> SeedTable:
    try:
        old = read_config(plan.provenance[EXPERIMENT])
        # The trials of clients are of no model: they count as evaluations of this one.
        former = read_evaluated_model(old if old.farm else replace(old, farm=config.farm))
        bound = former.bound(model.info)
    except FarmError as error:
        raise type(error)(f"the experiment in it: {error.message}") from None
    if former.name != model.model.name:
        name = model.model.name
        raise InvalidInput(f"its experiment evaluated {former.name!r}; expected {name!r}")
    column_of = {p.name: plan.theta[:, j] for j, p in enumerate(plan.parameters)}
    choices = {p.name: p.choices for p in old.parameters if p.choices}
    entries: dict[tuple[int, int], Array] = {}
    columns: dict[str, Sequence[Any]] = {}
    for place, name in bound.sources:
        target, values = bound.binding.parameters[place], column_of[name]
        if target.input is not None:
            entries[target.input, target.entry] = values
        elif name in choices:
            columns[target.name] = [choices[name][int(index)] for index in values]
        else:
            columns[target.name] = values.tolist()
    return SeedTable(
        status=file["status"][:],
        fixed=bound.binding.fixed,
        entries=entries,
        config={k: v for k, v in bound.binding.config.items() if k not in columns},
        columns=columns,
        outcomes=_of_trials(file, plan, old, bound, model),
    )


def _of_trials(
    file: h5py.File, plan: Plan, old: Config, former: BoundModel, model: BoundModel
) -> Callable[[Array], list[Sequence[float] | str]]:
    """Return the outcomes of an exported experiment's trials. Raises InvalidInput."""
    places = {outcome.name: (i, outcome.kind) for i, outcome in enumerate(old.outcomes)}
    was, now = former.expressions, model.expressions
    columns = []
    for outcome in model.model.wanted:
        place, kind = places.get(outcome.name, (0, None))
        if kind is not outcome.kind:
            said = ", ".join(f"{o.name} ({o.kind})" for o in old.outcomes)
            raise InvalidInput(
                f"its experiment has the outcomes {said}; expected {outcome.name} ({outcome.kind})"
            )
        if _meaning(was[outcome.name], model) != _meaning(now[outcome.name], model):
            raise InvalidInput(
                f"its outcome {outcome.name!r} is {was[outcome.name].text!r}; "
                f"expected {now[outcome.name].text!r}"
            )
        columns.append(_output_column(plan, place))

    def outcomes(points: Array) -> list[Sequence[float] | str]:
        return [*np.concatenate([layout.read_values(file, [c], points) for c in columns], axis=1)]

    return outcomes


def _meaning(expression: Expression, model: BoundModel) -> str:
    """Return a text that is the same for expressions that differ in spaces or names only."""
    positions = output_places(model.info.outputs)
    tree = ast.parse(expression.text, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in positions:
            node.id = f"out{positions[node.id]}"
    return ast.dump(tree)
