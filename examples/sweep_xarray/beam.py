"""A cantilever under its load: stiffness, load and thickness are uncertain."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import farm

Array = NDArray[np.float64]

LENGTH = 2.0
WIDTH = 0.1
"""Both in metres."""
ELEMENTS = 30
PLACES = np.linspace(0.0, LENGTH, ELEMENTS + 1)
"""Where the deflection is given, metres from the wall."""


def element_matrices(h: float) -> tuple[Array, Array]:
    """Stiffness for E I = 1 and load for q = 1 of one Euler-Bernoulli element of length h."""
    stiffness = np.array(
        [
            [12.0, 6.0 * h, -12.0, 6.0 * h],
            [6.0 * h, 4.0 * h * h, -6.0 * h, 2.0 * h * h],
            [-12.0, -6.0 * h, 12.0, -6.0 * h],
            [6.0 * h, 2.0 * h * h, -6.0 * h, 4.0 * h * h],
        ]
    )
    load = np.array([h / 2.0, h * h / 12.0, h / 2.0, -h * h / 12.0])
    return stiffness / h**3, load


def deflection(youngs_modulus: float, load: float, thickness: float) -> Array:
    """Deflection at PLACES in metres; Pa, N/m and m in. Cubic finite elements, exact at nodes."""
    k_element, f_element = element_matrices(LENGTH / ELEMENTS)
    size = 2 * (ELEMENTS + 1)  # a deflection and a slope at each node
    stiffness, force = np.zeros((size, size)), np.zeros(size)
    for e in range(ELEMENTS):
        at = slice(2 * e, 2 * e + 4)
        stiffness[at, at] += k_element
        force[at] += f_element
    inertia = WIDTH * thickness**3 / 12.0
    solution = np.zeros(size)  # the wall holds the first node's deflection and slope at 0
    solution[2:] = np.linalg.solve(youngs_modulus * inertia * stiffness[2:, 2:], load * force[2:])
    return solution[::2]


class Beam(farm.Model):
    """Young's modulus (Pa), load (N/m) and thickness (m) to the deflection at 31 places (m)."""

    name = "beam"
    description = "Cantilever under uniform load, Euler-Bernoulli, 30 cubic finite elements"
    inputs = {"E": 1, "load": 1, "thickness": 1}
    outputs = {"deflection": ELEMENTS + 1}

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> Array:
        return deflection(*(float(inputs[name][0]) for name in self.inputs))
