"""The plan of a sweep: its table of points and the calls for each point."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np

from farm.call import (
    BYTES,
    Array,
    Call,
    Derivative,
    ModelInfo,
    Operation,
    TensorInfo,
    canonical_config,
    numpy_dtype,
)
from farm.sweep.design.points import Design, parse_design, point_seed, shuffled
from farm.sweep.errors import SweepError
from farm.sweep.space.binding import BoundParameter, BoundValues
from farm.sweep.space.correlation import Correlation
from farm.sweep.space.grammar import parse_distribution
from farm.sweep.space.parameters import Category
from farm.sweep.space.space import Condition, ParameterSpace
from farm.wording import counted

AUTO, SHUFFLED, GIVEN = "auto", "shuffled", "given"
ORDERS = (AUTO, SHUFFLED, GIVEN)
"""Longest first as soon as costs are known; mixed; or as numbered, for example in a table."""


@dataclass(frozen=True, slots=True)
class Column:
    """An array that each point yields. shape: of one point; output, input: by position.

    input: None for an output, otherwise the input of a gradient.
    """

    name: str
    shape: tuple[int, ...]
    output: int
    input: int | None = None

    @property
    def size(self) -> int:
        """Number of values per point."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class DesignPart:
    """Points of one design, in a sweep that was extended by others."""

    design: Design
    seed: int
    size: int

    def __str__(self) -> str:
        return f"{self.design} (seed {self.seed}, {counted(self.size, 'point')})"


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan(BoundValues):
    """The complete definition of a sweep's points; written once to the file and to its journal.

    theta: values (points, parameters): a word by its index, NaN for an inactive parameter. unit:
    the positions in the unit cube before they are correlated, None for a table.
    design, seed: those of the first points; parts: those of all, if the sweep was extended by
    another design.
    correlations, when, where: see `ParameterSpace`.
    gradients: (output, entry) pairs to differentiate with respect to every input.
    gzip: whether the complete file is compressed.
    provenance: facts about the origin of the sweep; no call depends on them.
    order: the rule for the order of the points, one of `ORDERS`.
    cost: relative run time of each point as given by the user, None if not given; cost_rule: how it
    was given, as text. Neither changes a result.
    """

    run_id: str
    design: Design
    seed: int
    theta: Array
    unit: Array | None = None
    seed_key: str = ""
    gradients: tuple[tuple[int, int], ...] = ()
    title: str = ""
    gzip: bool = False
    provenance: Mapping[str, str] = field(default_factory=dict)
    order: str = AUTO
    cost: Array | None = None
    cost_rule: str = ""
    correlations: tuple[Correlation, ...] = ()
    when: tuple[Condition, ...] = ()
    where: tuple[str, ...] = ()
    parts: tuple[DesignPart, ...] = ()

    @property
    def all_parts(self) -> tuple[DesignPart, ...]:
        """The designs of the points, in order."""
        return self.parts or (DesignPart(self.design, self.seed, self.size),)

    @property
    def designs(self) -> str:
        """The designs of the points as text."""
        if len(self.all_parts) == 1:
            return str(self.design)
        return " + ".join(str(part) for part in self.all_parts)

    @property
    def space(self) -> ParameterSpace:
        """The space that the points are drawn from."""
        return ParameterSpace(self, self.correlations, self.when, self.where)

    @property
    def size(self) -> int:
        """Number of points."""
        return len(self.theta)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The arrays that a finished point yields, in the order of its row of values."""
        columns = [
            Column(f"out_{i}", (tensor.size,), i) for i, tensor in enumerate(self.info.outputs)
        ]
        for i in sorted({output for output, _ in self.gradients}):
            rows = self.info.outputs[i].size
            columns += [
                Column(f"grad_{i}_{j}", (rows, tensor.size), i, j)
                for j, tensor in enumerate(self.info.inputs)
            ]
        return tuple(column for column in columns if column.size)

    @property
    def outputs(self) -> list[tuple[Column, TensorInfo]]:
        """The columns of outputs, which are those with at least one entry."""
        return [(c, self.info.outputs[c.output]) for c in self.columns if c.input is None]

    @cached_property
    def row_size(self) -> int:
        """Number of values that a finished point yields."""
        return sum(column.size for column in self.columns)

    def mixed(self) -> Array:
        """Return the points in the order in which they are submitted while no cost is known.

        Grids, factorial designs and tables are shuffled: neighbours have similar run times, so in
        their own order neither the first results nor the expected end would represent the rest.
        Other designs are mixed already.
        """
        kinds = {part.design.kind for part in self.all_parts}
        if kinds & {"grid", "ff", "file"} and self.order != GIVEN:
            return shuffled(self.size, self.seed)
        return np.arange(self.size)

    def column(self, parameter: int) -> Array:
        """Return a parameter's number at each point: int64 if all are whole numbers, or float64.

        It is NaN where the parameter is inactive, and the index of a word.
        """
        values: Array = self.theta[:, parameter]
        whole = self.parameters[parameter].whole and not np.any(np.isnan(values))
        return values.astype(np.int64) if whole else values

    @property
    def varies_config(self) -> bool:
        """Whether points have different configs."""
        return bool(self.seed_key) or any(p.input is None for p in self.parameters)

    def value_of(self, point: int, column: int) -> float | str | None:
        """Return the value of a parameter at a point; None if it is inactive.

        A word is text, and a number is int if all values of the parameter are whole.
        """
        value, parameter = float(self.theta[point, column]), self.parameters[column]
        if np.isnan(value):
            return None
        if isinstance(parameter.spread, Category):
            return parameter.spread.words[int(value)]
        return int(value) if parameter.whole else value

    def values_of(self, point: int) -> dict[str, float | str | None]:
        """Return the parameters of a point by name, as `value_of` does."""
        return {p.name: self.value_of(point, j) for j, p in enumerate(self.parameters)}

    def config_of(self, point: int) -> dict[str, Any]:
        """Return the config of one point, without the keys that are inactive there."""
        config = dict(self.config)
        for j, parameter in enumerate(self.parameters):
            if parameter.input is None:
                value = self.value_of(point, j)
                if value is not None:
                    config[parameter.name] = value
        if self.seed_key:
            config[self.seed_key] = point_seed(self.seed, point)
        return config

    def inputs_at(self, points: Array) -> tuple[Array, ...]:
        """Return the inputs of these points: each as an array with a row for each point.

        They have the model's order, shapes and dtypes.
        """
        tensors = self.info.inputs
        flat = [
            np.full((len(points), len(array)), b"", dtype=object)
            if tensor.dtype == BYTES
            else array[None].repeat(len(points), axis=0)
            for array, tensor in zip(self.fixed, tensors, strict=True)
        ]
        for i, entry, text in self.texts:
            flat[i][:, entry] = text.encode()
        for j, parameter in enumerate(self.parameters):
            if parameter.input is not None:
                values = self.theta[points, j]
                active = ~np.isnan(values)
                values = values[active]
                if isinstance(parameter.spread, Category):
                    words = np.array([w.encode() for w in parameter.spread.words], dtype=object)
                    values = words[values.astype(np.int64)]
                flat[parameter.input][active, parameter.entry] = values
        return tuple(
            array.astype(numpy_dtype(tensor.dtype), copy=False).reshape(len(points), *tensor.shape)
            for array, tensor in zip(flat, tensors, strict=True)
        )

    def inputs_of(self, point: int) -> tuple[Array, ...]:
        """Return the inputs of one point in the model's order, shapes and dtypes."""
        return tuple([array[0, ...] for array in self.inputs_at(np.array([point]))])

    def calls(self, point: int) -> tuple[Call, ...]:
        """Return the calls of one point: an evaluation, then gradients as in `derivatives`."""
        return self.calls_at(np.array([point]))[0]

    def calls_at(self, points: Array) -> list[tuple[Call, ...]]:
        """Return the calls of each of these points."""
        # Arrays also of the rows of one number each, which iterating would give as numbers.
        rows = [[array[k, ...] for k in range(len(points))] for array in self.inputs_at(points)]
        inputs = zip(*rows, strict=True) if rows else repeat((), len(points))
        configs: Iterable[str] = repeat(canonical_config(self.config), len(points))
        if self.varies_config:
            configs = [canonical_config(self.config_of(point)) for point in points.tolist()]
        evaluations = [
            Call(self.info.name, Operation.EVALUATE, arrays, config)
            for arrays, config in zip(inputs, configs, strict=True)
        ]
        gradients = [
            [replace(e, operation=Operation.GRADIENT, derivative=wrt) for e in evaluations]
            for wrt in self.derivatives
        ]
        return list(zip(evaluations, *gradients, strict=True))

    @cached_property
    def derivatives(self) -> tuple[Derivative, ...]:
        """The gradients to compute at each point: J^T e for the chosen entries and every input."""
        asked = []
        for output, entry in self.gradients:
            sens = np.zeros(self.info.outputs[output].size)
            sens[entry] = 1.0
            asked += [
                Derivative(output, j, sens=sens)
                for j, tensor in enumerate(self.info.inputs)
                if tensor.size
            ]
        return tuple(asked)

    def tensor_of(self, parameter: BoundParameter) -> TensorInfo | None:
        """Return the input that a parameter is an entry of; None for a key of the config."""
        return None if parameter.input is None else self.info.inputs[parameter.input]

    @property
    def theta_hash(self) -> str:
        """SHA-256 of theta's bytes (little-endian float64, C order), in hexadecimal."""
        return hashlib.sha256(np.ascontiguousarray(self.theta, dtype="<f8").data).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return all but theta and unit as JSON data, which `from_json` reads back."""
        return {
            "run_id": self.run_id,
            "title": self.title,
            "info": self.info.to_json(),
            "parameters": [
                [p.name, None if p.spread is None else str(p.spread), p.input, p.entry, p.whole]
                for p in self.parameters
            ],
            "fixed": [[None if np.isnan(v) else float(v) for v in array] for array in self.fixed],
            "config": dict(self.config),
            "design": str(self.design),
            "seed": self.seed,
            "seed_key": self.seed_key,
            "gradients": [list(pair) for pair in self.gradients],
            "gzip": self.gzip,
            "provenance": dict(self.provenance),
            **{key: value for key, value in self._if_any().items() if value},
        }

    def _if_any(self) -> dict[str, Any]:
        """Return what most plans have not as JSON data."""
        return {
            "order": "" if self.order == AUTO else self.order,
            "cost": "" if self.cost is None else self.cost_rule,
            "texts": [list(text) for text in self.texts],
            "correlations": [[c.one, c.other, c.value] for c in self.correlations],
            "when": [list(condition) for condition in self.when],
            "where": list(self.where),
            "parts": [[str(part.design), part.seed, part.size] for part in self.parts],
        }

    @staticmethod
    def from_json(
        data: Mapping[str, Any], theta: Array, unit: Array | None, cost: Array | None = None
    ) -> Plan:
        """Read the data of `to_json`. Raises KeyError, TypeError, ValueError for other data."""
        return Plan(
            run_id=data["run_id"],
            title=data["title"],
            info=ModelInfo.from_json(data["info"]),
            parameters=tuple(
                BoundParameter(
                    name, None if spread is None else parse_distribution(spread), i, entry, whole
                )
                for name, spread, i, entry, whole in data["parameters"]
            ),
            fixed=tuple(np.array(values, dtype=np.float64) for values in data["fixed"]),
            config=data["config"],
            design=parse_design(data["design"]),
            seed=data["seed"],
            theta=theta,
            unit=unit,
            seed_key=data["seed_key"],
            gradients=tuple((output, entry) for output, entry in data["gradients"]),
            gzip=data["gzip"],
            provenance=data["provenance"],
            order=data.get("order", AUTO),
            cost=cost,
            cost_rule=data.get("cost", ""),
            texts=tuple((i, entry, text) for i, entry, text in data.get("texts", ())),
            correlations=tuple(Correlation(*c) for c in data.get("correlations", ())),
            when=tuple((name, text) for name, text in data.get("when", ())),
            where=tuple(data.get("where", ())),
            parts=tuple(
                DesignPart(parse_design(design), seed, size)
                for design, seed, size in data.get("parts", ())
            ),
        )


def plan_from_text(text: str, theta: Array, unit: Array | None, cost: Array | None = None) -> Plan:
    """Parse a plan from the text in a file or journal. Raises SweepError if that fails."""
    try:
        return Plan.from_json(json.loads(text), theta, unit, cost)
    except (KeyError, TypeError, ValueError) as error:
        raise SweepError(f"the plan of this sweep cannot be read: {error!r}") from error
