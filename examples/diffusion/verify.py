"""Check the diffusion model: its order of convergence, and each of its derivatives over a farm.

    python examples/diffusion/verify.py

Ends with exit code 0 only when every check holds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import farm
from diffusion import MODES, SENSORS, Array, State, log_permeability, mesh_of

CONFIG = {"mesh": 16}


def manufactured_error(n: int, theta: Array) -> float:
    """The largest error at the nodes when u = sin(pi x) sin(pi y) is the solution.

    Its source is -exp(k) (Laplace u + grad k . grad u); grad k by central differences
    whose error is far below that of the mesh.
    """

    def exact(x: Array, y: Array) -> Array:
        return np.asarray(np.sin(np.pi * x) * np.sin(np.pi * y))

    def source(x: Array, y: Array) -> Array:
        step = 1e-4
        k = log_permeability(theta, x, y)
        k_x = log_permeability(theta, x + step, y) - log_permeability(theta, x - step, y)
        k_y = log_permeability(theta, x, y + step) - log_permeability(theta, x, y - step)
        u_x = np.pi * np.cos(np.pi * x) * np.sin(np.pi * y)
        u_y = np.pi * np.sin(np.pi * x) * np.cos(np.pi * y)
        slope = (k_x * u_x + k_y * u_y) / (2.0 * step)
        return np.asarray(-np.exp(k) * (slope - 2.0 * np.pi**2 * exact(x, y)))

    mesh = mesh_of(n)
    error = State(mesh, theta, source).u - exact(mesh.x, mesh.y)
    return float(np.abs(error).max())


def remainder_order(f: Callable[[float], Any], slope: Any) -> float:
    """The order in h of |f(h) - f(0) - h slope|: 2 when slope is the derivative, else 1."""
    steps = 2.0 ** -np.arange(3, 8)
    start = f(0.0)
    remainders = [float(np.linalg.norm(f(h) - start - h * slope)) for h in steps]
    return float(np.polyfit(np.log(steps), np.log(remainders), 1)[0])


def derivative_checks(model: farm.RemoteModel) -> tuple[float, float, float, float]:
    """Orders of the remainders of all derivatives, and the defect of the adjoint identity."""
    rng = np.random.default_rng(20)
    theta, direction = rng.standard_normal((2, MODES))
    sens = rng.standard_normal(SENSORS**2)

    def evaluated(h: float) -> Array:
        u: Array = model.evaluate(theta + h * direction, CONFIG)
        return u

    def gradient(h: float) -> Array:
        return model.gradient("u", "theta", theta + h * direction, sens, CONFIG)

    tangent = model.apply_jacobian("u", "theta", theta, direction, CONFIG)
    hessian = model.apply_hessian("u", "theta", "theta", theta, sens, direction, CONFIG)
    first = remainder_order(evaluated, tangent)
    adjoint = remainder_order(lambda h: sens @ evaluated(h), gradient(0.0) @ direction)
    second = remainder_order(gradient, hessian)
    identity = float(abs(tangent @ sens - direction @ gradient(0.0)) / abs(tangent @ sens))
    return first, adjoint, second, identity


def main() -> None:
    theta = np.random.default_rng(20).standard_normal(MODES)
    errors = [manufactured_error(n, theta) for n in (32, 64)]
    convergence = float(np.log2(errors[0] / errors[1]))
    with farm.serve(Path(__file__).parent / "diffusion.py", workers=2) as client:
        first, adjoint, second, identity = derivative_checks(client.model("diffusion"))

    for name, value, low, high in [
        ("order of convergence in the mesh", convergence, 1.9, 2.1),
        ("order of the remainder, tangent", first, 1.9, 2.1),
        ("order of the remainder, gradient", adjoint, 1.9, 2.1),
        ("order of the remainder, Hessian", second, 1.9, 2.1),
        ("|<J v, s> - <v, J^T s>|, relative", identity, 0.0, 1e-12),
    ]:
        print(f"{name:36} {value:10.3g}   expected {low:g} to {high:g}")
        if not low <= value <= high:
            raise SystemExit(f"{name} is {value:g}, expected {low:g} to {high:g}")


if __name__ == "__main__":
    main()
