"""The example of NUTS with an adjoint solver: its gradient, and its own checks of the posterior."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.samplers import page
from tests.support.time_limits import scaled

EXAMPLE = page.ROOT / "examples" / "nuts"
LIMIT_S = scaled(180.0)


def test_the_gradient_is_that_of_the_log_likelihood() -> None:
    aquifer = runpy.run_path(str(EXAMPLE / "aquifer.py"))["Aquifer"]()
    theta, step = np.array([0.1, 0.4, -0.2]), 1e-6
    (value,), gradient = aquifer.value_and_gradient(0, 0, {"theta": theta}, [2.0], {})
    assert value == aquifer.evaluate({"theta": theta}, {})[0]
    differences = [
        aquifer.evaluate({"theta": theta + h}, {})[0]
        - aquifer.evaluate({"theta": theta - h}, {})[0]
        for h in step * np.eye(3)
    ]
    np.testing.assert_allclose(gradient, np.array(differences) / step, rtol=1e-5)
    far = {"theta": np.array([0.0, 500.0, 0.0])}
    (value,), gradient = aquifer.value_and_gradient(0, 0, far, [1.0], {})
    assert value == aquifer.evaluate(far, {})[0] == -np.inf
    assert gradient.tolist() == [0.0] * 3


@pytest.mark.timeout(LIMIT_S + 10)
def test_the_example_checks_its_own_posterior(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE / "draw.py")],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr[-4000:]
    assert ended.stdout.count("expected") == 8
