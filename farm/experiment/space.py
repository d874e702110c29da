"""Conversion between message values, coordinates in the user's units and the unit cube. Pure.

A point has the coordinates of the free parameters, in the order of the config. In the unit cube
every whole number, binary value and choice has a cell of equal size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from farm.call import Array
from farm.errors import InvalidInput, shortened
from farm.experiment.config.definition import Config, Parameter, ParameterKind
from farm.experiment.config.option_table import number_of
from farm.sweep.space.parameters import Choice, Distribution, Integer, Log, Uniform

WHOLE = frozenset({ParameterKind.INTEGER, ParameterKind.BINARY, ParameterKind.CATEGORICAL})
"""Kinds of parameters whose coordinates are whole numbers."""

SAME = 1e-6
"""Relative difference of coordinates that count as equal: clients may use single precision."""

FARTHEST = 1e6
"""Maximum distance from the unit cube: points may have any finite number, and are squared."""

COMPARED_AT_ONCE = 10**6
"""Coordinates compared per step, which bounds the memory of comparing many points with many."""


class Space:
    """The parameters of an experiment; `stimuli` points make one trial. Immutable."""

    def __init__(self, parameters: Sequence[Parameter], stimuli: int = 1) -> None:
        self.parameters = tuple(parameters)
        self.stimuli = stimuli
        self.free = tuple(p for p in parameters if p.kind is not ParameterKind.FIXED)
        self.lower = np.array([p.lower for p in self.free], dtype=np.float64)
        self.upper = np.array([p.upper for p in self.free], dtype=np.float64)
        self.whole = np.array([p.kind in WHOLE for p in self.free], dtype=bool)
        self.log = np.array([p.log_scale for p in self.free], dtype=bool)
        self._index = {p.name: i for i, p in enumerate(self.free)}
        # What is added before the logarithm: nothing if every value is positive.
        offset = [1.0 - p.lower if p.log_scale and p.lower <= 0 else 0.0 for p in self.free]
        self._offset = np.array(offset, dtype=np.float64)
        half = np.where(self.whole, 0.5, 0.0)
        self._start = self._scaled(self.lower - half)
        extent = self._scaled(self.upper + half) - self._start
        # Bounds may be so close that their logarithms are equal.
        self._extent = np.where(extent > 0, extent, 1.0)

    @staticmethod
    def of(config: Config) -> Space:
        """Return the space of a config."""
        return Space(config.parameters, config.stimuli)

    @property
    def dimensions(self) -> int:
        """Number of free parameters."""
        return len(self.free)

    def empty(self) -> Array:
        """Return an array without points: shape (0, stimuli, d)."""
        return np.empty((0, self.stimuli, self.dimensions))

    def rounded(self, points: Array) -> Array:
        """Return the points with whole-number coordinates rounded and without -0.0; not clamped."""
        return np.where(self.whole, np.floor(points + 0.5), points) + 0.0

    def clamped(self, points: Array) -> Array:
        """Return the points rounded and clamped to the bounds."""
        return np.clip(self.rounded(points), self.lower, self.upper) + 0.0

    def defined(self, points: Array) -> Array:
        """Return a mask of the points that are finite and have the needed logarithms.

        points: shape (n, stimuli, d).
        """
        logarithms = ~self.log | (points + self._offset > 0)
        mask: Array = np.all(np.isfinite(points) & logarithms, axis=(1, 2))
        return mask

    def to_unit(self, points: Array) -> Array:
        """Return positions in the unit cube, of the same shape (..., d).

        Points outside the bounds map to positions outside the cube, at most `FARTHEST` away.
        """
        with np.errstate(over="ignore"):
            unit = (self._scaled(self.rounded(points)) - self._start) / self._extent
        clipped: Array = np.clip(unit, -FARTHEST, FARTHEST)
        return clipped

    def from_unit(self, unit: Array) -> Array:
        """Return the points at positions in the unit cube, rounded and within the bounds."""
        scaled = self._start + np.clip(unit, 0.0, 1.0) * self._extent
        # Without a logarithm, its inverse may overflow and is not used.
        exponent = np.where(self.log, scaled, 0.0)
        return self.clamped(np.where(self.log, 10.0**exponent - self._offset, scaled))

    def decode(self, points: Array) -> dict[str, list[Any]]:
        """Return the values of points, shape (n, stimuli, d), in the form that `ask` returns."""
        values: dict[str, list[Any]] = {}
        for parameter in self.parameters:
            index = self._index.get(parameter.name)
            if index is None:
                one: Any = parameter.value
                column = [one if self.stimuli == 1 else [one] * self.stimuli] * len(points)
            else:
                numbers = points[:, :, index] if self.stimuli > 1 else points[:, 0, index]
                column = (numbers + 0.0).tolist()
                if parameter.kind is ParameterKind.CATEGORICAL:
                    choices = np.array(parameter.choices, dtype=object)
                    column = choices[numbers.astype(int)].tolist()
            values[parameter.name] = column
        return values

    def values(self, point: Array) -> dict[str, Any]:
        """Return the values of one point, shape (stimuli, d), by parameter name."""
        return {name: column[0] for name, column in self.decode(point[None]).items()}

    def encode(self, values: Mapping[str, Any]) -> tuple[Array, dict[str, Any]]:
        """Return the points in a message, shape (n, stimuli, d), and the values of its other names.

        values: for each parameter a value, a list with one per trial, or lists of one value; pairs
        if there are two stimuli. The other names are fixed parameters and names that are not
        parameters, with a list for the trials or one value for all. Raises InvalidInput.
        """
        if not isinstance(values, Mapping):
            raise InvalidInput(f"config is {_shown(values)}; expected an object of parameters")
        for parameter in self.parameters:
            if parameter.name not in values:
                raise InvalidInput(f"parameter {parameter.name!r} is missing in config")
        columns = [self._column(parameter, values[parameter.name]) for parameter in self.free]
        count = len(columns[0])
        extra: dict[str, Any] = {}
        lengths = {p.name: len(column) for p, column in zip(self.free, columns, strict=True)}
        for parameter in self.parameters:
            if parameter.kind is ParameterKind.FIXED:
                value = extra[parameter.name] = values[parameter.name]
                if isinstance(value, list | tuple):
                    trials = self._trials(parameter, value)
                    extra[parameter.name] = [t[0] if self.stimuli == 1 else t for t in trials]
                    lengths[parameter.name] = len(trials)
        for name, length in lengths.items():
            if length != count:
                raise InvalidInput(
                    f"parameter {name!r} has {length} trials in config, but "
                    f"{self.free[0].name!r} has {count}; expected as many of each"
                )
        known = {parameter.name for parameter in self.parameters}
        extra |= {str(name): value for name, value in values.items() if name not in known}
        return np.stack(columns, axis=-1), extra

    def held(self, values: Mapping[Any, Any] | None, where: str) -> dict[str, float]:
        """Return the coordinates held by `constraints` or `fixed_pars`, by parameter name.

        Keys are names, or positions among all parameters; values are `v` or `[v]`, within the
        bounds; fixed parameters may be named with their own value. Raises InvalidInput.
        """
        if not values:
            return {}
        if not isinstance(values, Mapping):
            raise InvalidInput(f"{where} is {_shown(values)}; expected an object of parameters")
        held = {}
        for key, value in values.items():
            parameter = self._parameter(key, where)
            one = single(value)
            if parameter.kind is not ParameterKind.FIXED:
                held[parameter.name] = coordinate(parameter, one)
            elif one != parameter.value and number_of(one) != parameter.value:
                raise InvalidInput(
                    f"{where} holds {parameter.name!r} at {_shown(one)}, but it is fixed "
                    f"at {parameter.value!r}"
                )
        for p in (parameter for parameter in self.free if parameter.name in held):
            number, whole = held[p.name], p.kind in WHOLE
            if not p.lower <= number <= p.upper or (whole and not number.is_integer()):
                raise InvalidInput(
                    f"{where} holds {p.name!r} at {number:g}; expected a "
                    f"{'whole number' if whole else 'value'} from {p.lower:g} to {p.upper:g}"
                )
        return held

    def hold(self, points: Array, fixed: Mapping[str, float]) -> Array:
        """Return the points with the coordinates in `fixed` replaced, by parameter name."""
        if not fixed:
            return points
        points = points.copy()
        for name, value in fixed.items():
            points[..., self._index[name]] = value
        return points

    def index(self, name: str) -> int:
        """Return the coordinate's index of a parameter. Raises KeyError for fixed parameters."""
        return self._index[name]

    def matches(self, points: Array, pending: Array) -> list[int]:
        """Return for each point the index of the pending point with equal values, or -1.

        points: shape (n, stimuli, d); pending: shape (p, stimuli, d). Each pending point matches at
        most once, the nearest first. Values are equal within `SAME`.
        """
        matched = [-1] * len(points)
        free = np.ones(len(pending), dtype=bool)
        step = max(1, COMPARED_AT_ONCE // max(1, pending.size))
        likely = self._likely(points, pending)
        for start in range(0, len(likely), step):
            several = likely[start : start + step]
            distances = self._relative_distances(points[several], pending)
            for row in np.flatnonzero(np.any(distances <= SAME, axis=1)):
                near = np.flatnonzero(free & (distances[row] <= SAME))
                if len(near):
                    best = near[np.argmin(distances[row, near])]
                    free[best] = False
                    matched[int(several[row])] = int(best)
        return matched

    def _likely(self, points: Array, pending: Array) -> Array:
        """Return the indices of points each of whose coordinates also occurs in some pending point.

        Of a hundred thousand points reported at once, only a few remain for the full comparison.
        """
        if not len(pending):
            return np.empty(0, dtype=np.int64)
        values, others = self.rounded(points), self.rounded(pending)
        with np.errstate(over="ignore"):
            near = 2 * SAME * self._scale_at(points)
            lower, upper = values - near, values + near
        likely = np.ones(len(points), dtype=bool)
        for at in np.ndindex(*points.shape[1:]):
            column = np.append(np.sort(others[:, *at]), np.inf)
            first = np.searchsorted(column[:-1], lower[:, *at])
            likely &= column[first] <= upper[:, *at]
        return np.flatnonzero(likely)

    def _scale_at(self, points: Array) -> Array:
        """Return the scale for differences of coordinates, in the points' shape."""
        scale = np.maximum(self.upper - self.lower, np.abs(points))
        # On a logarithmic scale, equality is relative for small values as for large ones.
        of_log = np.maximum(np.abs(points + self._offset), np.finfo(np.float64).tiny)
        scaled: Array = np.where(self.whole, 1.0, np.where(self.log, of_log, scale))
        return scaled

    def _relative_distances(self, points: Array, pending: Array) -> Array:
        """Return relative distances to the pending points, see `SAME`: shape (n, p)."""
        scale = self._scale_at(points)
        with np.errstate(over="ignore"):
            apart = np.abs(self.rounded(points)[:, None] - self.rounded(pending)) / scale[:, None]
        distances: Array = np.max(apart, axis=(2, 3), initial=0.0)
        return distances

    def _scaled(self, points: Array) -> Array:
        """Return the points with log10(v + offset) in place of log-scale coordinates."""
        if not self.log.any():
            return np.asarray(points, dtype=np.float64)
        # Points outside the bounds may have no logarithm: they are treated as far below.
        least = (self.lower - np.where(self.whole, 0.5, 0.0) + self._offset) * 1e-3
        shifted = np.where(self.log, np.maximum(points + self._offset, least), 1.0)
        return np.where(self.log, np.log10(shifted), points)

    def _column(self, parameter: Parameter, value: Any) -> Array:
        """Return the coordinates of a free parameter, shape (n, stimuli)."""
        if (
            self.stimuli == 1
            and isinstance(value, list)
            and parameter.kind is not ParameterKind.CATEGORICAL
            and set(map(type, value)) <= {float, int}
        ):
            # Most trials: converting a hundred thousand must not delay other clients.
            with suppress(OverflowError):
                column = np.array(value, dtype=np.float64).reshape(-1, 1) + 0.0
                if np.all(np.isfinite(column)):
                    return column
        trials = self._trials(parameter, value)
        coordinates = [[coordinate(parameter, v) for v in trial] for trial in trials]
        return np.array(coordinates, dtype=np.float64).reshape(len(trials), self.stimuli)

    def _trials(self, parameter: Parameter, value: Any) -> list[list[Any]]:
        """Return one list of `stimuli` values for each trial."""
        if not isinstance(value, list | tuple):
            value = [value]
        n = self.stimuli
        if n > 1 and len(value) == n and not any(isinstance(v, list | tuple) for v in value):
            return [list(value)]
        trials = [list(v) if isinstance(v, list | tuple) else [v] for v in value]
        for trial in trials:
            if len(trial) != n or any(isinstance(v, list | tuple | dict) for v in trial):
                expected = "one value" if n == 1 else f"a list of {n} values"
                raise InvalidInput(
                    f"parameter {parameter.name!r} has {_shown(trial)} for a trial in config; "
                    f"expected {expected}"
                )
        return trials

    def _parameter(self, key: Any, where: str) -> Parameter:
        for parameter in self.parameters:
            if parameter.name == key:
                return parameter
        position = number_of(key)
        if position is None or position not in range(len(self.parameters)):
            names = ", ".join(parameter.name for parameter in self.parameters)
            raise InvalidInput(
                f"{where} names {_shown(key)}; expected a parameter, {names}, or its position "
                f"from 0 to {len(self.parameters) - 1}"
            )
        return self.parameters[int(position)]


def single(value: Any) -> Any:
    """Return the value, or the only item of a list: clients may write 2 as [2]."""
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value


def spread_of(parameter: Parameter) -> Distribution:
    """Return the distribution that a sweep would have for a parameter, a new object each time."""
    if parameter.kind is ParameterKind.FIXED:
        return Choice((float(parameter.value or 0.0),))
    if parameter.kind in WHOLE:
        return Integer(int(parameter.lower), int(parameter.upper))
    if parameter.log_scale and parameter.lower > 0:
        return Log(parameter.lower, parameter.upper)
    return Uniform(parameter.lower, parameter.upper)


def coordinate(parameter: Parameter, value: Any) -> float:
    """Return the coordinate of a free parameter's value: a number, a numeric text or a choice.

    Values outside the bounds are accepted. Raises InvalidInput.
    """
    if parameter.kind is ParameterKind.CATEGORICAL:
        if value in parameter.choices:
            return float(parameter.choices.index(value))
        number = number_of(value)
        for index, choice in enumerate(parameter.choices):
            if number is not None and number_of(choice) == number:
                return float(index)
        expected = f"one of {', '.join(parameter.choices)}"
    else:
        number = number_of(value)
        if number is not None:
            return number
        expected = "a finite number"
    raise InvalidInput(f"parameter {parameter.name!r} is {_shown(value)}; expected {expected}")


def _shown(value: object) -> str:
    return shortened(repr(value), 60)
