"""The codecs of MIP, GraphPipe, AEPsych and HTTP/1.1 under a coverage-guided fuzzer.

It runs the program `tests/support/protocol_fuzz.py`.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[1] / "support" / "protocol_fuzz.py"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not made for this platform")
@pytest.mark.parametrize("codec", ["mip", "graphpipe", "aepsych", "http1"])
def test_no_bytes_upset_a_codec(codec: str, tmp_path: Path) -> None:
    command = [sys.executable, str(FUZZ), codec, "-max_total_time=30"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=55)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "DONE" in done.stderr
