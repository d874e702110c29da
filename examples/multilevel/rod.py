"""A heated rod of two materials: temperatures on a fine and on a coarse mesh.

    farm serve rod.py:Fine rod.py:Coarse --workers 4

The rod has length 1; its left half has one thermal resistance, its right half another. It is heated
evenly, held at temperature 0 on the left and insulated on the right.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_banded

import farm

Array = NDArray[np.float64]

SENSORS = np.array([0.2, 0.4, 0.6, 0.8])
"""Places of the sensors."""


def temperatures(resistance: Array, cells: int) -> Array:
    """Temperatures at the sensors by finite volumes, for resistances of shape (2,)."""
    width = 1.0 / cells
    centres = (np.arange(cells) + 0.5) * width
    each = width * np.where(centres < 0.5, resistance[0], resistance[1])
    # Conductances of the faces: the held left end, those between cells, the insulated right end.
    faces = 1.0 / np.concatenate([[each[0] / 2], (each[1:] + each[:-1]) / 2, [np.inf]])
    bands = np.zeros((3, cells))
    bands[0, 1:] = bands[2, :-1] = -faces[1:-1]
    bands[1] = faces[:-1] + faces[1:]
    solved = solve_banded((1, 1), bands, np.full(cells, width))
    at_sensors: Array = np.interp(SENSORS, centres, solved)
    return at_sensors


class Fine(farm.Model):
    """The rod on a mesh that has converged."""

    name = "fine"
    inputs = {"resistance": 2}
    outputs = {"temperature": 4}
    cells = 4096

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> Array:
        return temperatures(inputs["resistance"], self.cells)


class Coarse(Fine):
    """The rod on a mesh of eight cells: cheap, and wrong by about a percent."""

    name = "coarse"
    cells = 8


def exact() -> Array:
    """The exact temperatures by resistance, shape (4, 2): they are linear in the resistances."""
    heat = SENSORS - SENSORS**2 / 2  # the integral of the flux, 1 - x, from the held end
    left = np.minimum(heat, 0.375)
    return np.stack([left, heat - left], axis=1)
