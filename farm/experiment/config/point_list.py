"""The points that a config lists, and boxes around them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from farm.call import Array
from farm.errors import InvalidInput
from farm.experiment.config import options
from farm.experiment.config.definition import Generator, GeneratorKind, Parameter, ParameterKind
from farm.experiment.config.ini import Nested, Section
from farm.experiment.config.option_table import number_of
from farm.experiment.space import Space, coordinate

MOST_POINTS = 10**6
MOST_NUMBERS = 10**7
"""Maximum listed points, with those around them, and coordinates: all are created at once."""


@dataclass(frozen=True, slots=True, eq=False)
class PointList:
    """A list of points and how to draw from it.

    points: shape (n, stimuli, d). window: half the width of the box around each point, shape (d,),
    in the user's units; None: the points themselves. around: points drawn in each box.
    """

    points: Array
    shuffle: bool
    window: Array | None = None
    around: int = 1

    def __len__(self) -> int:
        return len(self.points) * self.around


def read_point_list(generator: Generator, space: Space) -> PointList:
    """Return the point list of a generator that has one; cached. Raises InvalidInput."""
    texts = tuple(generator.options.items())
    return _read(generator.kind, generator.name, texts, space.parameters, space.stimuli)


@lru_cache(maxsize=32)
def _read(
    kind: str,
    name: str,
    texts: tuple[tuple[str, str], ...],
    parameters: tuple[Parameter, ...],
    stimuli: int,
) -> PointList:
    section = Section(name, dict(texts), dict(texts))
    space = Space(parameters, stimuli)
    points = _points(section, space)
    points.setflags(write=False)
    values = options.GENERATOR.read_all(section, kind)
    if kind == GeneratorKind.MANUAL:
        return PointList(points, values["shuffle"])
    assert kind == GeneratorKind.SAMPLE_AROUND
    around = values["samples_per_point"]
    most = min(MOST_POINTS, MOST_NUMBERS // points[0].size)
    if len(points) * around > most:
        raise section.wrong("samples_per_point", f"{most} points at most in all")
    window = _window(section, space, values["window"])
    return PointList(points, values["shuffle"], window, around)


def _points(section: Section, space: Space) -> Array:
    total, free = len(space.parameters), space.dimensions
    pairs = "" if space.stimuli == 1 else f", each {space.stimuli} values, one for each stimulus"
    expected = f"a list of points such as [[0, 1], [1, 0]], with {free} values each{pairs}"
    rows: list[Nested] = options.GENERATOR.read(section, "points", expected)
    if not rows:
        raise section.wrong("points", expected)
    if total == 1 and all(isinstance(row, str) for row in rows):
        rows = [[row] for row in rows]
    elif all(isinstance(row, str) for row in rows):
        rows = [rows]
    if len(rows) > MOST_POINTS:
        raise section.wrong("points", f"{MOST_POINTS} points at most")
    points = np.empty((len(rows), space.stimuli, free))
    for i, row in enumerate(rows):
        if isinstance(row, str) or len(row) not in (free, total):
            raise section.wrong("points", f"{expected}, but point {i} differs")
        parameters = space.parameters if len(row) == total else space.free
        for parameter, value in zip(parameters, row, strict=True):
            if parameter.kind is not ParameterKind.FIXED:
                column = space.index(parameter.name)
                points[i, :, column] = _values(section, space, parameter, value)
    return space.rounded(points)


def _values(section: Section, space: Space, parameter: Parameter, value: Nested) -> list[float]:
    values = [value] if isinstance(value, str) else value
    if len(values) != space.stimuli or any(not isinstance(v, str) for v in values):
        raise section.wrong("points", f"{space.stimuli} value(s) for each parameter of a point")
    try:
        return [_coordinate(parameter, str(v)) for v in values]
    except InvalidInput as error:
        raise InvalidInput(f"{section.where('points')}: {error.message}") from None


def _coordinate(parameter: Parameter, text: str) -> float:
    """Return the coordinate of a value; a number may be the position of a choice that is none.

    Raises InvalidInput.
    """
    position = number_of(text)
    are_texts = all(number_of(choice) is None for choice in parameter.choices)
    if position is not None and are_texts and position in range(len(parameter.choices)):
        return position
    return coordinate(parameter, text)


def _window(section: Section, space: Space, window: Array) -> Array:
    if len(window) == len(space.parameters) != space.dimensions:
        free = [p.kind is not ParameterKind.FIXED for p in space.parameters]
        window = window[free]
    if len(window) not in (1, space.dimensions):
        raise options.GENERATOR.wrong(section, "window")
    return np.broadcast_to(window, (space.dimensions,)).astype(np.float64)


def outside(listed: PointList, space: Space) -> int:
    """Return the number of listed points with a coordinate outside the bounds."""
    beyond = (listed.points < space.lower) | (listed.points > space.upper)
    return int(np.any(beyond, axis=(1, 2)).sum())
