"""The steady temperature of a square plate whose edges are kept at 0, from its heat sources."""

from __future__ import annotations

from typing import Any

import numpy as np

import farm

POINTS = 31
"""Inner grid points in each direction; the plate is 1 m wide."""
_K = np.arange(1, POINTS + 1)
SINES = np.sqrt(2 / (POINTS + 1)) * np.sin(np.pi * np.outer(_K, _K) / (POINTS + 1))
"""The eigenvectors of the second difference, a symmetric orthogonal matrix."""
EIGENVALUES = (2 * (POINTS + 1) * np.sin(np.pi * _K / (2 * (POINTS + 1)))) ** 2


class Plate(farm.Model):
    """-laplace T = source / k with the five-point stencil, solved by sine transforms."""

    inputs = {"source": farm.TensorInfo("source", (POINTS, POINTS), "float32")}  # W/m^3
    outputs = {"temperature": farm.TensorInfo("temperature", (POINTS, POINTS), "float32")}  # K
    max_batch = 32

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> Any:
        """T; `config["k"]` is the conductivity in W/(m K), 1 if not given."""
        modes = SINES @ inputs["source"].astype(np.float64) @ SINES
        modes /= EIGENVALUES[:, None] + EIGENVALUES
        return {"temperature": (SINES @ modes @ SINES / config.get("k", 1.0)).astype(np.float32)}
