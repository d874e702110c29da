"""Run FIN-77 over a farm and compare it with the closed form of the cooling fin.

    python examples/legacy/compare.py

Ends with exit code 0 only when every check holds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import farm

LENGTH, AREA, PERIMETER = 0.1, 1e-4, 4e-2
"""As in the deck, SI units."""
Point = dict[str, NDArray[np.float64]]


def closed_form(point: Point) -> tuple[float, float]:
    """Heat flow at the base (W) and temperature at the tip (K) of a fin with an insulated tip."""
    conductivity, film = point["conductivity"][0], point["film"][0]
    base, air = point["base"]
    m = np.sqrt(film * PERIMETER / (conductivity * AREA))
    heat_flow = conductivity * AREA * m * (base - air) * np.tanh(m * LENGTH)
    return float(heat_flow), float(air + (base - air) / np.cosh(m * LENGTH))


def worst_error(fin: farm.RemoteModel, points: list[Point], nodes: int) -> float:
    """The largest relative error of heat flow and tip temperature over the points."""
    errors = []
    for point, found in zip(points, fin.map(points, {"nodes": nodes}), strict=True):
        heat_flow, tip = closed_form(point)
        errors += [found["heat_flow"][0] / heat_flow - 1.0, found["tip"][0] / tip - 1.0]
    return float(np.abs(errors).max())


def words_of_failure(fin: farm.RemoteModel, point: Point) -> str:
    """The error that the caller gets when the simulator stops on its deck."""
    try:
        fin.evaluate(point)
    except farm.FarmError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def main() -> None:
    rng = np.random.default_rng(1)
    points = [
        {
            "conductivity": rng.uniform(100.0, 400.0, 1),
            "film": rng.uniform(10.0, 50.0, 1),
            "base": np.array([rng.uniform(330.0, 400.0), 293.0]),
        }
        for _ in range(50)
    ]
    with farm.serve(Path(__file__).parent / "fin.py", workers=2) as client:
        fin = client.model("fin")
        errors = [worst_error(fin, points, nodes) for nodes in (21, 41, 81)]
        failure = words_of_failure(fin, {**points[0], "film": np.array([-1.0])})

    order = float(np.log2(errors[0] / errors[1]))
    print(f"largest relative error {errors[-1]:.2g}   expected below 0.002")
    print(f"order of convergence {order:.2f}   expected 1.8 to 2.1")
    print(f"a bad deck: {failure}")
    print("            expected ModelFailed with the last line of the listing")
    if not (errors[-1] < 2e-3 and 1.8 < order < 2.1):
        raise SystemExit(f"FIN-77 is off: errors {errors}, order {order:.2f}")
    if not failure.startswith("ModelFailed") or "CARD FILM IS NOT POSITIVE" not in failure:
        raise SystemExit(f"the failure reads {failure!r}")


if __name__ == "__main__":
    main()
