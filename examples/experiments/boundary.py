"""Find the permeabilities with too high a pressure, by 48 solutions near the edge of this set.

    python examples/experiments/boundary.py

Runs `farm experiment run boundary.ini ../diffusion/diffusion.py --workers 2`, then serves the
experiment, queries its predictions at 200 points, and compares them with the model.
Ends with exit code 0 only when nearly all agree.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import farm

HERE = Path(__file__).parent
MODEL = HERE.parent / "diffusion" / "diffusion.py"
FARM = (sys.executable, "-m", "farm", "experiment")
POINTS = 200
ALLOWED = 0.08
"""Share of points on the wrong side of the edge; 48 Sobol points leave about twice as many."""


def predicted(journal: str, points: np.ndarray) -> list[float]:
    """The probability that each point is unsafe, queried by AEPsych's messages."""
    serve = ("serve", "--aepsych", "127.0.0.1:0", "--journal", journal)
    server = subprocess.Popen([*FARM, *serve], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"127\.0\.0\.1:(\d+)", server.stdout.readline())
        assert found is not None
        with socket.create_connection(("127.0.0.1", int(found[1]))) as connection:

            def say(type: str, **message: object) -> dict[str, float]:
                connection.sendall(json.dumps({"type": type, "message": message}).encode())
                answer: dict[str, float] = json.loads(connection.recv(65536))
                return answer

            say("resume", strat_id=0)
            ask = {"query_type": "prediction", "probability_space": True}
            return [
                say("query", **ask, x={"first": [a], "second": [b]})["y"]
                for a, b in points.tolist()
            ]
    finally:
        server.terminate()
        server.communicate()


def main() -> None:
    sys.path.insert(0, str(MODEL.parent))
    from diffusion import MODES, Diffusion

    with tempfile.TemporaryDirectory() as folder:
        journal = str(Path(folder) / "boundary.db")
        run = ("run", str(HERE / "boundary.ini"), str(MODEL), "--workers", "2", "-o", journal)
        subprocess.run([*FARM, *run], check=True)
        points = np.random.default_rng(5).uniform(-2.5, 2.5, (POINTS, 2))
        unsafe = np.array(predicted(journal, points)) > 0.5
    model = Diffusion()
    theta = np.concatenate([points, np.zeros((POINTS, MODES - 2))], axis=1)
    truth = np.array(
        [model.evaluate(farm.Inputs({"theta": t}), {"mesh": 16}).max() > 0.1 for t in theta]
    )
    wrong = float(np.mean(unsafe != truth))
    print(
        f"{truth.mean():.0%} are unsafe; on the wrong side {wrong:.3f}, expected 0 within {ALLOWED}"
    )
    if wrong > ALLOWED:
        raise SystemExit("the edge is not where it should be")


if __name__ == "__main__":
    main()
