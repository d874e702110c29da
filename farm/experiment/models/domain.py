"""The points among which is searched, as rows of a Gaussian process and as what the user sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from farm.call import Array
from farm.experiment.config import Parameter, ParameterKind
from farm.experiment.models.normal import DTYPE
from farm.experiment.space import Space

DISCRETE = (ParameterKind.INTEGER, ParameterKind.BINARY, ParameterKind.CATEGORICAL)

FARTHEST = 1e3
"""Positions farther out say nothing about the unit cube, and their squares are to be numbers."""


@dataclass(frozen=True, slots=True)
class Features:
    """How points of the unit cube become features: categorical coordinates are spread out.

    Choices have no order: each gets a feature of its own, and any two are one apart.
    """

    choices: tuple[int, ...]  # of each coordinate: 0 for one that is a feature as it is

    @classmethod
    def of(cls, free: tuple[Parameter, ...]) -> Features:
        return cls(
            tuple(
                int(p.upper - p.lower) + 1 if p.kind is ParameterKind.CATEGORICAL else 0
                for p in free
            )
        )

    @property
    def count(self) -> int:
        return sum(max(number, 1) for number in self.choices)

    def __call__(self, unit: Tensor) -> Tensor:
        """Shape (..., count) of unit coordinates (..., d)."""
        if not any(self.choices):
            return unit
        columns = []
        for j, number in enumerate(self.choices):
            column = unit[..., j : j + 1]
            if number:
                index = (column[..., 0] * number).floor().long().clamp(0, number - 1)
                column = torch.nn.functional.one_hot(index, number).to(DTYPE) / 2**0.5
            columns.append(column)
        return torch.cat(columns, -1)

    def singles(self, unit: Tensor, *, pairs: bool) -> Tensor:
        """Rows of single points, shape (..., r) of (..., d)."""
        features = self(unit)
        if not pairs:
            return features
        zero = torch.zeros_like(features[..., :1])
        return torch.cat([torch.zeros_like(features), features, zero], -1)

    def trials(self, unit: Tensor, *, pairs: bool) -> Tensor:
        """Rows of whole trials, shape (..., r) of (..., stimuli, d)."""
        features = self(unit)
        if not pairs:
            return features[..., 0, :]
        one = torch.ones_like(features[..., 0, :1])
        return torch.cat([features[..., 0, :], features[..., 1, :], one], -1)


class Domain:
    """Every point that may be given, some coordinates held.

    held: raw coordinates by the parameter's name. Unit arrays have the shape (n, stimuli, d).
    """

    def __init__(
        self, parameters: tuple[Parameter, ...], stimuli: int, held: Mapping[str, float]
    ) -> None:
        self.free = free = tuple(p for p in parameters if p.kind is not ParameterKind.FIXED)
        self.stimuli = stimuli
        self.space = Space(parameters, stimuli)
        self._held = {j: held[p.name] for j, p in enumerate(free) if p.name in held}
        self.discrete = tuple(
            j for j, p in enumerate(free) if p.kind in DISCRETE and j not in self._held
        )
        self.relaxed = tuple(j for j in self.discrete if free[j].kind is ParameterKind.INTEGER)

    @property
    def held(self) -> tuple[int, ...]:
        """The coordinates that stay as they are."""
        return tuple(self._held)

    def raw(self, unit: Array) -> Array:
        """What the user sees: in the bounds, whole where whole is due, held where held."""
        raw = self.space.from_unit(unit)
        for j, value in self._held.items():
            raw[..., j] = value
        return raw

    def unit(self, raw: Array) -> Array:
        """Positions in the unit cube; points far outside of the bounds count as less far."""
        with np.errstate(over="ignore"):
            unit: Array = np.clip(self.space.to_unit(raw), -FARTHEST, FARTHEST)
        return unit

    def snapped(self, unit: Array) -> Array:
        """The unit coordinates of the points that would really be given."""
        return self.unit(self.raw(unit)) if len(unit) else unit

    def sample(self, count: int, seed: int) -> Array:
        """Points that fill the space, the same for the same seed."""
        d = len(self.free)
        engine = torch.quasirandom.SobolEngine(self.stimuli * d, scramble=True, seed=seed)
        unit = engine.draw(count, dtype=DTYPE).numpy().reshape(count, self.stimuli, d)
        return self.snapped(unit)

    def neighbours(self, unit: Array) -> Array:
        """Points one step away in one discrete coordinate, shape (m, stimuli, d) of (s, d)."""
        raw = self.raw(unit[None])[0]
        found = []
        for stimulus in range(self.stimuli):
            for j in self.discrete:
                p, here = self.free[j], raw[stimulus, j]
                if p.kind is ParameterKind.CATEGORICAL:
                    values = [float(v) for v in range(int(p.upper) + 1) if v != here]
                else:
                    values = [v for v in (here - 1, here + 1) if p.lower <= v <= p.upper]
                for value in values:
                    moved = raw.copy()
                    moved[stimulus, j] = value
                    found.append(moved)
        return self.unit(np.array(found)) if found else np.empty((0, *unit.shape))
