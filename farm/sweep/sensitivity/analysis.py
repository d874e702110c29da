"""Ranks the parameters of a sweep by their influence on an output, with the methods of SALib.

sobol    shares of the output's variance, from a design saltelli
morris   elementary effects, from a design morris
ff       main effects, from a design ff
delta    distance between distributions of the output, from any independent points
pawn     the same by distribution functions
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from farm.call import Array
from farm.sweep.design.errors import SweepError

AUTO = "auto"
METHODS = ("sobol", "morris", "ff", "delta", "pawn")


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """The influence of each of P parameters on one scalar output.

    output: the scalar's name, such as "deflection", "u[3]" or "mean of u". method: one of METHODS.
    measure: the name of the measure in `values`, by which parameters are ranked: "ST", "mu_star",
    "ME", "delta" or "PAWN median". values: shape (P,), larger means more influence. confidence:
    half width of the 95 % interval of each value, NaN where the method has none. others: the
    method's other measures by SALib's names, shape (P,), or (P, P) for pairs. points: the number
    of rows used; left_out: of rows without a result or with a number that is not finite.
    """

    output: str
    method: str
    parameters: tuple[str, ...]
    measure: str
    values: Array
    confidence: Array
    others: Mapping[str, Array]
    points: int
    left_out: int


def analyse(
    path: Path, *, method: str = AUTO, output: str | None = None, seed: int = 0
) -> list[Sensitivity]:
    """Return the sensitivity of a sweep's outputs, which may be running, one for each scalar.

    method: one of METHODS, or AUTO for the one that fits the sweep's design. output: like u or
    u[3]; None: every output, the mean of one with several entries. seed: of the resampling from
    which confidence intervals come.
    Raises SweepError, UnsupportedFeature without SALib.
    """
    raise SweepError(f"{path}: sensitivity analysis is not available yet")
