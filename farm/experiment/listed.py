"""Options of generators that need no surrogate: listed points, boxes around them, blocks. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from farm.call import Array
from farm.errors import InvalidInput
from farm.experiment.config import Generator, Parameter, ParameterKind
from farm.experiment.ini import Nested, Section, number_of
from farm.experiment.names import MANUAL, SAMPLE_AROUND
from farm.experiment.space import Space, coordinate

MOST_POINTS = 10**6
MOST_NUMBERS = 10**7
"""Listed points, those around them included, and their coordinates; they are made at once."""

SMALLEST_BLOCK, LARGEST_BLOCK = 16, 4096
"""Points of one Latin hypercube; all of it is made for every ask."""


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """A list of points and how they are given.

    points: shape (n, stimuli, d). window: half the width of the box around each, shape (d,), in the
    user's units; None: the points themselves. around: points taken in each box.
    """

    points: Array
    shuffle: bool
    window: Array | None = None
    around: int = 1

    def __len__(self) -> int:
        return len(self.points) * self.around


def read_listed(generator: Generator, space: Space) -> Listed:
    """The list of a generator that has one, the same object again. Raises InvalidInput."""
    options = tuple(generator.options.items())
    return _read(generator.kind, generator.name, options, space.parameters, space.stimuli)


@lru_cache(maxsize=32)
def _read(
    kind: str,
    name: str,
    options: tuple[tuple[str, str], ...],
    parameters: tuple[Parameter, ...],
    stimuli: int,
) -> Listed:
    section = Section(name, dict(options), dict(options))
    space = Space(parameters, stimuli)
    points = _points(section, space)
    points.flags.writeable = False
    shuffle = section.flag("shuffle", True)
    if kind == MANUAL:
        return Listed(points, shuffle)
    assert kind == SAMPLE_AROUND
    around = section.whole("samples_per_point", 1, least=1)
    most = min(MOST_POINTS, MOST_NUMBERS // points[0].size)
    if len(points) * around > most:
        raise section.wrong("samples_per_point", f"{most} points at most in all")
    return Listed(points, shuffle, _window(section, space), around)


def _points(section: Section, space: Space) -> Array:
    total, free = len(space.parameters), space.dimensions
    pairs = "" if space.stimuli == 1 else f", each {space.stimuli} values, one for each stimulus"
    expected = f"a list of points such as [[0, 1], [1, 0]], with {free} values each{pairs}"
    rows = section.rows("points", expected)
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
                points[i, :, space.index(parameter.name)] = _values(
                    section, space, parameter, value
                )
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
    """The coordinate that a value in a list has. Raises InvalidInput.

    Other servers read nothing but numbers there: of choices that are none, one is its position.
    """
    position = number_of(text)
    are_texts = all(number_of(choice) is None for choice in parameter.choices)
    if position is not None and are_texts and position in range(len(parameter.choices)):
        return position
    return coordinate(parameter, text)


def _window(section: Section, space: Space) -> Array:
    expected = "a number, or one for each parameter, 0 or more"
    window = section.numbers("window", expected)
    if len(window) == len(space.parameters) != space.dimensions:
        free = [p.kind is not ParameterKind.FIXED for p in space.parameters]
        window = window[free]
    if len(window) not in (1, space.dimensions) or np.any(window < 0):
        raise section.wrong("window", expected)
    return np.broadcast_to(window, (space.dimensions,)).astype(np.float64)


def block_size(section: Section, min_asks: int) -> int:
    """Points of one Latin hypercube: `size`, else as many as are asked for at least.

    Raises InvalidInput.
    """
    size = section.whole("size", min(max(min_asks, SMALLEST_BLOCK), LARGEST_BLOCK), least=1)
    if size > LARGEST_BLOCK:
        raise section.wrong("size", f"a whole number from 1 to {LARGEST_BLOCK}")
    return size


def outside(listed: Listed, space: Space) -> int:
    """How many of the listed points have a coordinate outside of the bounds."""
    beyond = (listed.points < space.lower) | (listed.points > space.upper)
    return int(np.any(beyond, axis=(1, 2)).sum())


def check_held(generator: Generator, fixed: object) -> None:
    """Raise InvalidInput when coordinates are to be held of points that are listed."""
    if fixed:
        raise InvalidInput(
            f"fixed_pars cannot be held: {generator.name} gives the points of its list"
        )
