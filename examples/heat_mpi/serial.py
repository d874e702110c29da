"""Compare a farm with one group of MPI ranks with a serial direct solution.

RANKS ranks of `heat.py` answer through a farm. The reference is a sparse direct solution of the
same equations in this process, and its central differences.

    python examples/heat_mpi/serial.py

Ends with exit code 0 only when every check holds.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import spsolve

import farm
from heat import DEFAULT_CELLS, MODES, Array, phi

RANKS = 3
POINTS = 4
FARM = (sys.executable, "-m", "farm")
LIMIT_S = 40.0


def mean_temperature(theta: Array, n: int = DEFAULT_CELLS) -> float:
    """b^T u by a sparse direct solution; assembled as G^T diag(k) G from differences over faces."""
    centres, edges = (np.arange(n) + 0.5) / n, np.arange(n + 1) / n
    k_x = np.exp(np.tensordot(theta, phi(edges, centres), 1))
    k_y = np.exp(np.tensordot(theta, phi(centres, edges), 1))
    difference = sp.diags_array([1.0, -1.0], offsets=[0, -1], shape=(n + 1, n))
    over_x = sp.kron(sp.identity(n), difference)
    over_y = sp.kron(difference, sp.identity(n))
    k_x[:, [0, -1]] *= 2  # half a cell to the plate's edge
    k_y[[0, -1], :] *= 2
    matrix = over_x.T @ sp.diags_array(k_x.ravel()) @ over_x
    matrix += over_y.T @ sp.diags_array(k_y.ravel()) @ over_y
    b = np.full(n * n, 1.0 / n**2)
    return float(b @ spsolve(matrix.tocsc(), b))


def slopes(theta: Array, step: float = 1e-4) -> Array:
    """The gradient of `mean_temperature` by central differences."""
    moves = step * np.eye(len(theta))
    ends = [mean_temperature(theta + m) - mean_temperature(theta - m) for m in moves]
    return np.array(ends) / (2 * step)


@contextlib.contextmanager
def running(*words: str) -> Iterator[None]:
    """Run a program during the block, and terminate it at the end."""
    with subprocess.Popen([*FARM, *words], stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


def wait_until(condition: Callable[[], Any], what: str) -> None:
    """Wait until the condition holds, for at most LIMIT_S."""
    limit = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > limit:
            raise SystemExit(f"never came true: {what}")
        time.sleep(0.05)


def farmed(thetas: Array) -> tuple[list[float], Array]:
    """The mean temperatures, and the gradient at the first point, from a group of ranks."""
    heat = str(Path(__file__).parent / "heat.py")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "farm.json"
        with running("serve", "--workers", "0", "--port", "0", "--dir", folder):
            wait_until(file.exists, "the farm is up")
            with (
                running("worker", heat, "--mpi", str(RANKS), "--to", folder),
                farm.connect(folder) as client,
            ):
                wait_until(lambda: client.status()["workers"], "the group of ranks has joined")
                model = client.model("heat")
                answers = [float(mean[0]) for mean in model.map(thetas)]
                return answers, model.gradient("mean", "theta", thetas[0], [1.0])


def main() -> None:
    thetas = np.random.default_rng(7).normal(size=(POINTS, len(MODES)))
    answers, slope = farmed(thetas)
    expected = [mean_temperature(theta) for theta in thetas]
    expected_slope = slopes(thetas[0])
    print(f"{RANKS} ranks, {DEFAULT_CELLS} x {DEFAULT_CELLS} cells: mean temperature")
    for answer, right in zip(answers, expected, strict=True):
        print(f"  {answer:.10f}   expected {right:.10f}")
    print(f"gradient  {np.round(slope, 7)}\nexpected  {np.round(expected_slope, 7)}")
    np.testing.assert_allclose(answers, expected, rtol=1e-8)
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-5, atol=1e-8)


if __name__ == "__main__":
    main()
