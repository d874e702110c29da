"""Delayed acceptance over several models of one farm: docs/multilevel.md and its example."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farm
from tests.samplers import page
from tests.samplers.target import assert_moments
from tests.support.dispatcher_farm import run_farm, serving
from tests.support.time_limits import scaled

EXAMPLE = page.ROOT / "examples" / "multilevel"
PAGE = (page.ROOT / "docs" / "multilevel.md").read_text()
LIMIT_S = scaled(100.0)


@pytest.mark.timeout(LIMIT_S + 10)
def test_the_example_saves_fine_evaluations(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(EXAMPLE / "levels.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr[-4000:]
    assert re.search(r"fewer by a factor of \d", ended.stdout)


@pytest.mark.timeout(LIMIT_S)
def test_a_surrogate_is_trained_on_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rod = f"{EXAMPLE}/rod.py"
    asked = np.random.default_rng(1).uniform(0.1, 1.9, (40, 2))
    with serving(tmp_path, f"{rod}:Fine", "--workers", "2", "--record", "rod.record") as served:
        with farm.connect(served.folder) as client:
            client.model("fine").map(asked)
        served.stop()
    export = ("record", "export", "rod.record", "--model", "fine", "-o", "train.h5")
    assert export == tuple(re.findall(r"^    farm (record export .*)$", PAGE, re.M)[0].split())
    status, _, err = run_farm(*export, cwd=tmp_path)
    assert status == 0, err
    _, training = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(training, "docs/multilevel.md, training", "exec"), {})
    with (
        serving(tmp_path, "surrogate.onnx", "--workers", "1") as served,
        farm.connect(served.folder) as client,
    ):
        found = client.model("surrogate")(np.array([1.2, 0.7]))
    matrix = runpy.run_path(rod)["exact"]()
    assert found == pytest.approx(matrix @ np.array([1.2, 0.7]), abs=1e-3)


@pytest.mark.timeout(LIMIT_S)
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rod = f"{EXAMPLE}/rod.py"
    with farm.sweep(f"{rod}:Fine", {"resistance": (0.1, 1.9)}, out="train.h5", n=32, show=False):
        pass  # leaving the block waits for the last point
    chains, training = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(training, "docs/multilevel.md, training", "exec"), {})
    matrix = runpy.run_path(rod)["exact"]()
    with serving(tmp_path, f"{rod}:Fine", f"{rod}:Coarse", "surrogate.onnx", "--workers", "2"):
        (tmp_path / "farm-run").symlink_to(tmp_path / "run")
        names: dict[str, Any] = {}
        exec(compile(chains, "docs/multilevel.md, chains", "exec"), names)
    readings = names["readings"]
    precision = matrix.T @ matrix / 0.005**2 + np.eye(2) / 0.09
    covariance = np.linalg.inv(precision)
    mean = covariance @ (matrix.T @ readings / 0.005**2 + np.ones(2) / 0.09)
    draws = np.array(names["draws"])
    assert draws.shape == (4, 201, 2)
    assert_moments(draws[:, 50:], 100, mean, covariance)
