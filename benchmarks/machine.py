"""What every benchmark prints above its table: the machine and the versions that ran."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version


def versions(*packages: str) -> str:
    """Two lines: machine and interpreter; versions of the packages, those missing marked so."""
    found = []
    for package in ("modelfarm", *packages):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} (not installed)")
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"Python {sys.version.split()[0]}\n{', '.join(found)}"
    )
