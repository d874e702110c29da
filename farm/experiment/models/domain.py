"""The search space, as positions for a surrogate and as coordinates for the user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import torch

from farm.call import Array
from farm.experiment.config.definition import Parameter, ParameterKind
from farm.experiment.models.normal import DTYPE
from farm.experiment.space import Space

T = TypeVar("T")

FARTHEST = 1e3
"""Maximum distance from the unit cube: farther positions give no information about the cube."""

MOST_VALUES = 20
"""Whole-number parameters with more values are searched as if continuous, and rounded."""


class Domain:
    """All points that may be proposed, with some coordinates held, by parameter name.

    Positions have the shape (n, stimuli, d): those of the unit cube, but the index of the choice
    for categorical parameters. A search sees a trial as one row of stimuli * d columns: fixed ones
    with a value, discrete and categorical ones with few positions, and bounds (2, columns).
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
        values = {
            j: self._positions(j)
            for j, size in enumerate(sizes)
            if j in self.choices or size <= MOST_VALUES
        }
        still = self._still(values)
        few = {j: some for j, some in values.items() if j not in still}
        self.fixed = self._columns(still)
        self.discrete = self._columns({j: few[j] for j in few.keys() - self.choices})
        self.categorical = self._columns({j: few[j] for j in few.keys() & self.choices})
        ends = [(0.0, 1.0)] * (stimuli * len(free))
        for column, some in (self.discrete | self.categorical).items():
            ends[column] = some[0], some[-1]
        self.bounds = torch.tensor(ends, dtype=DTYPE).T.clone()

    def _still(self, values: Mapping[int, list[float]]) -> dict[int, float]:
        """Return the coordinates that are held or have a single value."""
        places = self.positions(self.space.hold(self.space.lower[None, None], self._held))[0, 0]
        single = {j: some[0] for j, some in values.items() if len(some) == 1}
        return single | {j: float(places[j]) for j in map(self.space.index, self._held)}

    def _columns(self, coordinates: Mapping[int, T]) -> dict[int, T]:
        """Return the values of coordinates by the columns of a trial."""
        d = len(self.free)
        every = range(self.stimuli * d)
        return {column: coordinates[column % d] for column in every if column % d in coordinates}

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

    def raw(self, positions: Array) -> Array:
        """Return raw coordinates: within the bounds, rounded and held where required."""
        raw = self.space.from_unit((positions + self._middle) / self._cells)
        return self.space.hold(raw, self._held)

    def positions(self, raw: Array) -> Array:
        """Return the positions of points; those far out are clamped to `FARTHEST`."""
        with np.errstate(over="ignore"):
            unit = np.clip(self.space.to_unit(raw), -FARTHEST, FARTHEST)
        # Choices must be exact whole numbers: equal choices then have equal features.
        cells: Array = np.where(self._middle > 0, np.round(unit * self._cells - self._middle), unit)
        return cells

    def snapped(self, positions: Array) -> Array:
        """Return the positions of the points after rounding, clamping and holding."""
        return self.positions(self.raw(positions))

    def sample(self, count: int, seed: int) -> Array:
        """Return space-filling points, the same for the same seed."""
        engine = torch.quasirandom.SobolEngine(self.bounds.shape[1], scramble=True, seed=seed)
        unit = engine.draw(count, dtype=DTYPE).numpy().reshape(count, self.stimuli, -1)
        return self.snapped(unit * self._cells - self._middle)
