"""Sobol' indices of a sweep that was killed and continued, against the exact ones."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from farm.sweep.design.points import parse_design, sample
from farm.sweep.file.journal import PointStatus
from farm.sweep.file.recovery import journal_of
from farm.sweep.space.parameters import Distribution, Uniform, values
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import run_farm, start_farm
from tests.support.time_limits import scaled
from tests.system.sweep_writer import outcomes

LIMIT_S = scaled(120.0)
BASE = 128
ENOUGH = BASE
"""Outcomes in the journal at which the sweep is killed: an eighth of all."""

MODEL = """
import math
import farm

@farm.model(inputs={"x": 3}, outputs={"y": 1})
def ishigami(x):
    return math.sin(x[0]) + 7 * math.sin(x[1]) ** 2 + 0.1 * x[2] ** 4 * math.sin(x[0])
"""
RANGE = f"x={-np.pi!r}:{np.pi!r}"
COMMAND = (
    *("sweep", "model.py", "-n", "2", "--param", RANGE, "--design", f"saltelli:{BASE}"),
    *("--seed", "11", "--in-flight", "8", "-o", "s.h5"),
)
ANALYSIS = ("sweep", "sensitivity", "s.h5", "--json")
WIDTHS = 2.0
"""A measure may be this many half widths of its 95 % interval off: 3.9 standard deviations."""


def exact() -> tuple[list[float], list[float]]:
    """Return S1 and ST of the Ishigami function with a = 7, b = 0.1."""
    a, b = 7.0, 0.1
    first = 0.5 * (1 + b * np.pi**4 / 5) ** 2
    second = a**2 / 8
    both = b**2 * np.pi**8 * (1 / 18 - 1 / 50)
    total = first + second + both
    return (
        [first / total, second / total, 0.0],
        [(first + both) / total, second / total, both / total],
    )


@pytest.mark.slow
def test_ishigami_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    with start_farm(*COMMAND, cwd=tmp_path) as process:

        def has_enough() -> bool:
            assert process.poll() is None, "the sweep ended before it was killed"
            return len(outcomes(journal_of(tmp_path / "s.h5"))) >= ENOUGH

        wait_until(has_enough, LIMIT_S)
        process.kill()
    status, _, err = run_farm(*ANALYSIS, cwd=tmp_path, timeout_s=LIMIT_S)
    assert status == 2
    assert "needs all 1024 points" in err
    assert "pending" in err
    assert run_farm(*COMMAND, cwd=tmp_path, timeout_s=LIMIT_S)[0] == 0

    lines: list[Distribution] = [Uniform(-np.pi, np.pi)] * 3
    design = values(lines, sample(parse_design(f"saltelli:{BASE}"), lines, 11))
    with h5py.File(tmp_path / "s.h5") as file:
        assert (file["status"][:] == PointStatus.DONE).all()
        assert np.array_equal(file["theta"][:], design)
        x = design.T
        assert file["out_0"][:, 0] == pytest.approx(
            np.sin(x[0]) + 7 * np.sin(x[1]) ** 2 + 0.1 * x[2] ** 4 * np.sin(x[0])
        )
    status, out, _ = run_farm(*ANALYSIS, cwd=tmp_path, timeout_s=LIMIT_S)
    assert status == 0
    (found,) = json.loads(out)
    rows = {row["name"]: row for row in found["parameters"]}
    for name, first, total in zip(("x[0]", "x[1]", "x[2]"), *exact(), strict=True):
        row = rows[name]
        assert row["confidence"] < 0.35
        assert abs(row["value"] - total) < WIDTHS * row["confidence"]
        assert abs(row["S1"] - first) < WIDTHS * row["S1_conf"]
