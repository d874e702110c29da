"""Ranks the parameters of a sweep by their influence on its outputs, with the methods of SALib.

sobol    shares of the output's variance, from a design saltelli
morris   elementary effects, from a design morris
ff       main effects, from a design ff
delta    distance between densities of the output, from points of any design
pawn     distance between its distribution functions, from points of any design
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from farm.call import Array
from farm.sweep.design.plan import Column, Plan
from farm.sweep.design.points import FACTORIAL, MORRIS, SALTELLI
from farm.sweep.errors import SweepError, resumed
from farm.sweep.file import layout
from farm.sweep.file.journal import PointStatus
from farm.sweep.file.reading import open_sweep
from farm.sweep.file.unreadable import reading
from farm.sweep.sensitivity import methods
from farm.sweep.sensitivity.methods import AnalysedRows, MethodMeasures
from farm.sweep.space.binding import entry_name, output_entries
from farm.wording import counted, needs, worded

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
        ranking = {self.measure: self.values, f"{self.measure}_conf": self.confidence}
        return ranking | self._others_of_one

    @property
    def _others_of_one(self) -> dict[str, Array]:
        return {name: array for name, array in self.others.items() if array.ndim == 1}

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
        of_one = {"value": self.values, "confidence": self.confidence} | self._others_of_one
        return {
            "output": self.output,
            "method": self.method,
            "measure": self.measure,
            "points": self.points,
            "left_out": self.left_out,
            "correlated": list(self.correlated),
            "parameters": [
                {"name": self.parameters[j]} | {n: _plain(array[j]) for n, array in of_one.items()}
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


__all__ = ["AUTO", "METHODS", "Sensitivity", "analyse"]

AUTO = "auto"
OF_DESIGN = {SALTELLI: "sobol", MORRIS: "morris", FACTORIAL: "ff"}
"""The method of each design that was made for one."""

OTHERWISE = "pawn"
"""The method of other designs. It takes milliseconds where delta takes seconds, and any output."""

EXAMPLES = {"sobol": "saltelli:64", "morris": "morris:20", "ff": "ff"}
FUNCTIONS: dict[str, Callable[[AnalysedRows], MethodMeasures]] = {
    "sobol": methods.sobol,
    "morris": methods.morris,
    "ff": methods.factorial,
    "delta": methods.delta,
    "pawn": methods.pawn,
}
METHODS = tuple(FUNCTIONS)

EVERY_ENTRY = "[:]"
"""The end of an output's name that means each of its entries."""


def analyse(
    path: Path, *, method: str = AUTO, output: str | None = None, seed: int = 0
) -> list[Sensitivity]:
    """Return the sensitivity of a sweep's outputs, which may be running, one for each scalar.

    method: one of METHODS, or AUTO for the one that fits the sweep's design. output: like u, the
    mean of its entries if there are several, u[3], or u[:], each entry; None: every output. Those
    that are the same in all rows are left out, unless all are, which is an error. seed: of the
    resampling that the intervals come from. Raises SweepError, UnsupportedFeature without SALib.
    """
    return analyse_with_constants(path, method=method, output=output, seed=seed)[0]


def analyse_with_constants(
    path: Path, *, method: str = AUTO, output: str | None = None, seed: int = 0
) -> tuple[list[Sensitivity], list[str]]:
    """Return what `analyse` returns, and the names of the scalars that it leaves out."""
    if method not in (AUTO, *METHODS):
        raise SweepError(f"method {method!r}: expected {', '.join((AUTO, *METHODS))}")
    with open_sweep(path) as file, reading(path):
        plan, known = layout.read_plan(file), layout.read_known(file)
        scalars = list(_scalars(file, plan, output))
    if method == AUTO:
        method = OF_DESIGN.get(plan.design.kind, OTHERWISE)
    done = known.status == PointStatus.DONE
    if method in EXAMPLES:
        _check_design(plan, method)
    found, constant = [], []
    for name, values in scalars:
        used = done & np.isfinite(values)
        if method in EXAMPLES and not used.all():
            raise SweepError(_missing(path, plan, method, name, known.status, used))
        if used.any() and np.min(values[used]) == np.max(values[used]):
            constant.append(name)
        else:
            found.append(_of_scalar(plan, method, name, values, used, seed))
    if not found:
        raise SweepError(
            f"{', '.join(constant)}: the same value in all rows, so no parameter has an influence"
        )
    return found, constant


def _of_scalar(
    plan: Plan, method: str, name: str, values: Array, used: Array, seed: int
) -> Sensitivity:
    # Morris' effects are over levels of the unit cube, which `_check_design` has found.
    coordinates = plan.theta if method != "morris" or plan.unit is None else plan.unit
    table = AnalysedRows(coordinates[used], values[used], plan.design, seed)
    try:
        measures = FUNCTIONS[method](table)
    except SweepError as error:
        raise SweepError(f"output {name!r}: {error}") from error
    return Sensitivity(
        output=name,
        method=method,
        parameters=tuple(p.name for p in plan.parameters),
        **measures._asdict(),
        points=int(used.sum()),
        left_out=int((~used).sum()),
        correlated=tuple(map(str, plan.correlations)),
    )


def _check_design(plan: Plan, method: str) -> None:
    """Raise SweepError unless the sweep has exactly the points that a method is made for."""
    design, count = plan.design, len(plan.parameters)
    if OF_DESIGN.get(design.kind) != method:
        raise SweepError(
            f"method {method} needs the points of a design such as {EXAMPLES[method]}; this sweep "
            f"has the design {design}, for which delta and pawn are made"
        )
    expected = design.size(count)
    if plan.size != expected or plan.unit is None:
        raise SweepError(
            f"method {method} needs all {expected} points of the design {design}; the sweep has "
            f"{plan.size}; use delta or pawn"
        )


def _missing(path: Path, plan: Plan, method: str, name: str, status: Array, used: Array) -> str:
    counts = [
        f"{int(np.count_nonzero(status == word))} {word.name.lower()}"
        for word in PointStatus
        if word != PointStatus.DONE and (status == word).any()
    ]
    odd = int(np.count_nonzero((status == PointStatus.DONE) & ~used))
    counts += [f"{odd} with a number that is not finite"] if odd else []
    pending = (status == PointStatus.PENDING).any()
    retry = worded("--retry-failed", "farm sweep --resume --retry-failed")
    remedies = [f"continue the sweep: {resumed(path)}"] if pending else []
    if (status > PointStatus.DONE).any():
        remedies.append(f"run failed points again by {retry}")
    remedies.append(
        f"use {worded('--method delta or pawn', 'delta or pawn')}, which leave them out"
    )
    return (
        f"method {method} needs all {plan.size} points, and {int((~used).sum())} have no result "
        f"for {name!r} ({', '.join(counts)}); {', or '.join(remedies)}"
    )


def _scalars(file: h5py.File, plan: Plan, wanted: str | None) -> Iterator[tuple[str, Array]]:
    """Yield the name and the values of each scalar that is asked for."""
    columns = {column.output: column for column, _ in plan.outputs}
    if not columns:
        raise SweepError(f"model {plan.info.name!r} has no outputs to analyse")
    if wanted is None:
        for index, column in columns.items():
            yield _as_a_whole(file, plan.info.outputs[index].name, column)
        return
    index, entries, single = output_entries(wanted.removesuffix(EVERY_ENTRY), plan.info)
    tensor = plan.info.outputs[index]
    if index not in columns:
        raise SweepError(f"output {tensor.name!r} has no entries")
    column = columns[index]
    if not (single or wanted.endswith(EVERY_ENTRY)):
        yield _as_a_whole(file, tensor.name, column)
        return
    for entry in entries:
        yield entry_name(tensor, entry), file[column.name][:, entry].astype(np.float64)


def _as_a_whole(file: h5py.File, name: str, column: Column) -> tuple[str, Array]:
    values = file[column.name][:].reshape(len(file[column.name]), -1)
    if column.size == 1:
        return name, values[:, 0].astype(np.float64)
    return f"mean of {name}", values.mean(axis=1, dtype=np.float64)
