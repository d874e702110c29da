"""A Gaussian plume of smoke from a source of unknown place and strength."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import farm

Array = NDArray[np.float64]

WIND = 4.0
"""Wind speed in metres a second, along x."""
HEIGHT = 20.0
"""Height of the source, metres; the sensors are on the ground."""
SENSORS = np.array(
    [
        (400, -60),
        (400, 60),
        (700, -120),
        (700, 0),
        (700, 120),
        (1200, -100),
        (1200, 100),
        (2000, 0),
    ],
    dtype=float,
)
"""x and y of each sensor, metres; the source is at x = 0."""


def concentration(y0: Array, strength: Array) -> Array:
    """Micrograms a cubic metre at the sensors, shape (rows, 8).

    y0: crosswind place of the source, metres; strength: grams a second; both of shape (rows,).
    Source: Briggs' dispersion for neutral air over open country; the ground reflects.
    """
    x, y = SENSORS.T
    sigma_y = 0.08 * x / np.sqrt(1.0 + 1e-4 * x)
    sigma_z = 0.06 * x / np.sqrt(1.0 + 1.5e-3 * x)
    across = np.exp(-0.5 * ((y - y0[:, None]) / sigma_y) ** 2)
    along = np.exp(-0.5 * (HEIGHT / sigma_z) ** 2) / (np.pi * WIND * sigma_y * sigma_z)
    result: Array = 1e6 * strength[:, None] * across * along
    return result


class Plume(farm.Model):
    """theta = (y0 in metres, log of the strength in grams a second) to 8 concentrations.

    `evaluate` takes many rows at once: the farm joins the queued walkers into one call.
    """

    name = "plume"
    description = "Gaussian plume: place and log strength of a source to 8 ground concentrations"
    inputs = {"theta": 2}
    outputs = {"concentration": len(SENSORS)}
    max_batch = 64

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> Array:
        y0, log_strength = inputs["theta"].T
        return concentration(y0, np.exp(log_strength))
