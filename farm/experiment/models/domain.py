"""The search space, as positions for a surrogate and as coordinates for the user."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from farm.call import Array
from farm.experiment.config.definition import Parameter, ParameterKind
from farm.experiment.config.space import Space
from farm.experiment.models.normal import DTYPE

FARTHEST = 1e3
"""Maximum distance from the unit cube: positions farther out give no information about the cube,
and their squares must stay finite.
"""

MOST_VALUES = 20
"""Whole-number parameters with more values are searched as if continuous, and rounded."""


class Domain:
    """All points that may be proposed, with some coordinates held.

    held: raw coordinates by parameter name. Positions have the shape (n, stimuli, d): those of the
    unit cube, but the index of the choice for categorical parameters. A search sees a trial as one
    row of stimuli * d columns.
    """

    def __init__(
        self, parameters: tuple[Parameter, ...], stimuli: int, held: Mapping[str, float]
    ) -> None:
        self.free = free = tuple(p for p in parameters if p.kind is not ParameterKind.FIXED)
        self.stimuli = stimuli
        self.space = Space(parameters, stimuli)
        self._held = {p.name: held[p.name] for p in free if p.name in held}
        sizes = [self._size(p) for p in free]
        categorical = [p.kind is ParameterKind.CATEGORICAL for p in free]
        self._cells = np.where(categorical, sizes, 1.0)
        self._middle = np.where(categorical, 0.5, 0.0)
        self.choices = {j: int(size) for j, size in enumerate(sizes) if categorical[j] and size > 1}
        self._few = {
            j: self._positions(j)
            for j, size in enumerate(sizes)
            if j in self.choices or size <= MOST_VALUES
        }

    @staticmethod
    def _size(parameter: Parameter) -> float:
        """Return the number of values of a parameter."""
        if parameter.kind is ParameterKind.CONTINUOUS and parameter.upper > parameter.lower:
            return np.inf
        return parameter.upper - parameter.lower + 1

    def _positions(self, j: int) -> list[float]:
        """Return the positions of all values of a coordinate."""
        parameter = self.free[j]
        raw = np.tile(self.space.lower, (int(self._size(parameter)), 1, 1))
        raw[:, 0, j] = np.arange(parameter.lower, parameter.upper + 1)
        positions: list[float] = self.positions(raw)[:, 0, j].tolist()
        return positions

    def _columns(self) -> range:
        return range(self.stimuli * len(self.free))

    @property
    def fixed(self) -> dict[int, float]:
        """Return the constant columns and their values."""
        d = len(self.free)
        still = {j: few[0] for j, few in self._few.items() if len(few) == 1}
        held = self.positions(self.space.hold(self.space.lower[None, None], self._held))[0, 0]
        still |= {j: float(held[j]) for j in map(self.space.index, self._held)}
        return {column: still[column % d] for column in self._columns() if column % d in still}

    @property
    def discrete(self) -> dict[int, list[float]]:
        """Return the ordered positions of columns with few values."""
        return self._of_columns(ordered=True)

    @property
    def categorical(self) -> dict[int, list[float]]:
        """Return the positions of columns without an order."""
        return self._of_columns(ordered=False)

    def _of_columns(self, *, ordered: bool) -> dict[int, list[float]]:
        d, fixed = len(self.free), self.fixed
        return {
            column: self._few[column % d]
            for column in self._columns()
            if column not in fixed
            and column % d in self._few
            and (column % d not in self.choices) == ordered
        }

    @property
    def bounds(self) -> Tensor:
        """Return the bounds of the columns, shape (2, stimuli * d)."""
        bounds = torch.tensor([[0.0, 1.0]] * len(self._columns()), dtype=DTYPE).T.clone()
        for column, few in (self.discrete | self.categorical).items():
            bounds[0, column], bounds[1, column] = few[0], few[-1]
        return bounds

    def raw(self, positions: Array) -> Array:
        """Return raw coordinates: within the bounds, rounded and held where required."""
        raw = self.space.from_unit((positions + self._middle) / self._cells)
        return self.space.hold(raw, self._held)

    def positions(self, raw: Array) -> Array:
        """Return the positions of points; those far out are clamped to `FARTHEST`."""
        with np.errstate(over="ignore"):
            unit = np.clip(self.space.to_unit(raw), -FARTHEST, FARTHEST)
        # Choices must be exact whole numbers: equal choices then have equal features.
        found: Array = np.where(self._middle > 0, np.round(unit * self._cells - self._middle), unit)
        return found

    def snapped(self, positions: Array) -> Array:
        """Return the positions of the points after rounding, clamping and holding."""
        return self.positions(self.raw(positions))

    def sample(self, count: int, seed: int) -> Array:
        """Return space-filling points, the same for the same seed."""
        engine = torch.quasirandom.SobolEngine(len(self._columns()), scramble=True, seed=seed)
        unit = engine.draw(count, dtype=DTYPE).numpy().reshape(count, self.stimuli, -1)
        return self.snapped(unit * self._cells - self._middle)
