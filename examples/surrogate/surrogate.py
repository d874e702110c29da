"""A Gaussian process that replaces the beam: trained on a sweep, served as an ONNX file.

    python examples/surrogate/surrogate.py

It sweeps the beam of ../sweep_xarray, fits the tip's deflection with scikit-learn, writes ONNX and
serves the file; UM-Bridge's and Triton's own clients use the same address. Ends with exit
code 0 only when every check holds.
"""

from __future__ import annotations

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import tritonclient.http
import umbridge
from numpy.typing import NDArray
from skl2onnx import to_onnx
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import farm

Array = NDArray[np.float64]

BEAM = Path(__file__).parent.parent / "sweep_xarray" / "beam.py"
RANGES = {"E": (190e9, 220e9), "load": (400.0, 600.0), "thickness": (0.018, 0.022)}
TRAINING_POINTS, TEST_POINTS = 64, 200


def swept(path: Path, *, n: int, seed: int) -> tuple[Array, Array]:
    """Points of the beam and its tip's deflection in mm, shapes (n, 3) and (n,)."""
    with farm.sweep(str(BEAM), RANGES, design="sobol", n=n, seed=seed, out=path, show=False):
        pass  # leaving the block waits for the last point
    with h5py.File(path) as file:
        return file["theta"][:], 1e3 * file["out_0"][:, -1]


def train(points: Array, tips: Array) -> bytes:
    """An ONNX file of a Gaussian process: `x` of 3 numbers to one, in float64."""
    process = GaussianProcessRegressor(RBF(8.0), alpha=1e-9, optimizer=None, normalize_y=True)
    pipeline = make_pipeline(StandardScaler(), process).fit(points, tips)
    graph: bytes = to_onnx(pipeline, points[:1]).SerializeToString()
    return graph


def by_umbridge(url: str, points: Array) -> Array:
    """The surrogate at each point by UM-Bridge's client, 8 at a time."""
    model = umbridge.HTTPModel(url, "tip")
    with ThreadPoolExecutor(8) as pool:
        return np.array(list(pool.map(lambda x: model([x.tolist()])[0][0], points)))


def by_triton(url: str, points: Array) -> Array:
    """The same by Triton's client: all points in one request, as raw tensors."""
    with tritonclient.http.InferenceServerClient(url.removeprefix("http://")) as client:
        metadata = client.get_model_metadata("tip")
        asked, given = metadata["inputs"][0], metadata["outputs"][0]["name"]
        x = tritonclient.http.InferInput(asked["name"], list(points.shape), asked["datatype"])
        x.set_data_from_numpy(points)
        tips: Array = client.infer("tip", [x]).as_numpy(given)[:, 0]
        return tips


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "tip.onnx"
        file.write_bytes(train(*swept(folder / "train.h5", n=TRAINING_POINTS, seed=7)))
        points, truth = swept(folder / "test.h5", n=TEST_POINTS, seed=8)
        run = folder / "run"
        with farm.serve(file, port=0, dir=run) as client:
            url = json.loads((run / "farm.json").read_text())["url"]
            mapped = client.model("tip").map(points)[:, 0]
            with ThreadPoolExecutor(2) as pool:
                answers = [pool.submit(ask, url, points) for ask in (by_umbridge, by_triton)]
                umbridged, tritons = (answer.result() for answer in answers)

    error = float(np.abs(mapped / truth - 1).max())
    checks = [
        ("largest error of the surrogate, relative", error, 1e-3),
        (
            "UM-Bridge's client and farm's differ by, mm",
            float(np.abs(umbridged - mapped).max()),
            1e-6,
        ),
        ("Triton's client and farm's differ by, mm", float(np.abs(tritons - mapped).max()), 1e-6),
    ]
    for title, found, most in checks:
        print(f"{title:44} {found:8.2g}   expected at most {most:g}")
        if not found <= most:
            raise SystemExit(f"{title} {found:g}, expected at most {most:g}")


if __name__ == "__main__":
    main()
