"""Every example runs in its own process, from another folder, and its answer is right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.experiment_server import serving_experiments
from tests.support.time_limits import scaled

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = [
    "diffusion/verify.py",
    "graphpipe_tensor/ask.py",
    "heat_mpi/serial.py",
    "legacy/compare.py",
    "nuclei/count.py",
    "sweep_xarray/analyse.py",
]
LIMIT_S = scaled(55)
BY_NIGHT = [
    "experiments/boundary.py",
    "experiments/source.py",
    "posterior/sample.py",
    "surrogate/surrogate.py",
]
"""Examples that fit surrogates, or sample for long."""
ELSEWHERE = {
    "multilevel": "tests/samplers/test_multilevel.py",
    "nuts": "tests/samplers/test_nuts.py",
}
"""Examples that need samplers, and the tests that run them in the samplers' environment."""


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "script", [*SCRIPTS, *(pytest.param(each, marks=pytest.mark.nightly) for each in BY_NIGHT)]
)
def test_example_checks_its_own_answer(script: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / script)]
    limit_s = 3 * LIMIT_S if script in BY_NIGHT else LIMIT_S
    ended = subprocess.run(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s
    )
    assert ended.returncode == 0, ended.stderr.decode()[-4000:]
    assert "expected" in ended.stdout.decode(), "an example shows what it checks"


@pytest.mark.slow
def test_asking_and_telling(tmp_path: Path) -> None:
    with serving_experiments(tmp_path) as server:
        command = [sys.executable, "-W", "error", str(EXAMPLES / "experiments/ask_tell.py")]
        ended = subprocess.run(
            [*command, str(server.port)], capture_output=True, text=True, timeout=LIMIT_S
        )
    assert ended.returncode == 0, ended.stderr  # it checks its own answer
    said = re.fullmatch(r"best at x = (0\.\d+), expected 0\.300 within 0\.02\n", ended.stdout)
    assert said is not None, ended.stdout
    assert abs(float(said[1]) - 0.3) <= 0.02


def test_every_example_is_run_and_listed() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    here = {script.partition("/")[0] for script in (*SCRIPTS, *BY_NIGHT)}
    assert folders == here | set(ELSEWHERE)
    for folder, test in ELSEWHERE.items():
        assert f'"{folder}"' in (EXAMPLES.parent / test).read_text()
    listed = (EXAMPLES / "README.md").read_text()
    assert {folder for folder in folders if f"]({folder}/)" not in listed} == set()
