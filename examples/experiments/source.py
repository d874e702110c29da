"""Find the source of a plume by 40 evaluations, chosen one after another by a farm of two workers.

    python examples/experiments/source.py

Runs `farm experiment run source.ini ../posterior/plume.py --workers 2` and checks the answer. Ends
with exit code 0 only when it is right.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
MODEL = HERE.parent / "posterior" / "plume.py"
FARM = (sys.executable, "-m", "farm", "experiment")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = str(Path(folder) / "source.db")
        run = ("run", str(HERE / "source.ini"), str(MODEL), "--workers", "2", "-o", journal)
        subprocess.run([*FARM, *run], check=True)
        said = subprocess.run([*FARM, "best", journal, "--json"], check=True, capture_output=True)
    best = json.loads(said.stdout)["told"]["point"]
    # The readings were made with these and rounded.
    for name, truth, allowed in (("place", 35.0, 10.0), ("log_strength", math.log(40.0), 0.15)):
        print(f"{name:12} {best[name]:8.3f}   expected {truth:8.3f} within {allowed}")
        if abs(best[name] - truth) > allowed:
            raise SystemExit(f"{name} is too far off")


if __name__ == "__main__":
    main()
