"""The header that every benchmark prints: the machine, how Python is built, and the versions."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from farm.doctor.packages import build


def versions(*packages: str) -> str:
    """Return two lines: machine and interpreter; versions of the packages, missing ones marked."""
    found = []
    for package in ("modelfarm", *packages):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} (not installed)")
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"Python {sys.version.split()[0]} ({build()})\n{', '.join(found)}"
    )
