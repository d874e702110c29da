"""Tells PBS from Grid Engine, whose commands have the same names."""

from __future__ import annotations

import re
import shutil
import subprocess

ANSWER_S = 5.0

SYSTEMS = ("pbs", "grid-engine")
"""The batch systems that have a command `qstat`."""

UNKNOWN = "unknown"

_PBS = re.compile(r"\bpbs_version\b", re.IGNORECASE)
"""Output of `qstat --version`; source: qstat(1B) of PBS Pro."""

_GRID_ENGINE = re.compile(r"^usage: qstat \[options\]|\bGrid Engine\b|^\w*GE \d", re.MULTILINE)
"""Output of `qstat -help`: a line with the version, such as `SGE 8.1.9`, and then the usage."""


def owner() -> str:
    """Return the key of the system that `qstat` belongs to; UNKNOWN for others; empty: no qstat."""
    if (path := shutil.which("qstat")) is None:
        return ""
    if _PBS.search(_printed(path, "--version")):
        return "pbs"
    return "grid-engine" if _GRID_ENGINE.search(_printed(path, "-help")) else UNKNOWN


def _printed(*command: str) -> str:
    """Return what a command prints; empty if it cannot be run or does not end."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")
