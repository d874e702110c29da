"""Python and its packages against what farm's own metadata asks for."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from farm.doctor.finding import Finding, ok, warning, wrong
from farm.version import __version__

DISTRIBUTION = "modelfarm"

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*(?:>=([0-9.]+))?")
_EXTRA = re.compile(r"extra == '([^']+)'")

FOR_DEVELOPERS = ("dev", "test", "tools", "examples")
"""Extras whose packages no user needs."""


def python_is_new_enough() -> list[Finding]:
    """Compare this Python with the oldest that farm supports."""
    running = ".".join(map(str, sys.version_info[:3]))
    needed = _metadata()["Requires-Python"].removeprefix(">=")
    text = f"farm {__version__} on Python {running}, {sys.executable}"
    if release(running) < release(needed):
        return [
            wrong("Python", f"{text}; farm needs {needed}", f"install Python {needed} or newer")
        ]
    return [ok("Python", text)]


def program_is_this_one() -> list[Finding]:
    """Compare the `farm` on PATH, which jobs and shells use, with the one that runs."""
    found = shutil.which("farm")
    here = Path(sys.executable).parent
    if found is None:
        remedy = f"add it: export PATH={here}:$PATH"
        return [warning("program farm", "farm is not on PATH", remedy)]
    if Path(found).resolve().parent != here.resolve() and Path(found).parent != here:
        text = f"{found} is another installation than this one in {here}"
        return [warning("program farm", text, "activate the environment that you mean")]
    return [ok("program farm", found)]


def versions(
    requirements: Sequence[str] | None = None, installed: Callable[[str], str] = metadata.version
) -> list[Finding]:
    """Compare installed packages with the minima of farm's dependencies and extras.

    A missing package of an extra is not a fault: the feature that needs it reports it.
    """
    if requirements is None:
        requirements = _metadata().get_all("Requires-Dist") or []
    found: list[Finding] = []
    right = 0
    for name, minimum, extra in _parsed(requirements):
        try:
            version = installed(name)
        except metadata.PackageNotFoundError:
            if not extra:
                remedy = f"install it: {sys.executable} -m pip install '{name}>={minimum}'"
                found.append(wrong("packages", f"{name} is missing", remedy))
            continue
        if minimum and release(version) < release(minimum):
            text = f"{name} is {version}; farm needs {minimum} or newer"
            remedy = f"update it: {sys.executable} -m pip install -U '{name}>={minimum}'"
            make = warning if extra else wrong
            found.append(make("packages", text + (f" for [{extra}]" if extra else ""), remedy))
        else:
            right += 1
    return found or [ok("packages", f"{right} packages, none too old")]


def environment(variables: Mapping[str, str] = os.environ) -> list[Finding]:
    """Show the environment variables that change what farm does; check what they name."""
    found: list[Finding] = []
    connection = variables.get("FARM_CONNECTION")
    if connection and not re.match(r"https?://", connection) and not Path(connection).exists():
        text = f"FARM_CONNECTION names {connection}, which does not exist"
        found.append(wrong("environment", text, "unset FARM_CONNECTION, or correct it"))
    url = variables.get("FARM_URL")
    if url and not re.match(r"https?://", url):
        text = "FARM_URL is no address like http://host:4242"
        found.append(wrong("environment", text, "unset FARM_URL, or: export FARM_URL=$(farm url)"))
    if found:
        return found
    names = [name for name in ("FARM_CONNECTION", "FARM_URL") if variables.get(name)]
    return [ok("environment", f"{' and '.join(names)} set" if names else "no farm is set")]


def release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, such as (1, 26) of `1.26.0rc1`; zeros at the end are cut."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    parts = [int(part) for part in numbers[0].split(".")] if numbers else []
    while parts and not parts[-1]:
        parts.pop()
    return tuple(parts)


def _parsed(requirements: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Return name, minimum ("" if none) and extra ("" for all users) of each requirement."""
    seen: set[tuple[str, str]] = set()
    for text in requirements:
        words = _REQUIREMENT.match(text)
        extras = _EXTRA.findall(text)
        if words is None or words[1] == DISTRIBUTION or set(extras) & set(FOR_DEVELOPERS):
            continue
        name, minimum = words[1], words[2] or ""
        if (name, minimum) not in seen:
            seen.add((name, minimum))
            yield name, minimum, extras[0] if extras else ""


def _metadata() -> metadata.PackageMetadata:
    return metadata.metadata(DISTRIBUTION)
