"""Python and its packages against what farm's own metadata asks for."""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from farm.doctor.finding import Finding, ok, warning, wrong
from farm.doctor.target import is_url
from farm.version import __version__

DISTRIBUTION = "modelfarm"

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*(?:>=([0-9.]+))?")
_EXTRA = re.compile(r"extra == '([^']+)'")

FOR_DEVELOPERS = ("dev", "test", "tools", "examples")
"""Extras whose packages no user needs."""


def python_is_new_enough() -> list[Finding]:
    """Compare this Python with the oldest that farm supports."""
    running = ".".join(map(str, sys.version_info[:3]))
    needed = metadata.metadata(DISTRIBUTION)["Requires-Python"].removeprefix(">=")
    text = f"farm {__version__} on Python {running}, {sys.executable}"
    if release(running) < release(needed):
        text += f"; farm needs {needed}"
        return [wrong("Python", text, f"install Python {needed} or newer")]
    return [ok("Python", text)]


def interpreter() -> list[Finding]:
    """Show how this Python is built, and what that costs."""
    text = build()
    if sysconfig.get_config_var("Py_DEBUG"):
        return [warning("interpreter", f"{text}; several times slower", "use a release build")]
    if "free-threaded" in text:
        text += "; farm's front door has one thread, which is slower without the GIL"
    if "no PGO" in text:
        text += "; the front door is about 25% slower than with Debian's, uv's or conda-forge's"
    return [ok("interpreter", text)]


def build() -> str:
    """Return how this Python is built, such as "PGO, no LTO, shared libpython"."""
    setting = sysconfig.get_config_var
    options, debug = setting("CONFIG_ARGS"), setting("Py_DEBUG")
    words = ["debug build"] if debug else []
    words += ["free-threaded"] if setting("Py_GIL_DISABLED") else []
    if options is None:
        return ", ".join([*words, "PGO and LTO not known"])
    pgo = re.search("--enable-optimizations(?!=no)", options)
    lto = re.search("--with-lto(?!=no)", options)
    if setting("PGO_PROF_USE_FLAG") == "" and not (pgo or lto or debug):
        return ", ".join([*words, "PGO and LTO by Debian"])  # Debian hides how it optimises
    words += ["PGO" if pgo else "no PGO", "LTO" if lto else "no LTO"]
    if setting("Py_ENABLE_SHARED") and "static-libpython" not in options:
        words.append("shared libpython")
    return ", ".join(words)


def program_is_this_one() -> list[Finding]:
    """Compare the `farm` on PATH, which jobs and shells use, with the one that runs."""
    found = shutil.which("farm")
    here = Path(sys.executable).parent
    if found is None:
        return [warning("program farm", "farm is not on PATH", f"add it: export PATH={here}:$PATH")]
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
        requirements = metadata.metadata(DISTRIBUTION).get_all("Requires-Dist") or []
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
    if connection and not is_url(connection) and not Path(connection).exists():
        text = f"FARM_CONNECTION names {connection}, which does not exist"
        found.append(wrong("environment", text, "unset FARM_CONNECTION, or correct it"))
    url = variables.get("FARM_URL")
    if url and not is_url(url):
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
