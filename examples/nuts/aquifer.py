"""Groundwater between two rivers: the log-likelihood of a transmissivity, with its gradient.

The water table h(x) on 0 < x < 1 (kilometres) has the levels of the rivers at both ends, and

    -(T(x, theta) h')' = RECHARGE,      T = exp(sum_j theta_j cos(j pi x)),  j = 0, 1, 2

Linear finite elements on CELLS cells, so T counts at their middles. With the stiffness matrix
A(theta), the state A h = b, and the misfit r = (S h - READINGS) / NOISE_SD at the wells:

    log-likelihood   L = -r . r / 2
    adjoint          A p = -S^T r / NOISE_SD
    gradient         dL/dtheta_j = -sum over cells of (T_c cos(j pi x_c) / width) dp_c dh_c

where dh and dp are differences along a cell: one more solve gives the gradient for any number of
parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solveh_banded

import farm

Array = NDArray[np.float64]

CELLS = 120
WIDTH = 1.0 / CELLS
MODES = np.cos(np.pi * np.outer((np.arange(CELLS) + 0.5) * WIDTH, np.arange(3)))
"""cos(j pi x) at the middles of the cells, shape (CELLS, 3)."""
RECHARGE = 4.0
LEVELS = (1.0, 2.0)
"""Water levels of the rivers at x = 0 and x = 1, metres."""
WELLS = np.array([12, 30, 48, 66, 84, 102])
"""Nodes with a well; node i is at x = i WIDTH."""
NOISE_SD = 0.004
"""Standard deviation of a reading, metres."""
TRUTH = np.array([0.3, 0.6, -0.4])
FURTHEST = 30.0
"""Largest |theta_j| at which the equations are solved; first steps of a sampler may go anywhere."""


def solve(transmissivity: Array, load: Array) -> Array:
    """The solution of A u = load at the inner nodes, with zeros at the rivers."""
    stiff = transmissivity / WIDTH
    banded = np.zeros((2, CELLS - 1))
    banded[0, 1:] = -stiff[1:-1]
    banded[1] = stiff[:-1] + stiff[1:]
    return np.concatenate(([0.0], solveh_banded(banded, load), [0.0]))


def water_table(theta: Array) -> tuple[Array, Array]:
    """h at all nodes, and T in all cells."""
    transmissivity = np.exp(MODES @ theta)
    load = np.full(CELLS - 1, RECHARGE * WIDTH)
    load[0] += transmissivity[0] / WIDTH * LEVELS[0]
    load[-1] += transmissivity[-1] / WIDTH * LEVELS[1]
    heads = solve(transmissivity, load)
    heads[0], heads[-1] = LEVELS
    return heads, transmissivity


READINGS = water_table(TRUTH)[0][WELLS] + NOISE_SD * np.random.default_rng(8).standard_normal(6)


class Aquifer(farm.Model):
    """theta = three coefficients of the log transmissivity to the log-likelihood of readings."""

    name = "aquifer"
    description = "Groundwater between two rivers: log-likelihood of six wells, adjoint gradient"
    inputs = {"theta": 3}
    outputs = {"log_likelihood": 1}

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> Array:
        if np.abs(inputs["theta"]).max() > FURTHEST:
            return np.array([-np.inf])
        heads, _ = water_table(inputs["theta"])
        return self._log_likelihood(heads)

    def _log_likelihood(self, heads: Array) -> Array:
        misfit = (heads[WELLS] - READINGS) / NOISE_SD
        return np.array([-0.5 * misfit @ misfit])

    def value_and_gradient(
        self, out_wrt: int, in_wrt: int, inputs: farm.Inputs, sens: Array, config: farm.Config
    ) -> tuple[Any, Array]:
        """One solve for the state and one for its adjoint; both share T."""
        if np.abs(inputs["theta"]).max() > FURTHEST:
            return np.array([-np.inf]), np.zeros(3)
        heads, transmissivity = water_table(inputs["theta"])
        load = np.zeros(CELLS + 1)
        load[WELLS] = -(heads[WELLS] - READINGS) / NOISE_SD**2
        adjoint = solve(transmissivity, load[1:-1])
        per_cell = transmissivity / WIDTH * np.diff(adjoint) * np.diff(heads)
        return self._log_likelihood(heads), -sens[0] * (per_cell @ MODES)

    def gradient(
        self, out_wrt: int, in_wrt: int, inputs: farm.Inputs, sens: Array, config: farm.Config
    ) -> Array:
        return self.value_and_gradient(out_wrt, in_wrt, inputs, sens, config)[1]
