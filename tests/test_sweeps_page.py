"""The Python of docs/sweeps.md runs as shown, from the beginning of the page to its end."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

import farm
from tests.support.front_door import front_door
from tests.support.shown_blocks import text_of
from tests.support.time_limits import scaled

ROOT = Path(__file__).parent.parent
PAGE = text_of("docs/sweeps.md")
READING, FROM_PYTHON = (
    re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for text in PAGE.split("# Sweeps from Python")
)
(MODEL,) = re.findall(
    r"```python\n(import farm\n\n\nclass Beam.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
)
LIMIT_S = scaled(50)


def run(program: str, folder: Path) -> None:
    """Run a program as a user's file in `folder`, where beam.py is."""
    (folder / "beam.py").write_text(MODEL)
    command = [sys.executable, "-W", "error", "-c", f"from beam import Beam\n{program}"]
    subprocess.run(command, cwd=folder, check=True, timeout=LIMIT_S)


@pytest.mark.slow
def test_sweeps_from_python_and_their_readers(tmp_path: Path) -> None:
    sweep = FROM_PYTHON[0].replace("n=256", "n=16")
    run(sweep + "".join(READING), tmp_path)
    with h5py.File(tmp_path / "beam.h5") as file:
        assert file["status"][:].tolist() == [1] * 16
        assert file["provenance"].attrs["farm_version"] == farm.__version__


@pytest.mark.slow
def test_functions_and_data_frames(tmp_path: Path) -> None:
    run("".join(FROM_PYTHON[1:4]), tmp_path)
    with h5py.File(tmp_path / "tip.h5") as file:
        load, thickness = file["theta"][:].T
        expected = load * 1.5**4 / (8 * 210e9 * 0.1 * thickness**3 / 12)
        assert abs(file["out_0"][:, 0] / expected - 1.0).max() < 1e-12
    with h5py.File(tmp_path / "points.h5") as file:
        assert file["theta"][:].tolist() == [[100.0, 0.01], [500.0, 0.02]]
        assert file["status"][:].tolist() == [1, 1]
    with h5py.File(tmp_path / "reach.h5") as file:
        assert file["status"][:].tolist() == [1] * 26


@pytest.mark.slow
def test_a_model_of_a_farm(tmp_path: Path) -> None:
    forward = farm.model(inputs={"k": 1}, outputs={"y": 1})(lambda k: 2 * k)
    with front_door({"forward": forward}) as door:
        shown = FROM_PYTHON[4].replace("http://node3:4242", door.url).replace("n=1024", "n=16")
        run(shown, tmp_path)
    with h5py.File(tmp_path / "sweep.h5") as file:
        assert file["status"][:].tolist() == [1] * 16


def test_every_block_is_tried() -> None:
    assert (len(READING), len(FROM_PYTHON)) == (3, 5)
