"""Steady flow through a medium whose permeability is uncertain, with exact derivatives.

On the unit square, with u = 0 on its boundary,

    -div(exp(k(x, theta)) grad u) = 1,      k(x, theta) = sum_j theta_j sqrt(lambda_j) phi_j(x),

where phi_j are products of cosines: the Karhunen-Loeve modes of a Gaussian field with covariance
proportional to (tau^2 - Laplace)^-2, so independent standard normal theta_j sample the field.

Linear finite elements on a regular mesh; the field is constant on each triangle. One sparse matrix
G maps the values of u at the nodes to its gradients on the triangles. With it:

    stiffness     A = G^T diag(w) G           w = area * exp(k), once for each component
    state         A u = b                     y = S u, the values at the sensors
    tangent       A du = -G^T (w dk * G u)    J v = S du, with dk = Phi v
    adjoint       A p = S^T s                 J^T s = -Phi^T (w * G p . G u)
    second order  A dp = -G^T (w dk * G p)    and the derivative of J^T s along v
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import splu

import farm

Array = NDArray[np.float64]

MODES = 16
CORRELATION = 5.0
"""tau: the field's correlation length is about 1 / tau."""
SENSORS = 3
"""Sensors are on a regular grid of 3 x 3 inner points, 1/4 apart."""
DEFAULT_MESH = 32


def unit_source(x: Array, y: Array) -> Array:
    """The right-hand side, 1 at every point."""
    return np.ones_like(x)


@lru_cache(maxsize=1)
def modes() -> tuple[NDArray[np.int64], Array]:
    """The wave numbers of the field's largest modes, shape (MODES, 2), and their sqrt(lambda).

    Scaled so that the field of all modes has mean variance 1.
    """
    grid = np.stack(np.meshgrid(np.arange(40), np.arange(40)), axis=-1).reshape(-1, 2)[1:]
    lambdas = (CORRELATION**2 + np.pi**2 * (grid**2).sum(axis=1)) ** -2.0
    lambdas /= lambdas.sum()
    largest = np.argsort(-lambdas, kind="stable")[:MODES]
    return grid[largest], np.sqrt(lambdas[largest])


def log_permeability(theta: Array, x: Array, y: Array) -> Array:
    """k at the points (x, y)."""
    return mode_values(x, y) @ theta


def mode_values(x: Array, y: Array) -> Array:
    """sqrt(lambda_j) phi_j at the points: shape (len(x), MODES)."""
    waves, scales = modes()
    norms = np.where(waves == 0, 1.0, np.sqrt(2.0)).prod(axis=1)
    along_x = np.cos(np.pi * np.outer(x, waves[:, 0]))
    along_y = np.cos(np.pi * np.outer(y, waves[:, 1]))
    values: Array = along_x * along_y * norms * scales
    return values


@dataclass(frozen=True)
class Mesh:
    """A regular mesh of 2 n^2 triangles, and the matrices that depend only on it."""

    n: int
    x: Array
    """x of the inner nodes, shape ((n-1)^2,); `y` likewise."""
    y: Array
    area: float
    gradient: Any
    """G, sparse (4 n^2, (n-1)^2): first the x-, then the y-components on all triangles."""
    phi: Array
    """The modes at the triangles' centres, shape (2 n^2, MODES)."""
    sensors: Any
    """S, sparse (SENSORS^2, (n-1)^2)."""


@lru_cache(maxsize=8)
def mesh_of(n: int) -> Mesh:
    """The mesh with n x n squares, each cut into two triangles. n: a multiple of 4."""
    h = 1.0 / n
    number = np.full((n + 1, n + 1), -1)  # -1: on the boundary, where u is 0
    number[1:-1, 1:-1] = np.arange((n - 1) ** 2).reshape(n - 1, n - 1)
    corners = {(i, j): number[i : n + i, j : n + j].ravel() for i in (0, 1) for j in (0, 1)}
    # The lower triangle of a square has its left and bottom edge, the upper one the others.
    edges = [
        ((1, 0), (0, 0)),
        ((1, 1), (0, 1)),
        ((0, 1), (0, 0)),
        ((1, 1), (1, 0)),
    ]
    gradient = sp.vstack([_difference(corners[a], corners[b], n) / h for a, b in edges])
    left, bottom = (h * g.ravel() for g in np.meshgrid(range(n), range(n), indexing="ij"))
    thirds = h / 3.0
    phi = np.concatenate(
        [mode_values(left + c * thirds, bottom + c * thirds) for c in (1.0, 2.0)], axis=0
    )
    at = np.arange(1, SENSORS + 1) * n // (SENSORS + 1)
    sensor_nodes = number[np.ix_(at, at)].ravel()
    inner = np.linspace(0.0, 1.0, n + 1)[1:-1]
    x, y = (g.ravel() for g in np.meshgrid(inner, inner, indexing="ij"))
    identity = sp.identity((n - 1) ** 2, format="csr")
    return Mesh(n, x, y, h * h / 2.0, gradient.tocsr(), phi, identity[sensor_nodes])


def _difference(plus: NDArray[np.int64], minus: NDArray[np.int64], n: int) -> Any:
    rows = np.arange(n * n)
    shape = (n * n, (n - 1) ** 2)
    parts = [
        sp.csr_matrix((np.full(keep.sum(), sign), (rows[keep], nodes[keep])), shape)
        for sign, nodes in ((1.0, plus), (-1.0, minus))
        for keep in [nodes >= 0]
    ]
    return parts[0] + parts[1]


class State:
    """The solution for one theta on one mesh, and the operators for its derivatives."""

    def __init__(
        self, mesh: Mesh, theta: Array, source: Callable[[Array, Array], Array] = unit_source
    ) -> None:
        self.mesh = mesh
        self.weight = mesh.area * np.exp(mesh.phi @ theta)
        both = np.concatenate([self.weight, self.weight])
        stiffness = mesh.gradient.T @ sp.diags(both) @ mesh.gradient
        self.solve: Callable[[Array], Array] = splu(stiffness.tocsc()).solve
        self.u = self.solve(source(mesh.x, mesh.y) / mesh.n**2)

    def observed(self, nodal: Array) -> Array:
        """The sensors' values, shape (SENSORS^2,)."""
        values: Array = self.mesh.sensors @ nodal
        return values

    def adjoint(self, sens: Array) -> Array:
        """p with A p = S^T sens."""
        return self.solve(self.mesh.sensors.T @ sens)

    def tangent(self, nodal: Array, dk: Array) -> Array:
        """The change of a solution of A x = const when the field changes by dk."""
        change = np.concatenate([self.weight * dk] * 2) * (self.mesh.gradient @ nodal)
        return -self.solve(self.mesh.gradient.T @ change)

    def product(self, a: Array, b: Array) -> Array:
        """The weighted product of two gradients on each triangle, shape (2 n^2,)."""
        products = (self.mesh.gradient @ a) * (self.mesh.gradient @ b)
        weighted: Array = self.weight * products.reshape(2, -1).sum(axis=0)
        return weighted


class Diffusion(farm.Model):
    """theta, 16 standard normal coefficients of the log-permeability, to u at 9 sensors.

    config: {"mesh": n}, n squares along a side, a multiple of 4; default 32.
    """

    name = "diffusion"
    description = "2-D diffusion with an uncertain log-normal permeability; exact derivatives"
    inputs = {"theta": MODES}
    outputs = {"u": SENSORS**2}

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> Array:
        state = self.state(inputs, config)
        return state.observed(state.u)

    def gradient(
        self, out_wrt: int, in_wrt: int, inputs: farm.Inputs, sens: Array, config: farm.Config
    ) -> Array:
        """J^T sens by one adjoint solution, for any number of parameters."""
        state = self.state(inputs, config)
        return -state.mesh.phi.T @ state.product(state.adjoint(sens), state.u)

    def apply_jacobian(
        self, out_wrt: int, in_wrt: int, inputs: farm.Inputs, vec: Array, config: farm.Config
    ) -> Array:
        """J vec by one tangent solution."""
        state = self.state(inputs, config)
        return state.observed(state.tangent(state.u, state.mesh.phi @ vec))

    def apply_hessian(
        self,
        out_wrt: int,
        in_wrt1: int,
        in_wrt2: int,
        inputs: farm.Inputs,
        sens: Array,
        vec: Array,
        config: farm.Config,
    ) -> Array:
        """The derivative of J^T sens along vec, by a tangent and a second-order adjoint."""
        state = self.state(inputs, config)
        dk = state.mesh.phi @ vec
        p = state.adjoint(sens)
        du, dp = state.tangent(state.u, dk), state.tangent(p, dk)
        change = dk * state.product(p, state.u) + state.product(dp, state.u) + state.product(p, du)
        return -state.mesh.phi.T @ change

    def state(self, inputs: farm.Inputs, config: farm.Config) -> State:
        """The solution at these inputs. Raises ValueError if no nodes are at the sensors."""
        n = config.get("mesh", DEFAULT_MESH)
        if not isinstance(n, int) or n < 4 or n % 4:
            raise ValueError(f"config mesh is {n!r}; expected a multiple of 4, such as 32")
        return State(mesh_of(n), inputs["theta"])
