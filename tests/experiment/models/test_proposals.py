"""The points proposed by strategies with a surrogate."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from farm.call import Array
from farm.experiment.ask.execute import execute
from farm.experiment.ask.generators import generate_model_free
from farm.experiment.config.definition import (
    Config,
    Generator,
    Outcome,
    OutcomeKind,
    Parameter,
    ParameterKind,
    Surrogate,
)
from farm.experiment.space import Space
from farm.experiment.work import Generated
from tests.experiment.models.configs import (
    BRANIN_BEST,
    BRANIN_BOUNDS,
    CLASSIFICATION,
    IMPROVEMENT,
    PAIRWISE,
    PROBIT,
    REGRESSION,
    SHAPE,
    STRADDLE,
    ask,
    branin,
    config,
    data,
    sobol,
    spread,
)
from tests.support.time_limits import scaled

if TYPE_CHECKING:
    from farm.experiment.models import generate, post_range

BRANIN = config(REGRESSION, IMPROVEMENT, parameters=BRANIN_BOUNDS)
BOUNDARY = config(CLASSIFICATION, STRADDLE, objective=PROBIT)


def above(x: Array) -> Array:
    """Return 1 above a curve in the unit square, else 0."""
    yes: Array = (x[:, 1] > 0.3 + 0.4 * x[:, 0] ** 2).astype(float)
    return yes


def optimised(config: Config, *, asks: int, at_once: int = 1, seed: int = 0) -> float:
    """Return the regret on Branin after six Sobol points and `asks` more, `at_once` in flight."""
    x = spread(config, 6, seed)
    flying = np.empty((0, 1, 2))
    for asked in range(asks):
        known = data(x, branin(x))
        point = generate(ask(config, known, asked=asked, pending=flying, seed=seed)).points
        flying = np.concatenate([flying, point])
        if len(flying) >= at_once or asked == asks - 1:
            told = 1 if asked < asks - 1 else len(flying)
            x, flying = np.concatenate([x, flying[:told, 0]]), flying[told:]
    return float(BRANIN_BEST - branin(x).max())


@pytest.mark.parametrize(("told", "most"), [(8, 4), (16, 6)])
def test_points_in_flight_do_not_gather_where_the_maximum_is_believed(told: int, most: int) -> None:
    """After 16 points of a bowl the model knows that place within 0.005, so some refine it."""
    which = config(REGRESSION, IMPROVEMENT)
    for seed in range(2):
        x = spread(which, told, seed)
        known = data(x, -((x - 0.37) ** 2).sum(1))
        flying = np.empty((0, 1, 2))
        for asked in range(8):
            point = generate(ask(which, known, asked=asked, pending=flying, seed=seed)).points
            flying = np.concatenate([flying, point])
        gaps = np.linalg.norm(flying - flying[:, 0], axis=-1) + 9.0 * np.eye(8)
        assert (gaps.min(1) < 0.01).sum() <= most


@pytest.mark.slow
def test_points_of_one_ask_are_those_of_single_asks() -> None:
    x = spread(BOUNDARY, 8)
    known = data(x, above(x))
    together = generate(ask(BOUNDARY, known, 2)).points
    flying = np.empty((0, 1, 2))
    for asked in range(2):
        one = generate(ask(BOUNDARY, known, asked=asked, pending=flying)).points
        flying = np.concatenate([flying, one])
    assert together == pytest.approx(flying)


PROGRAM = """
import pickle, sys
from farm.experiment.models import generate
for work in pickle.load(sys.stdin.buffer):
    print(generate(work).points.tobytes().hex())
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_another_process_gives_the_same_points() -> None:
    x = spread(BRANIN, 16)
    unit = spread(BOUNDARY, 8)
    works = [
        ask(BRANIN, data(x, branin(x)), 2, seed=5),
        ask(BOUNDARY, data(unit, above(unit)), seed=5),
    ]
    here = [generate(work).points.tobytes().hex() for work in works]
    there = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        input=pickle.dumps(works),
        capture_output=True,
        check=False,
        timeout=scaled(50),
    )
    assert there.stderr.decode() == ""
    assert there.stdout.decode().split() == here


@pytest.mark.slow
def test_another_seed_gives_other_points() -> None:
    x = spread(BOUNDARY, 6)
    one, other = (generate(ask(BOUNDARY, data(x, above(x)), seed=seed)).points for seed in (1, 2))
    assert abs(one - other).max() > 1e-9


MIXED = (
    Parameter("level", ParameterKind.INTEGER, lower=-2, upper=5),
    Parameter("on", ParameterKind.BINARY),
    SHAPE,
    Parameter("constant", ParameterKind.FIXED, value=3.5),
    Parameter("rate", lower=1e-3, upper=10.0, log_scale=True),
)


def mixed_truth(x: Array) -> Array:
    """Return values whose maximum is 6, at level 3, on, shape b, rate 0.1."""
    rate = np.log10(x[:, 3])
    truth: Array = (
        6 - 0.3 * (x[:, 0] - 3) ** 2 - 2 * (x[:, 1] < 0.5) - 3 * (x[:, 2] != 1) - (rate + 1) ** 2
    )
    return truth


@pytest.mark.slow
def test_values_stay_in_their_sets_and_the_best_is_found() -> None:
    which = config(REGRESSION, parameters=MIXED)
    space = Space(MIXED)
    unit = sobol(4, 12)
    x = space.from_unit(unit[:, None, :])[:, 0]
    for asked in range(6):
        work = ask(which, data(x, mixed_truth(x)), asked=asked)
        point = generate(work).points
        assert point.shape == (1, 1, 4)
        assert point[0, 0, 0] in range(-2, 6)
        assert point[0, 0, 1] in (0.0, 1.0)
        assert point[0, 0, 2] in (0.0, 1.0, 2.0)
        assert 1e-3 <= point[0, 0, 3] <= 10.0
        x = np.concatenate([x, point[:, 0]])
    assert mixed_truth(x).max() > 5.6
    assert 0.02 < x[np.argmax(mixed_truth(x)), 3] < 0.5


def test_held_parameters_are_held() -> None:
    which = config(REGRESSION, "qUpperConfidenceBound", parameters=MIXED)
    space = Space(MIXED)
    x = space.from_unit(sobol(4, 16)[:, None, :])[:, 0]
    held = {"level": -1.0, "rate": 0.37}
    points = generate(ask(which, data(x, mixed_truth(x)), 3, fixed=held)).points
    assert (points[:, 0, 0] == -1.0).all()
    assert (points[:, 0, 3] == 0.37).all()
    assert len(np.unique(points[:, 0, 1:3], axis=0)) == 3


@pytest.mark.slow
def test_when_every_point_is_in_flight_one_is_given_again() -> None:
    few = (Parameter("on", ParameterKind.BINARY), Parameter("two", ParameterKind.BINARY))
    which = config(REGRESSION, parameters=few)
    known = data(np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([0.0, 1.0]))
    given = generate(ask(which, known, 5))
    assert len(np.unique(given.points[:4], axis=0)) == 4
    assert given.note == "every point is in flight: one of them again"
    assert generate(ask(which, known, 4)).note == ""


FINITE = [
    ("one trial", np.array([[0.3, 0.4]]), np.array([1.0])),
    ("all equal", None, np.full(8, 5.0)),
    ("all zero", None, np.zeros(8)),
    ("all one", None, np.ones(8)),
    ("one place", np.full((8, 2), 0.5), np.arange(8) % 2),
    ("outside", np.linspace(-1e300, 1e300, 16).reshape(8, 2), np.arange(8) % 2),
    ("huge", None, np.array([1e300, -1e300, 1e6, 0.0, 1.0, -300.0, 1e-300, 2.0])),
    ("tiny", None, np.arange(8) * 1e-200),
]

QUICK = ("one trial", "outside")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("x", "y"),
    [
        pytest.param(*told, id=name, marks=[] if name in QUICK else pytest.mark.slow)
        for name, *told in FINITE
    ],
)
@pytest.mark.parametrize("which", ["numbers", "yes or no", "ahead"])
def test_points_are_finite_whatever_was_told(which: str, x: Array | None, y: Array) -> None:
    made = {
        "numbers": config(REGRESSION, min_post_range=0.1),
        "yes or no": config(CLASSIFICATION, STRADDLE, objective=PROBIT, min_post_range=0.1),
        "ahead": config(CLASSIFICATION, "EAVC"),
    }[which]
    told = data(spread(made, 8) if x is None else x, y if which == "numbers" else (y > 0.5))
    given = generate(ask(made, told, 2))
    assert np.isfinite(given.points).all()
    assert ((given.points >= 0) & (given.points <= 1)).all()
    assert abs(given.points[0] - given.points[1]).max() > 1e-3
    if which != "ahead":
        assert given.post_range is not None
        assert np.isfinite(given.post_range)


@pytest.mark.slow
def test_without_data_points_fill_the_space_and_say_so() -> None:
    given = generate(ask(BRANIN, data(np.empty((0, 2)), np.empty(0)), 4))
    assert given.note == "no trial is modelled yet: points that fill the space"
    unit = (given.points[:, 0] - [-5, 0]) / 15
    gaps = [np.linalg.norm(unit[i] - unit[j]) for i in range(4) for j in range(i)]
    assert min(gaps) > 0.4


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e6, 300.0, 1e-5])
def test_the_scale_of_outcomes_changes_nothing(scale: float) -> None:
    x = spread(BRANIN, 12)
    plain = generate(ask(BRANIN, data(x, branin(x)))).points
    scaled = generate(ask(BRANIN, data(x, scale * branin(x) - 7 * scale))).points
    assert scaled == pytest.approx(plain, abs=0.1)


@pytest.mark.slow
def test_the_range_of_the_mean_is_told_when_it_counts() -> None:
    x = spread(BOUNDARY, 32)
    for model, y, low, high in (
        (CLASSIFICATION, above(x), 0.8, 1.0),
        (REGRESSION, 100 * x[:, 0], 90, 110),
    ):
        which = config(model, STRADDLE, objective=PROBIT, min_post_range=0.5)
        span = generate(ask(which, data(x, y))).post_range
        assert span is not None
        assert low < span < high
    assert generate(ask(BOUNDARY, data(x, above(x)))).post_range is None


def test_the_range_is_told_of_points_that_the_surrogate_has_not_made() -> None:
    optimised = config(REGRESSION, min_post_range=0.5)
    strategy = replace(optimised.strategies[0], generator=Generator("SobolGenerator", "sobol"))
    sequence = replace(optimised, strategies=(strategy,))
    x = spread(optimised, 6)
    told = data(x, 100 * x[:, 0])
    work = ask(sequence, told, 2, asked=6)
    given = execute(work)
    assert isinstance(given, Generated)
    assert given.points.tolist() == generate_model_free(work).points.tolist()
    assert given.post_range is not None
    assert given.post_range == post_range(ask(optimised, told))
    assert 50 < given.post_range < 150


@pytest.mark.slow
def test_each_outcome_has_points_of_its_own() -> None:
    one, two = config(REGRESSION), config(CLASSIFICATION, STRADDLE, objective=PROBIT)
    strategy = replace(
        one.strategies[0],
        generator=Generator(
            "IndependentOptimizeAcqfGenerator",
            "both",
            parts=(one.strategies[0].generator, two.strategies[0].generator),
        ),
        surrogate=Surrogate(
            "IndependentGPsModel",
            "models",
            parts=(Surrogate(REGRESSION, "a"), Surrogate(CLASSIFICATION, "b")),
        ),
    )
    both = replace(
        one,
        outcomes=(Outcome("size", OutcomeKind.CONTINUOUS), Outcome("seen", OutcomeKind.BINARY)),
        strategies=(strategy,),
    )
    x = spread(both, 16)
    size = -((x - 0.8) ** 2).sum(1)
    points = generate(ask(both, data(x, np.stack([size, above(x)], 1)), 2)).points[:, 0]
    assert points.shape == (4, 2)
    assert abs(points[:1] - 0.8).max() < 0.1
    assert abs(points[2:, 1] - (0.3 + 0.4 * points[2:, 0] ** 2)).max() < 0.3


@pytest.mark.parametrize(
    "acqf", ["PairwiseMCPosteriorVariance", pytest.param(IMPROVEMENT, marks=pytest.mark.slow)]
)
def test_pairs_are_two_different_points(acqf: str) -> None:
    which = config(PAIRWISE, acqf)
    x = spread(which, 32).reshape(16, 2, 2)
    worth = -((x - 0.3) ** 2).sum(-1)
    given = generate(ask(which, data(x, (worth[:, 1] > worth[:, 0]).astype(float)), 2)).points
    assert given.shape == (2, 2, 2)
    assert abs(given[:, 0] - given[:, 1]).max(-1).min() > 0.01


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("at_once", [1, 8])
def test_regret_is_far_below_sobols_over_seeds(at_once: int) -> None:
    ours = [optimised(BRANIN, asks=24, at_once=at_once, seed=seed) for seed in range(5)]
    sobols = [BRANIN_BEST - branin(spread(BRANIN, 30, seed)).max() for seed in range(5)]
    print(f"regret, {at_once} in flight: {np.median(ours):.4f}, Sobol {np.median(sobols):.3f}")
    assert np.median(ours) < 0.1 * np.median(sobols)


MEASURED = """
import pickle, sys, time
from pathlib import Path
from farm.experiment.models import generate
work = pickle.load(sys.stdin.buffer)
began = time.monotonic()
generate(work)
took_s = time.monotonic() - began
status = Path("/proc/self/status").read_text()
print(took_s, status.split("VmHWM:")[1].split()[0])
"""
"""Prints the seconds that one piece of work took, and the peak of the process's memory in KiB.

`ru_maxrss` would include the peak of the parent, which survives `exec`.
"""


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [1000, 2000])
@pytest.mark.parametrize("which", ["numbers", "yes or no", "ahead"])
def test_thousands_of_trials_take_seconds_and_little_memory(which: str, count: int) -> None:
    made = {
        "numbers": BRANIN,
        "yes or no": config(CLASSIFICATION, STRADDLE, objective=PROBIT, parameters=BRANIN_BOUNDS),
        "ahead": config(CLASSIFICATION, "EAVC", parameters=BRANIN_BOUNDS),
    }[which]
    x = spread(made, 2048)[:count]
    y = branin(x)
    noise = np.random.default_rng(0).logistic(scale=8, size=count)
    known = data(x, y if which == "numbers" else (y + 40 + noise > 0).astype(float))
    measured = subprocess.run(
        [sys.executable, "-c", MEASURED],
        input=pickle.dumps(ask(made, known, 2)),
        stdout=subprocess.PIPE,
        check=True,
        timeout=scaled(280),
    )
    took_s, peak_kib = map(float, measured.stdout.split())
    peak = peak_kib / 2**20
    print(f"{which}, {count} trials: {took_s:.1f} s for two points, peak {peak:.2f} GiB")
    assert took_s < scaled(60)
    assert peak < 2.0
