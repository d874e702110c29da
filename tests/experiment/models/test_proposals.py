"""The points that strategies with a surrogate give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import qmc

from farm.call import Array
from farm.experiment.config import Config
from farm.experiment.models import generate
from tests.experiment.models.configs import (
    BRANIN_BEST,
    BRANIN_BOUNDS,
    CLASSIFICATION,
    IMPROVEMENT,
    PROBIT,
    REGRESSION,
    STRADDLE,
    ask,
    branin,
    config,
    data,
    spread,
)

BRANIN = config(REGRESSION, IMPROVEMENT, parameters=BRANIN_BOUNDS)
BOUNDARY = config(CLASSIFICATION, STRADDLE, objective=PROBIT)


def above(x: Array) -> Array:
    """Yes or no: above a curve of the unit square."""
    yes: Array = (x[:, 1] > 0.3 + 0.4 * x[:, 0] ** 2).astype(float)
    return yes


def optimised(config: Config, *, asks: int, at_once: int = 1, seed: int = 0) -> float:
    """The regret on Branin after six Sobol points and `asks` more, so many in flight."""
    x = spread(config, 8, seed)[:6]
    flying = np.empty((0, 1, 2))
    for asked in range(asks):
        known = data(x, branin(x))
        point = generate(ask(config, known, asked=asked, pending=flying, seed=seed)).points
        flying = np.concatenate([flying, point])
        if len(flying) >= at_once or asked == asks - 1:
            told = 1 if asked < asks - 1 else len(flying)
            x, flying = np.concatenate([x, flying[:told, 0]]), flying[told:]
    return float(BRANIN_BEST - branin(x).max())


def test_the_maximum_of_branin_is_found_in_thirty_evaluations() -> None:
    sobol = branin(qmc.scale(qmc.Sobol(2, seed=0).random(32)[:30], [-5, 0], [10, 15])).max()
    assert optimised(BRANIN, asks=24) < min(0.1, 0.1 * (BRANIN_BEST - sobol))


def test_four_asks_without_a_tell_are_four_points() -> None:
    for which, truth in ((BRANIN, branin), (BOUNDARY, above)):
        x = spread(which, 16)
        flying = np.empty((0, 1, 2))
        for asked in range(4):
            work = ask(which, data(x, truth(x)), asked=asked, pending=flying)
            flying = np.concatenate([flying, generate(work).points])
        widths = np.array([p.upper - p.lower for p in which.free])
        gaps = [
            np.linalg.norm((flying[i] - flying[j]) / widths) for i in range(4) for j in range(i)
        ]
        assert min(gaps) > 0.01


def test_points_of_one_ask_are_those_of_single_asks() -> None:
    x = spread(BOUNDARY, 16)
    known = data(x, above(x))
    together = generate(ask(BOUNDARY, known, 3)).points
    flying = np.empty((0, 1, 2))
    for asked in range(3):
        one = generate(ask(BOUNDARY, known, asked=asked, pending=flying)).points
        flying = np.concatenate([flying, one])
    assert together == pytest.approx(flying)


PROGRAM = """
from farm.experiment.models import generate
from tests.experiment.models import test_proposals as t
x = t.spread(t.{which}, 16)
y = t.above(x) if t.{which} is t.BOUNDARY else t.branin(x)
print(generate(t.ask(t.{which}, t.data(x, y), 2, seed=5)).points.tobytes().hex())
"""


@pytest.mark.parametrize("which", ["BRANIN", "BOUNDARY"])
def test_another_process_gives_the_same_points(which: str) -> None:
    x = spread(globals()[which], 16)
    y = above(x) if which == "BOUNDARY" else branin(x)
    here = generate(ask(globals()[which], data(x, y), 2, seed=5)).points.tobytes().hex()
    there = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(which=which)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
        timeout=50,
    )
    assert there.stdout.strip() == here
