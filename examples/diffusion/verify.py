"""Check the diffusion model: its order of convergence and each of its derivatives.

    python examples/diffusion/verify.py

Ends with exit code 0 only when every check holds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import farm
from diffusion import MODES, SENSORS, Array, Diffusion, State, log_permeability, mesh_of

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


def remainder_order(f: Callable[[float], Array], slope: Array) -> float:
    """The order in h of |f(h) - f(0) - h slope|: 2 when slope is the derivative, else 1."""
    steps = 2.0 ** -np.arange(3, 8)
    start = f(0.0)
    remainders = [float(np.linalg.norm(f(h) - start - h * slope)) for h in steps]
    return float(np.polyfit(np.log(steps), np.log(remainders), 1)[0])


def main() -> None:
    rng = np.random.default_rng(20)
    theta, direction = rng.standard_normal((2, MODES))
    sens = rng.standard_normal(SENSORS**2)
    model = Diffusion()

    def at(h: float) -> farm.Inputs:
        return farm.Inputs(theta=theta + h * direction)

    errors = [manufactured_error(n, theta) for n in (16, 32, 64)]
    convergence = float(np.log2(errors[-2] / errors[-1]))

    tangent = model.apply_jacobian(0, 0, at(0.0), direction, CONFIG)
    gradient = model.gradient(0, 0, at(0.0), sens, CONFIG)
    hessian = model.apply_hessian(0, 0, 0, at(0.0), sens, direction, CONFIG)
    first = remainder_order(lambda h: model.evaluate(at(h), CONFIG), tangent)
    adjoint = remainder_order(
        lambda h: np.atleast_1d(sens @ model.evaluate(at(h), CONFIG)),
        np.atleast_1d(gradient @ direction),
    )
    second = remainder_order(lambda h: model.gradient(0, 0, at(h), sens, CONFIG), hessian)
    identity = abs(tangent @ sens - direction @ gradient) / abs(tangent @ sens)

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
