"""Sweep the beam, read the file back with xarray, and check moments and sensitivities.

    python examples/sweep_xarray/analyse.py

The deflection is a constant times load / (E thickness^3), so everything has a closed form.
Ends with exit code 0 only when every check holds.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import xarray as xr
from numpy.polynomial import Polynomial

import farm
from beam import LENGTH, PLACES, WIDTH, Beam

RANGES = {"E": (190e9, 220e9), "load": (400.0, 600.0), "thickness": (0.018, 0.022)}
POWERS = {"E": -1, "load": 1, "thickness": -3}
"""The exponents in the deflection."""
POINTS = 256


def read(path: Path) -> xr.Dataset:
    """The finished points of a sweep as labelled arrays; plain xarray, farm is not needed."""
    with xr.open_dataset(path) as file:
        done = file.where(file.status == 1, drop=True)
        table: xr.Dataset = done.theta.to_dataset(dim="param")
        table = table.assign(deflection=done.out_0.rename(out_0_entry="x")).assign_coords(x=PLACES)
        return table.load()


def first_order(table: xr.Dataset, name: str) -> float:
    """The share of the tip's variance that one parameter explains: Var(E[w | name]) / Var(w)."""
    tip = table.deflection.sel(x=LENGTH)
    explained = Polynomial.fit(table[name].values, tip.values, deg=4)(table[name].values)
    return float(np.var(explained) / tip.var())


def power_mean(low: float, high: float, power: int) -> float:
    """The mean of z^power for z uniform between low and high."""
    if power == -1:
        return float(np.log(high / low) / (high - low))
    top = power + 1
    return (high**top - low**top) / (top * (high - low))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "beam.h5"
        with farm.sweep(Beam, RANGES, design="sobol", n=POINTS, seed=7, out=path, show=False):
            pass  # leaving the block waits for the last point
        table = read(path)
    print(table.deflection.quantile([0.05, 0.5, 0.95], dim="point").isel(x=slice(0, None, 10)))

    means = {name: power_mean(*RANGES[name], power) for name, power in POWERS.items()}
    squares = {name: power_mean(*RANGES[name], 2 * power) for name, power in POWERS.items()}
    # Tip deflection q L^4 / (8 E I) with I = b t^3 / 12.
    factor = 12.0 * LENGTH**4 / (8.0 * WIDTH)
    mean = factor * math.prod(means.values())
    spread = math.prod(squares[name] / means[name] ** 2 for name in POWERS) - 1.0

    tip = table.deflection.sel(x=LENGTH)
    checks = [
        ("points", float(tip.sizes["point"]), float(POINTS), 0.0),
        ("mean of the tip, mm", 1e3 * float(tip.mean()), 1e3 * mean, 1e-3),
        ("its standard deviation, mm", 1e3 * float(tip.std()), 1e3 * mean * spread**0.5, 1e-2),
    ]
    for name in POWERS:
        expected = (squares[name] / means[name] ** 2 - 1.0) / spread
        checks.append((f"share of {name}", first_order(table, name), expected, 2e-2))
    for title, found, expected, tolerance in checks:
        print(f"{title:28} {found:10.4f}   expected {expected:10.4f}")
        if abs(found - expected) > tolerance * expected:
            raise SystemExit(f"{title} is {found:g}, expected {expected:g}")


if __name__ == "__main__":
    main()
