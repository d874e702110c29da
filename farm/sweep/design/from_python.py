"""The points of a sweep as a Python program gives them: ranges and numbers, or a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from farm.sweep.design.data_frame import DATA_FRAME, is_data_frame, read_data_frame
from farm.sweep.design.points import COUNTED, Design, parse_design
from farm.sweep.design.prepare import SweepRequest
from farm.sweep.errors import SweepError
from farm.sweep.space.grammar import as_distribution
from farm.sweep.space.parameters import Distribution

DEFAULT_DESIGN = "sobol"


def request_of(
    parameters: Mapping[str, Any] | Any,
    fix: Mapping[str, Any],
    design: str,
    n: int | None,
    *,
    correlation: Mapping[tuple[str, str], float] | None = None,
    where: str | Sequence[str] = (),
    when: Mapping[str, str] | None = None,
) -> SweepRequest:
    """Return a request with the points that are asked for, without a seed. Raises SweepError.

    parameters: name -> range, or a number, which is held fixed; or a DataFrame, whose columns are
    the parameters. design, n: "sobol" and 256, or both as "sobol:256". correlation, where, when:
    see `SweepRequest`; one constraint may be a text.
    """
    if is_data_frame(parameters):
        if n is not None or design != DEFAULT_DESIGN:
            raise SweepError("a DataFrame has the points of the sweep; give no design and no n")
        table = read_data_frame(parameters, gaps=bool(when))
        request = SweepRequest(Design("file", option=DATA_FRAME), 0, fixes=fix, table=table)
        return replace(request, **_space(correlation, where, when))
    if not isinstance(parameters, Mapping):
        raise SweepError(
            f"parameters is a {type(parameters).__name__}; expected a dict of name -> range, "
            "such as {'load': (1, 10)}, or a DataFrame of points, such as "
            "pandas.DataFrame(rows, columns=names)"
        )
    for name in [*parameters, *fix]:
        if not isinstance(name, str):
            raise SweepError(
                f"the parameter {name!r} is a {type(name).__name__}; expected the name of an input"
            )
    numbers = {name: value for name, value in parameters.items() if _is_number(value)}
    if both := sorted(numbers.keys() & fix.keys()):
        raise SweepError(f"{both[0]!r} is both a parameter and fixed")
    if n is None and design in COUNTED:
        raise SweepError(f"the design {design!r} needs a number of points, such as n=256")
    return SweepRequest(
        design=parse_design(design if n is None else f"{design}:{n}"),
        seed=0,
        spreads={
            name: _distribution(name, value)
            for name, value in parameters.items()
            if name not in numbers
        },
        fixes={**numbers, **fix},
        **_space(correlation, where, when),
    )


def _space(
    correlation: Mapping[tuple[str, str], float] | None,
    where: str | Sequence[str],
    when: Mapping[str, str] | None,
) -> dict[str, Any]:
    """Return the arguments of a request about its space. Raises SweepError for other types."""
    texts = [where] if isinstance(where, str) else list(where)
    for what, given in (("correlation", correlation), ("when", when)):
        if given is not None and not isinstance(given, Mapping):
            raise SweepError(f"{what} is a {type(given).__name__}; expected a dict")
    for text in [*texts, *(when or {}).values()]:
        if not isinstance(text, str):
            raise SweepError(f"{text!r} is a {type(text).__name__}; expected a text, as 'a < 3*b'")
    return {"correlations": correlation or {}, "where": texts, "when": when or {}}


def _distribution(name: str, value: Any) -> Distribution:
    try:
        return as_distribution(value)
    except SweepError as error:
        raise SweepError(f"parameter {name!r}: {error}") from None


def _is_number(value: Any) -> bool:
    return isinstance(value, Real | np.number) and not isinstance(value, bool)
