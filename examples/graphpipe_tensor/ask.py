"""Call the plate with Oracle's own GraphPipe client, in single precision, many fields at once.

    pip install requests flatbuffers && pip install --no-deps graphpipe==1.0.4
    python examples/graphpipe_tensor/ask.py

Ends with exit code 0 only when every check holds.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from pathlib import Path

import numpy as np
from graphpipe import remote
from numpy.typing import NDArray

import farm
from plate import EIGENVALUES, POINTS, SINES

Fields = NDArray[np.float32]

# The client, of 2018, uses functions that current flatbuffers deprecate.
warnings.filterwarnings("ignore", "numElems is deprecated", DeprecationWarning)


def single_modes() -> tuple[Fields, Fields]:
    """Sources that are one eigenvector each way, and their exact temperatures: divided by k + l."""
    pairs = [(k, m) for k in range(0, POINTS, 4) for m in range(0, POINTS, 4)]
    sources = np.array([100 * np.outer(SINES[k], SINES[m]) for k, m in pairs])
    exact = [
        s / (EIGENVALUES[k] + EIGENVALUES[m]) for s, (k, m) in zip(sources, pairs, strict=True)
    ]
    return sources.astype(np.float32), np.array(exact, np.float32)


def main() -> None:
    sources, exact = single_modes()
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        with farm.serve(Path(__file__).with_name("plate.py"), port=0, workers=2, dir=run):
            url = json.loads((run / "farm.json").read_text())["url"]
            names = remote.get_input_names(url), remote.get_output_names(url)
            shapes = remote.get_input_shapes(url)[0]
            found = remote.execute(url, sources, "source", "temperature")
            alone = remote.execute(url, sources[7])
            (copper,) = remote.execute_multi(url, [sources], None, None, config='{"k": 400}')
    print(f"the model says {names}, shape {shapes}; expected (['source'], ['temperature'])")
    if names != (["source"], ["temperature"]) or found.dtype != np.float32:
        raise SystemExit(f"names {names}, {found.dtype}; expected source, temperature, float32")
    largest = float(np.abs(exact).max())
    checks = [
        (
            f"{len(sources)} fields, largest relative error",
            np.abs(found - exact).max() / largest,
            1e-5,
        ),
        ("one field alone differs from its row by", np.abs(alone - found[7]).max() / largest, 1e-6),
        ("with k = 400, largest error", np.abs(400 * copper - exact).max() / largest, 1e-5),
    ]
    for title, error, most in checks:
        print(f"{title:44} {error:8.2g}   expected at most {most:g}")
        if not error <= most:
            raise SystemExit(f"{title} {error:g}, expected at most {most:g}")


if __name__ == "__main__":
    main()
