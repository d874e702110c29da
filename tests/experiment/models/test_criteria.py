"""Each acquisition function against samples of the process, or a closed form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy import special, stats

from farm.call import Array
from farm.errors import InvalidInput
from farm.experiment.config.components import ACQUISITIONS
from farm.experiment.config.definition import Acquisition, Surrogate
from tests.experiment.models.configs import (
    CLASSIFICATION,
    PAIRWISE,
    REGRESSION,
    SQUARE,
    config,
    data,
    spread,
)

if TYPE_CHECKING:
    import torch
    from botorch.acquisition.active_learning import qNegIntegratedPosteriorVariance

    from farm.experiment.models.criteria import (
        _ACQUISITIONS,
        Ahead,
        Look,
        Situation,
        acquisition_of,
        look_ahead,
    )
    from farm.experiment.models.domain import Domain
    from farm.experiment.models.normal import DTYPE
    from farm.experiment.models.surrogate import Learned

PLACES = np.array([[0.1, 0.2], [0.45, 0.5], [0.9, 0.35], [0.7, 0.95]])


def bump(x: Array) -> Array:
    values: Array = 40 * np.exp(-3 * ((x - 0.4) ** 2).sum(-1)) - 7
    return values


def situation(
    model: str,
    acqf: str,
    objective: str = "",
    options: Mapping[str, str] | None = None,
    pending: Array | None = None,
    noise: float = 0.0,
) -> Situation:
    domain = Domain(SQUARE, 2 if model == PAIRWISE else 1, {})
    x = spread(config(model), 16)
    y = bump(x) + noise * np.random.default_rng(3).normal(size=16)
    y = y if model == REGRESSION else (bump(x) > 14).astype(float)
    if model == PAIRWISE:
        x = np.stack([x, x[::-1]], 1)
        y = (bump(x[:, 1]) > bump(x[:, 0])).astype(float)
    learned = Learned.of(Surrogate(model, model), 0, domain, data(x, y))
    flying = torch.tensor(np.empty((0, domain.stimuli, 2)) if pending is None else pending)
    acquisition = Acquisition(acqf, acqf, options or {}, objective)
    return Situation(acquisition, learned, domain, flying, 7)


def judged(s: Situation, places: Array = PLACES) -> Array:
    with torch.no_grad():
        values: Array = acquisition_of(s)(torch.tensor(places)[:, None, :]).numpy()
    return values


def drawn(s: Situation, count: int = 400_000) -> Array:
    """Return independent samples of the process at PLACES, shape (4, count)."""
    mean, variance = s.learned.moments(torch.tensor(PLACES)[:, None, :])
    z = np.random.default_rng(0).normal(size=count)
    values: Array = mean.detach().numpy()[:, None] + np.sqrt(variance.detach().numpy())[:, None] * z
    return values


def made(f: Array, objective: str) -> Array:
    floor = 0.5 if objective.startswith("Floor") else 0.0
    p: Array = special.expit(f) if "Logit" in objective else special.ndtr(f)
    return floor + (1 - floor) * p if objective not in ("", "IdentityMCObjective") else f


@pytest.mark.parametrize(
    "objective",
    ["", "IdentityMCObjective", "ProbitObjective", "FloorProbitObjective", "FloorLogitObjective"],
)
def test_straddle_bound_and_variance_of_a_yes_or_no(objective: str) -> None:
    options = {"target": "0.7", "beta": "2.25"}
    s = situation(CLASSIFICATION, "MCLevelSetEstimation", objective, options)
    values = made(drawn(s), objective)
    mean, sd = values.mean(1), values.std(1)
    assert judged(s) == pytest.approx(1.5 * sd - abs(mean - 0.7), abs=0.01)
    s = situation(CLASSIFICATION, "qUpperConfidenceBound", objective, options)
    off = abs(values - mean[:, None]).mean(1) * np.sqrt(np.pi / 2)  # sd if values are normal
    assert judged(s) == pytest.approx(mean + 1.5 * off, abs=0.02)
    s = situation(CLASSIFICATION, "MCPosteriorVariance", objective)
    assert judged(s) == pytest.approx(sd**2, rel=0.01, abs=2e-4)


def test_the_straddle_of_numbers_has_a_target_in_the_users_units() -> None:
    s = situation(REGRESSION, "MCLevelSetEstimation", options={"target": "12"})
    values = drawn(s) * s.learned.scale + s.learned.offset
    wanted = np.sqrt(3.84) * values.std(1) - abs(values.mean(1) - 12)
    assert judged(s) * s.learned.scale == pytest.approx(wanted, abs=0.05)


@pytest.mark.parametrize(
    ("model", "objective"),
    [(REGRESSION, ""), (CLASSIFICATION, ""), (CLASSIFICATION, "ProbitObjective")],
)
@pytest.mark.parametrize("flying", [0, 2])
def test_improvement_is_what_draws_show(model: str, objective: str, flying: int) -> None:
    pending = np.array([[[0.5, 0.1]], [[0.1, 0.9]]])[:flying]
    s = situation(model, "qLogNoisyExpectedImprovement", objective, pending=pending)
    told = np.concatenate([s.learned.told.numpy()[:, 0], pending[:, 0]])
    rows = torch.tensor(np.concatenate([told, PLACES]))
    mean, covariance = (part.detach().numpy() for part in s.learned.joint(rows[:, None, :]))
    factor = np.linalg.cholesky(covariance + 1e-9 * np.eye(len(rows)))
    draws = mean[:, None] + factor @ np.random.default_rng(1).normal(size=(len(rows), 200_000))
    draws = special.ndtr(draws) if objective else draws
    better = np.maximum(draws[len(told) :] - draws[: len(told)].max(0), 0).mean(1)
    ours = np.exp(judged(s))
    assert better.max() > 3e-4
    # BoTorch draws only 256 samples, so unlikely values occur only a few times.
    assert ours == pytest.approx(better, rel=0.25, abs=max(0.15 * better.max(), 1e-3))


def test_information_of_a_yes_or_no() -> None:
    s = situation(CLASSIFICATION, "BernoulliMCMutualInformation")
    p = special.ndtr(drawn(s))
    entropy = special.entr(p) + special.entr(1 - p)
    whole = special.entr(p.mean(1)) + special.entr(1 - p.mean(1))
    assert judged(s) == pytest.approx(whole - entropy.mean(1), abs=2e-3)


def test_integrated_variance_of_numbers_is_botorchs() -> None:
    s = situation(REGRESSION, "qNegIntegratedPosteriorVariance", options={"query_set_size": "64"})
    theirs = qNegIntegratedPosteriorVariance(s.learned.model, s.everywhere()[:, 0])
    with torch.no_grad():
        later = -theirs(torch.tensor(PLACES)[:, None, :]).numpy() / s.learned.scale**2
        before = float(s.learned.moments(s.everywhere())[1].mean())
    assert judged(s) == pytest.approx(before - later, rel=1e-3)


def test_integrated_variance_of_a_yes_or_no_falls_as_after_an_observation() -> None:
    acqf, options = "qNegIntegratedPosteriorVariance", {"query_set_size": "64"}
    s = situation(CLASSIFICATION, acqf, options=options)
    falls = []
    for place in torch.tensor(PLACES)[:, None, None, :]:
        mean, joint = (
            part.detach() for part in s.learned.joint(torch.cat([place, s.everywhere()]))
        )
        density = stats.norm.pdf(float(mean[0])) ** 2
        noise = special.ndtr(float(mean[0])) * special.ndtr(-float(mean[0])) / density
        falls.append(float((joint[0, 1:] ** 2 / (joint[0, 0] + noise)).mean()))
    assert judged(s) == pytest.approx(falls, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("acqf", ["EAVC", "GlobalMI", "LocalMI"])
@pytest.mark.parametrize("model", [REGRESSION, CLASSIFICATION])
def test_looking_ahead_prefers_the_boundary(acqf: str, model: str) -> None:
    target = "14" if model == REGRESSION else "0.5"
    s = situation(model, acqf, "", {"target": target}, noise=4.0)
    grid = np.stack(np.meshgrid(np.linspace(0, 1, 25), np.linspace(0, 1, 25)), -1).reshape(-1, 2)
    values = judged(s, grid)
    assert np.isfinite(values).all()
    best = grid[np.argmax(values)]
    with torch.no_grad():
        mean, variance = s.learned.moments(torch.tensor(best)[None, None])
    assert abs(float(mean) - s.level()) < 1.5 * float(variance) ** 0.5 + 0.1


@pytest.mark.parametrize("acqf", ["PairwiseMCPosteriorVariance", "MCPosteriorVariance", "EAVC"])
def test_pairs_are_judged_as_pairs(acqf: str) -> None:
    s = situation(PAIRWISE, acqf, "ProbitObjective")
    same = torch.tensor([[[0.4, 0.4], [0.4, 0.4]]], dtype=DTYPE)
    apart = torch.tensor([[[0.02, 0.98], [0.98, 0.02]]], dtype=DTYPE)
    criterion = acquisition_of(s)
    with torch.no_grad():
        assert float(criterion(same)) == pytest.approx(0.0, abs=1e-5)
        assert float(criterion(apart)) > 1e-4


@pytest.mark.parametrize("acqf", ["qLogNoisyExpectedImprovement", "qUpperConfidenceBound"])
def test_pairs_are_worth_their_better_point(acqf: str) -> None:
    s = situation(PAIRWISE, acqf)
    good, bad = [0.4, 0.4], [0.98, 0.98]
    criterion = acquisition_of(s)
    with torch.no_grad():
        both = criterion(torch.tensor([[good, bad], [bad, bad]], dtype=DTYPE))
    assert float(both[0]) > float(both[1])


@pytest.mark.parametrize(("option", "value"), [("target", "1.5"), ("target", "x"), ("beta", "inf")])
def test_options_that_make_no_sense_are_refused(option: str, value: str) -> None:
    acqf = "EAVC" if option == "target" else "MCLevelSetEstimation"
    with pytest.raises(InvalidInput, match=rf"\[{acqf}\] {option} = {value}.*expected"):
        acquisition_of(situation(CLASSIFICATION, acqf, options={option: value}))


def test_what_is_in_flight_is_believed() -> None:
    pending = PLACES[:1, None, :]
    for acqf in ("MCLevelSetEstimation", "EAVC", "qNegIntegratedPosteriorVariance"):
        without = judged(situation(CLASSIFICATION, acqf, "ProbitObjective"))
        with_it = judged(situation(CLASSIFICATION, acqf, "ProbitObjective", pending=pending))
        assert with_it[0] < without[0]


def test_improvement_next_to_what_is_in_flight_is_small() -> None:
    acqf = "qLogNoisyExpectedImprovement"
    near = PLACES[1:2, None, :] + 0.01
    without, with_it = (judged(situation(REGRESSION, acqf, pending=p))[1] for p in (None, near))
    assert with_it < without - 0.5


def test_every_name_that_configs_may_use_has_a_criterion() -> None:
    assert set(_ACQUISITIONS) == set(ACQUISITIONS.known)


# Looking one observation ahead, against brute force with real observations

LEVEL = 0.6744897501960817  # probability 0.75
NOISE = 0.3
SEEN = np.random.default_rng(0).random((8, 1))
TARGETS = np.random.default_rng(1).normal(size=8)


def kernel(a: Array, b: Array) -> Array:
    covariance: Array = 4 * np.exp(-0.5 * ((a - b.T) / 0.25) ** 2)
    return covariance


def known(points: Array, x: Array = SEEN, y: Array = TARGETS) -> tuple[Array, Array]:
    """Return mean and covariance of a process of one variable, given eight observations."""
    gain = kernel(points, x) @ np.linalg.inv(kernel(x, x) + NOISE * np.eye(len(x)))
    return 0.2 + gain @ (y - 0.2), kernel(points, points) - gain @ kernel(x, points)


GRID = np.linspace(0, 1, 15)[:, None]
SITES = np.array([[0.05], [0.4], [0.77], [1.3]])


def ahead(places: Array, points: Array | None = None, *, binary: bool) -> Ahead:
    """Return the effect of observations at the places on the points, by default the places."""
    everything = places if points is None else np.concatenate([places, points])
    mean, covariance = (torch.tensor(part, dtype=DTYPE) for part in known(everything))
    b, variance = len(places), covariance.diagonal()
    noise = torch.full((b,), NOISE, dtype=DTYPE)
    if points is None:
        own = variance[:, None]
        seen = Look(mean, variance, noise, mean[:, None], own, own)
    else:
        at_points = mean[None, b:], variance[None, b:], covariance[:b, b:]
        seen = Look(mean[:b], variance[:b], noise, *at_points)
    return look_ahead(seen, LEVEL, binary=binary)


def entropy_of(p: Array) -> Array:
    h: Array = special.entr(p) + special.entr(1 - p)
    return h


def below_after(place: Array, points: Array) -> tuple[Array, Array]:
    """Return probabilities (q, 2) of being below after a 0 or 1 at the place, and theirs.

    They are integrals over the process at the place: given it, all other points are normal.
    """
    mean, covariance = known(np.concatenate([place[None], points]))
    spread = np.sqrt(covariance[0, 0])
    f = np.linspace(mean[0] - 9 * spread, mean[0] + 9 * spread, 4001)
    density = stats.norm.pdf(f, mean[0], spread) * (f[1] - f[0])
    slope = covariance[1:, 0] / covariance[0, 0]
    left = np.sqrt(np.maximum(np.diag(covariance)[1:] - slope * covariance[0, 1:], 1e-14))
    centre = mean[1:, None] + slope[:, None] * (f - mean[0])
    below = stats.norm.cdf((LEVEL - centre) / left[:, None])
    likelihood = np.stack([special.ndtr(f), special.ndtr(-f)])
    weights = (likelihood * density).sum(1)
    after = np.einsum("qf,kf,f->qk", below, likelihood, density) / weights
    return after, weights


def test_a_yes_or_no_changes_what_brute_force_says() -> None:
    found = ahead(SITES, GRID, binary=True)
    mean, covariance = known(GRID)
    now = stats.norm.cdf((LEVEL - mean) / np.sqrt(np.diag(covariance)))
    for i, place in enumerate(SITES):
        after, weights = below_after(place, GRID)
        assert found.after[i].numpy() == pytest.approx(after, abs=2e-5)
        assert found.weights[i].numpy() == pytest.approx(weights, abs=1e-7)
        information = (entropy_of(now) - entropy_of(after) @ weights).mean()
        assert float(found.information()[i]) == pytest.approx(information, abs=2e-5)
        change = abs(after.mean(0) - now.mean()) @ weights
        assert float(found.volume_change()[i]) == pytest.approx(change, abs=2e-5)


def test_information_at_the_place_itself() -> None:
    found = ahead(SITES, binary=True)
    for i, place in enumerate(SITES):
        after, weights = below_after(place, place[None] + 1e-9)
        now = after @ weights
        information = float((entropy_of(now) - entropy_of(after) @ weights)[0])
        assert float(found.information()[i]) == pytest.approx(information, abs=1e-3)


def test_a_number_changes_what_brute_force_says() -> None:
    found = ahead(SITES, GRID, binary=False)
    z = np.linspace(-7, 7, 281)
    weights = stats.norm.pdf(z) * (z[1] - z[0])
    for i, place in enumerate(SITES):
        mean, covariance = known(place[None])
        after = []
        for y in mean[0] + z * np.sqrt(covariance[0, 0] + NOISE):
            x = np.concatenate([SEEN, place[None]])
            m, v = known(GRID, x, np.append(TARGETS, y))
            after.append(stats.norm.cdf((LEVEL - m) / np.sqrt(np.diag(v))))
        table = np.array(after).T
        now = found.below[0].numpy()
        information = (entropy_of(now) - entropy_of(table) @ weights).mean()
        assert float(found.information()[i]) == pytest.approx(information, abs=1e-4)
        change = abs(table.mean(0) - now.mean()) @ weights
        assert float(found.volume_change()[i]) == pytest.approx(change, rel=0.02)


def test_far_from_everything_nothing_is_learned() -> None:
    for binary in (True, False):
        found = ahead(np.array([[40.0]]), GRID, binary=binary)
        assert float(found.information()) == pytest.approx(0.0, abs=1e-7)
        assert float(found.volume_change()) == pytest.approx(0.0, abs=1e-7)
