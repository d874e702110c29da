"""The types of the public names, as a type checker sees them in a user's file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.time_limits import scaled

PROGRAM = Path(__file__).parent / "support" / "user_program.py"
MISTAKES = {
    'farm.sweep(tip, {"load": 1}, n="8", out="x")': 'Argument "n" to "sweep"',
    "farm.sweeep": 'Module has no attribute "sweeep"',
    "farm.load_xarray(3)": 'Argument 1 to "load_xarray"',
    'farm.serve(tip, workers="4")': 'Argument "workers" to "serve"',
    "farm.Sweep.to_pandas().no": 'Missing positional argument "self"',
    "forward.no_such_attribute": '"FunctionModel" has no attribute',
}


@pytest.mark.slow
def test_a_user_file_is_checked_strictly_and_its_mistakes_are_found(tmp_path: Path) -> None:
    """It stands outside of the project, so that none of the project's settings apply."""
    pytest.importorskip("mypy")
    shutil.copy(PROGRAM, tmp_path / "program.py")
    mistakes = "\n".join(["from program import *", "import farm", *MISTAKES])
    (tmp_path / "mistakes.py").write_text(mistakes)
    command = [sys.executable, "-m", "mypy", "--strict", "program.py", "mistakes.py"]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=scaled(300)
    )
    errors = [line for line in ended.stdout.splitlines() if ": error:" in line]
    assert [line for line in errors if line.startswith("program.py")] == []
    for number, (mistake, complaint) in enumerate(MISTAKES.items(), 3):
        found = [line for line in errors if line.startswith(f"mistakes.py:{number}:")]
        assert any(complaint in line for line in found), (mistake, errors)
