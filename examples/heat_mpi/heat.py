"""Steady heat in a plate of uncertain conductivity, each MPI rank holding some rows of the grid.

On the unit square, with u = 0 on its boundary,

    -div(exp(k(x, theta)) grad u) = 1,      k(x, theta) = sum_j theta_j phi_j(x),

by finite volumes on n x n cells: A(theta) u = b. Ranks exchange the rows at their borders, and sum
the inner products of the conjugate gradients. The mean temperature is b^T u, and A is symmetric,
so the adjoint solution is u itself and the gradient needs no second solution:

    d(b^T u) / d theta_j = -u^T (dA / d theta_j) u = -sum_faces phi_j exp(k) (jump of u)^2.

`farm worker heat.py --mpi 4` runs it on four ranks; without `--mpi` one process has all rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import farm

Array = NDArray[np.float64]

MODES = ((1, 0), (0, 1), (1, 1), (2, 0), (0, 2))
DEFAULT_CELLS = 48
TOLERANCE = 1e-10


def phi(x: Array, y: Array) -> Array:
    """The modes at the points of a grid: shape (len(MODES), len(y), len(x))."""
    along = [np.outer(np.cos(q * np.pi * y), np.cos(p * np.pi * x)) for p, q in MODES]
    return np.array(along)


class Rows:
    """The part of the grid that one rank holds, for one theta."""

    def __init__(self, comm: Any, theta: Array, n: int) -> None:
        self.comm = comm
        self.rank: int = 0 if comm is None else comm.rank
        self.size: int = 1 if comm is None else comm.size
        first, last = (n * r // self.size for r in (self.rank, self.rank + 1))
        centres, edges = (np.arange(n) + 0.5) / n, np.arange(n + 1) / n
        self.phi_x = phi(edges, centres[first:last])  # faces between columns
        self.phi_y = phi(centres, edges[first : last + 1])  # faces between rows
        self.k_x = np.exp(np.tensordot(theta, self.phi_x, 1))
        self.k_y = np.exp(np.tensordot(theta, self.phi_y, 1))
        # Approximate at the plate's edge, which is enough for a preconditioner.
        self.diagonal = self.k_x[:, 1:] + self.k_x[:, :-1] + self.k_y[1:] + self.k_y[:-1]
        self.b = np.full((last - first, n), 1.0 / n**2)

    def total(self, part: Array) -> Array:
        """The sum of the parts over all ranks."""
        if self.comm is None:
            return part
        whole = np.empty_like(part)
        self.comm.Allreduce(part, whole)
        return whole

    def dot(self, a: Array, b: Array) -> float:
        """The inner product over all rows of all ranks."""
        return float(self.total(np.array([np.vdot(a, b)]))[0])

    def neighbours(self, u: Array) -> tuple[Array, Array]:
        """The rows beside this rank's; outside the plate, rows that make u vanish at its edge."""
        before, after = -u[0], -u[-1]
        if self.comm is not None:
            down = self.rank - 1 if self.rank > 0 else None
            up = self.rank + 1 if self.rank + 1 < self.size else None
            # Even ranks exchange upwards first, so that every send meets a receive.
            for up_turn in (self.rank % 2 == 0, self.rank % 2 == 1):
                if up_turn and up is not None:
                    after = np.empty_like(u[-1])
                    self.comm.Sendrecv(u[-1].copy(), up, recvbuf=after, source=up)
                if not up_turn and down is not None:
                    before = np.empty_like(u[0])
                    self.comm.Sendrecv(u[0].copy(), down, recvbuf=before, source=down)
        return before, after

    def jumps(self, u: Array) -> tuple[Array, Array]:
        """The differences of u over the faces between columns and those between rows."""
        before, after = self.neighbours(u)
        x = np.diff(np.column_stack([-u[:, 0], u, -u[:, -1]]), axis=1)
        y = np.diff(np.vstack([before, u, after]), axis=0)
        return x, y

    def apply(self, u: Array) -> Array:
        """This rank's rows of A u."""
        x, y = self.jumps(u)
        outflow: Array = -np.diff(self.k_x * x, axis=1) - np.diff(self.k_y * y, axis=0)
        return outflow

    def solve(self) -> Array:
        """This rank's rows of u, by preconditioned conjugate gradients, in step with all ranks."""
        u = np.zeros_like(self.b)
        r = self.b.copy()
        z = r / self.diagonal
        p = z.copy()
        rz = self.dot(r, z)
        enough = TOLERANCE**2 * rz
        for _ in range(20 * self.b.shape[1]):
            if rz <= enough:
                return u
            ap = self.apply(p)
            step = rz / self.dot(p, ap)
            u += step * p
            r -= step * ap
            z = r / self.diagonal
            rz, before = self.dot(r, z), rz
            p = z + rz / before * p
        raise ArithmeticError(f"no convergence: residual {rz**0.5:g}")

    def slopes(self, u: Array) -> Array:
        """-u^T (dA / d theta_j) u for each mode."""
        x, y = self.jumps(u)
        in_x, in_y = self.k_x * x**2, self.k_y * y**2
        in_x[:, [0, -1]] /= 2  # at the plate's edge the jump is over half a cell
        in_y[0] /= 2  # the same at the edge; inside, two ranks share the face, half each
        in_y[-1] /= 2
        part = np.tensordot(self.phi_x, in_x, 2) + np.tensordot(self.phi_y, in_y, 2)
        return -self.total(part)


class Heat(farm.Model):
    """theta, coefficients of the log-conductivity, to the plate's mean temperature.

    config: {"cells": n}, cells along a side; default 48.
    """

    name = "heat"
    description = "2-D steady heat, domain decomposition by rows over MPI ranks; adjoint gradient"
    inputs = {"theta": len(MODES)}
    outputs = {"mean": 1}

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> Array:
        rows, u = self.solved(inputs, config)
        return np.array([rows.dot(rows.b, u)])

    def gradient(
        self, out_wrt: int, in_wrt: int, inputs: farm.Inputs, sens: Array, config: farm.Config
    ) -> Array:
        """J^T sens."""
        rows, u = self.solved(inputs, config)
        slope: Array = sens[0] * rows.slopes(u)
        return slope

    def solved(self, inputs: farm.Inputs, config: farm.Config) -> tuple[Rows, Array]:
        n = config.get("cells", DEFAULT_CELLS)
        ranks = 1 if self.comm is None else self.comm.size
        if n < ranks:
            raise ValueError(f"{n} rows of cells for {ranks} ranks; each needs one")
        rows = Rows(self.comm, inputs["theta"], n)
        return rows, rows.solve()
