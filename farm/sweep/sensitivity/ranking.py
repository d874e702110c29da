"""The result of a sensitivity analysis: parameters ranked by their influence on one scalar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from farm.call import Array
from farm.sweep.errors import SweepError
from farm.wording import counted, needs

if TYPE_CHECKING:
    import pandas

SHOWN = 6
"""Most parameters that `repr` lists."""


@dataclass(frozen=True, eq=False, repr=False)
class Sensitivity:
    """The influence of each of P parameters on one scalar output.

    output: the scalar's name, such as "deflection", "u[3]" or "mean of u". method: "sobol",
    "morris", "ff", "delta" or "pawn". measure: the name of the measure in `values`, by which
    parameters are ranked: "ST", "mu_star", "abs ME", "delta" or "PAWN median". values: shape (P,),
    larger means more influence; NaN for a column of a table that does not vary. confidence: half
    width of the 95 % interval of each value, NaN where the method has none. others: the method's
    other measures by SALib's names, shape (P,), or (P, P) for pairs. points: the number of rows
    used; left_out: of rows without a result or with a number that is not finite. correlated: the
    correlated parameters, as "a,b=0.7": the influence of each includes what it shares with others.
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
    correlated: tuple[str, ...] = ()

    @property
    def ranked(self) -> list[int]:
        """The indices of the parameters, the most influential first."""
        keys = np.where(np.isnan(self.values), -np.inf, self.values)
        return [int(j) for j in np.argsort(-keys, kind="stable")]

    @property
    def columns(self) -> dict[str, Array]:
        """The measures with one number for each parameter, by name, the ranking one first."""
        of_one = {name: array for name, array in self.others.items() if array.ndim == 1}
        return {self.measure: self.values, f"{self.measure}_conf": self.confidence} | of_one

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table with a row for each parameter, the most influential first.

        Raises SweepError without pandas.
        """
        with needs("pandas", "pandas is needed for this", SweepError):
            import pandas
        frame = pandas.DataFrame(
            self.columns, index=pandas.Index(self.parameters, name="parameter")
        )
        frame.attrs.update(
            output=self.output, method=self.method, points=self.points, left_out=self.left_out
        )
        return frame.iloc[self.ranked]

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as JSON data, the most influential parameter first, NaN as None."""
        ranked = self.ranked
        pairs = {name: array for name, array in self.others.items() if array.ndim == 2}
        return {
            "output": self.output,
            "method": self.method,
            "measure": self.measure,
            "points": self.points,
            "left_out": self.left_out,
            "correlated": list(self.correlated),
            "parameters": [
                {
                    "name": self.parameters[j],
                    "value": _plain(self.values[j]),
                    "confidence": _plain(self.confidence[j]),
                    **{
                        name: _plain(array[j])
                        for name, array in self.others.items()
                        if array.ndim == 1
                    },
                }
                for j in ranked
            ],
            "pairs": [
                {
                    "names": [self.parameters[j], self.parameters[k]],
                    **{name: _plain(array[j, k]) for name, array in pairs.items()},
                }
                for place, j in enumerate(ranked)
                for k in ranked[place + 1 :]
                if pairs
            ],
        }

    def __repr__(self) -> str:
        shown = [
            f"{self.parameters[j]} {with_interval(self.values[j], self.confidence[j])}"
            for j in self.ranked[:SHOWN]
        ]
        more = [f"and {len(self.parameters) - SHOWN} more"] if len(self.parameters) > SHOWN else []
        return (
            f"<Sensitivity of {self.output} by {self.method}, {self.measure}: "
            f"{', '.join([*shown, *more])}; {counted(self.points, 'point')}>"
        )


def correlation_note(found: Sequence[Sensitivity]) -> str:
    """Return what correlated parameters mean for these rankings; "" without such parameters."""
    if not found or not found[0].correlated:
        return ""
    return (
        f"parameters are correlated ({', '.join(found[0].correlated)}): the influence of each "
        "includes what it shares with the others"
    )


def with_interval(value: float, half: float) -> str:
    """Return a value with the half width of its interval, such as "0.56 ± 0.04"."""
    if np.isnan(value):
        return "does not vary"
    return f"{value:.3g}" if np.isnan(half) else f"{value:.3g} ± {half:.2g}"


def _plain(number: float) -> float | None:
    return None if np.isnan(number) else float(number)
