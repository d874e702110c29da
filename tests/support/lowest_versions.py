"""The lowest versions that pyproject.toml allows, which constraints-lowest.txt holds.

As a program it prints requirements, of which `uv pip compile` makes that file; the head of the
file has the line to type.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

NOT_TESTED_LOWER = {"torch": "2.13.0"}
"""Tested in place of the minimum: PyTorch before comes with CUDA, gigabytes of it."""

LIMITS = ("pyparsing<3.3",)
"""Matplotlib before 3.10 uses names that pyparsing 3.3 warns of; warnings are errors in tests."""

FOR_TESTS = {"tools", "test", "dev"}
"""Extras without minima: their versions are those of constraints.txt."""

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[[\w,]+\])?(?P<rest>.*)")
_MINIMUM = re.compile(r"(>=|==)(?P<version>[\w.]+)")


def canonical(name: str) -> str:
    """A distribution's name as package indexes compare it. Source: PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def lowest(requirements: Iterable[str]) -> dict[str, str]:
    """The lowest version that each requirement allows, by canonical name; "" where it names none.

    farm's own extras among the requirements are left out.
    """
    found = {}
    for text in requirements:
        if not (parts := _REQUIREMENT.fullmatch(text)):
            raise ValueError(f"{text!r} is no requirement")
        if (name := canonical(parts["name"])) != "modelfarm":
            minimum = _MINIMUM.match(parts["rest"])
            found[name] = minimum["version"] if minimum else ""
    return found


def lowest_of(project: dict[str, Any]) -> dict[str, str]:
    """The lowest version of each distribution that farm or an extra needs.

    project: that table of pyproject.toml.
    """
    extras = project["optional-dependencies"]
    product = [texts for extra, texts in extras.items() if extra not in FOR_TESTS]
    return lowest(text for texts in [project["dependencies"], *product] for text in texts)


def pins(constraints: str) -> dict[str, str]:
    """The version of each distribution in a file of constraints, by canonical name."""
    found = re.findall(r"^([\w.-]+)==([\w.+]+)", constraints, re.MULTILINE)
    return {canonical(name): version for name, version in found}


def release(version: str) -> tuple[str, ...]:
    """A version without the zeros at its end, as which 8.2 and 8.2.0 are equal."""
    return tuple(re.sub(r"(\.0)+$", "", version).split("."))


def requirements(project: dict[str, Any]) -> list[str]:
    """Requirements of the lowest versions, and of the tools of tests in whatever version fits."""
    own = lowest_of(project)
    minima = [f"{name}=={NOT_TESTED_LOWER.get(name, version)}" for name, version in own.items()]
    return [*minima, *project["optional-dependencies"]["tools"], *LIMITS]


if __name__ == "__main__":
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())
    print("\n".join(requirements(metadata["project"])))
