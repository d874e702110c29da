"""Time of a sweep over its lower bound, max(work / workers, longest run), for each order.

    make install && .venv/bin/python benchmarks/sweep_order.py

A simulation: the code that orders the points is that of `farm sweep`, the workers are simulated, so
the numbers are the same on every machine. Medians of six seeds. shuffled: without costs, as a plain
list of tasks runs; guessed: given costs that are off by a factor of 1.6; learned: from the first
points; oracle: exact costs. All but `shuffled` keep the first fifth mixed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

from machine import versions
from tests.support.sweep_simulation import CASES

COLUMNS = ("shuffled", "guessed", "learned", "oracle")


def main() -> None:
    print(versions("numpy", "scipy"))
    print(f"{'time / lower bound':<52}" + "".join(f"{name:>10}" for name in COLUMNS))
    for title, case in CASES.items():
        medians = case.medians()
        print(f"{title:<52}" + "".join(f"{medians[name]:10.3f}" for name in COLUMNS))


if __name__ == "__main__":
    main()
