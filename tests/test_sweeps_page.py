"""The Python of docs/sweeps.md runs as shown, from the beginning of the page to its end."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import h5py

from tests.support.time_limits import scaled

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "sweeps.md").read_text()
READING, FROM_PYTHON = (
    re.findall(r"```python\n(.*?)```", text, re.DOTALL) for text in PAGE.split("## From Python")
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


def test_sweeps_from_python_and_their_readers(tmp_path: Path) -> None:
    sweep = FROM_PYTHON[0].replace("n=256", "n=16")
    run(sweep + "".join(READING), tmp_path)
    with h5py.File(tmp_path / "beam.h5") as file:
        assert file["status"][:].tolist() == [1] * 16
