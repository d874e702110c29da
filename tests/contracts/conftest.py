"""Function calls are counted only with the interpreter and the versions that CI has."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

CONSTRAINTS = Path(__file__).parent.parent.parent / "constraints.txt"
OF_CI = (3, 11)
"""The Python that the numbers in `test_counts.py` are of."""

pinned = dict(line.split("==") for line in CONSTRAINTS.read_text().splitlines() if "==" in line)
is_ci = sys.version_info[:2] == OF_CI and all(
    version(name) == pinned[name] for name in ("numpy", "orjson", "uvloop")
)
collect_ignore = [] if is_ci else ["test_counts.py"]
