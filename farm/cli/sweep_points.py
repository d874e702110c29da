"""The options of `farm sweep` that say which points there are."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields
from typing import Any, TypeVar

import click

from farm.sweep.errors import SweepError
from farm.sweep.space.correlation import parse_correlation
from farm.sweep.space.grammar import parse_parameter
from farm.sweep.space.parameters import Distribution
from farm.sweep.space.space import parse_when

OPTIONS = {
    "--param": ("params", "NAME=SPEC", "Parameter to vary, with its range; repeatable."),
    "--fix": (
        "fixed",
        "NAME=VALUE",
        "Input or config key to hold fixed, with its value; repeatable.",
    ),
    "--correlation": (
        "correlated",
        "A,B=NUMBER",
        "Correlation of two parameters, of the normals under their distributions; repeatable.",
    ),
    "--where": (
        "constraints",
        "CONDITION",
        "Constraint that all points satisfy, such as 'load < 3*thickness'; repeatable.",
    ),
    "--when": (
        "conditional",
        "NAME:CONDITION",
        "Condition under which a parameter is active; otherwise the model does not get it, or gets "
        "its --fix; repeatable.",
    ),
}
"""The field of AskedSpace that each option gives, what its value is, and its help."""

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class AskedSpace:
    """The space of points as the options give it; the methods raise SweepError for mistakes."""

    params: tuple[str, ...]
    fixed: tuple[str, ...]
    correlated: tuple[str, ...]
    constraints: tuple[str, ...]
    conditional: tuple[str, ...]

    @property
    def is_given(self) -> bool:
        """Whether the command line has any of the options."""
        return any(astuple(self))

    def spreads(self) -> dict[str, Distribution]:
        """Return the distributions of the parameters."""
        return _unique(map(parse_parameter, self.params), "--param")

    def fixes(self) -> dict[str, Any]:
        """Return the fixed values."""
        return _unique(map(_fixed, self.fixed), "--fix")

    def correlations(self) -> dict[tuple[str, str], float]:
        """Return the correlations of pairs of parameters."""
        return _unique(map(parse_correlation, self.correlated), "--correlation")

    def conditions(self) -> dict[str, str]:
        """Return the conditions of parameters."""
        return _unique(map(parse_when, self.conditional), "--when")


def space_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the space of points; the command receives them as `asked`."""

    @functools.wraps(command)
    def with_space(**values: Any) -> Any:
        space = AskedSpace(*(values.pop(option.name) for option in fields(AskedSpace)))
        return command(asked=space, **values)

    made: Callable[..., Any] = with_space
    for flag, (name, metavar, help) in reversed(OPTIONS.items()):
        made = click.option(flag, name, multiple=True, metavar=metavar, help=help)(made)
    return made


def _fixed(text: str) -> tuple[str, Any]:
    """Return name and value of `mesh=2`, `x=1,2,3`, `solver=gmres`, `options={"tol": 1e-3}`."""
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise SweepError(f"--fix {text!r}: expected NAME=VALUE")
    for candidate in (value, f"[{value}]"):
        with contextlib.suppress(ValueError):
            return name.strip(), json.loads(candidate)
    return name.strip(), value


def _unique(pairs: Iterator[tuple[K, V]], option: str) -> dict[K, V]:
    found: dict[K, V] = {}
    for name, value in pairs:
        if name in found:
            shown = ",".join(name) if isinstance(name, tuple) else name
            raise SweepError(f"{option} {shown} is given twice")
        found[name] = value
    return found
