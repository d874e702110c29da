"""Every example runs in a process of its own, from another folder, and its answer is right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = [
    "diffusion/verify.py",
    "graphpipe_tensor/ask.py",
    "heat_mpi/serial.py",
    "legacy/compare.py",
    "nuclei/count.py",
    "posterior/sample.py",
    "surrogate/surrogate.py",
    "sweep_xarray/analyse.py",
]
LIMIT_S = 55


@pytest.mark.parametrize("script", SCRIPTS)
def test_example_checks_its_own_answer(script: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / script)]
    ended = subprocess.run(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S
    )
    assert ended.returncode == 0, ended.stderr.decode()[-4000:]
    assert "expected" in ended.stdout.decode(), "an example shows what it checks"


def test_every_example_is_run_and_listed() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders == {script.partition("/")[0] for script in SCRIPTS}
    listed = (EXAMPLES / "README.md").read_text()
    assert {folder for folder in folders if f"]({folder}/)" not in listed} == set()
