"""Regression in closed form, against the library's model of the same numbers."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.experiment.models.configs import learned, sobol

if TYPE_CHECKING:
    import torch
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    from farm.experiment.models import exact
    from farm.experiment.models.exact import Exact
    from farm.experiment.models.surrogate import Learned


def places(known: Learned, count: int = 7) -> torch.Tensor:
    """Return positions (count, 2), of choices where there are some."""
    points = torch.tensor(sobol(2, count, seed=5))
    if known.model.covar_module.base_kernel.ard_num_dims == 4:
        points[:, 1] = torch.arange(count) % 3
    return points


@pytest.mark.parametrize("choices", [False, True])
def test_the_objective_and_its_gradient_are_the_librarys(choices: bool) -> None:
    fitted = learned(choices=choices).model
    # A copy in training mode, elsewhere than at the optimum, where all gradients are 0.
    model = SingleTaskGP(
        fitted.train_inputs[0] if not choices else learned(choices=True).told[:, 0],
        torch.sin(torch.arange(20.0, dtype=torch.float64))[:, None],
        likelihood=fitted.likelihood, covar_module=fitted.covar_module,
        input_transform=getattr(fitted, "input_transform", None),
    )  # fmt: skip
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    model.train()
    loss = -mll(model(*model.train_inputs), model.train_targets)
    loss.backward()
    numbers = exact.numbers_of(model)
    value, gradient = exact.Objective(model)(numbers)
    kernel = model.covar_module
    theirs = torch.cat(
        [
            part.grad.flatten()
            for part in (
                model.mean_module.constant, kernel.raw_outputscale,
                model.likelihood.noise_covar.raw_noise, kernel.base_kernel.raw_lengthscale,
            )
        ]
    ).numpy()  # fmt: skip
    theirs[1:] *= np.exp(numbers[1:])  # ours is by the logarithms
    assert value == pytest.approx(loss.item(), rel=1e-9)
    assert gradient == pytest.approx(theirs, rel=1e-6, abs=1e-9)


def test_a_fit_ends_where_the_objective_falls_no_further() -> None:
    model = learned().model
    objective = exact.Objective(model)
    numbers = exact.numbers_of(model)
    best, gradient = objective(numbers)
    free = [
        low is None or number > low + 1e-6
        for number, (low, _) in zip(numbers, objective.bounds, strict=True)
    ]
    assert np.abs(gradient[free]).max() < 1e-2
    for step in np.random.default_rng(0).normal(0, 0.3, (50, len(numbers))):
        low = [-np.inf if bound is None else bound for bound, _ in objective.bounds]
        assert objective(np.maximum(numbers + step, low))[0] >= best - 1e-6


def test_numbers_without_a_positive_definite_matrix_are_impossible() -> None:
    known = learned()
    objective = exact.Objective(known.model)
    value, gradient = objective(np.array([0.0, 30.0, -40.0, 5.0, 5.0]))
    assert value == exact.IMPOSSIBLE
    assert not gradient.any()


@pytest.mark.parametrize("choices", [False, True])
def test_moments_are_the_librarys(choices: bool) -> None:
    known = learned(choices=choices)
    points = places(known)
    with torch.no_grad():
        theirs = known.model.posterior(points)
        mean, covariance = known.exact.joint(points)  # type: ignore[union-attr]
        alone, variance = known.exact.moments(points)  # type: ignore[union-attr]
        centre = (theirs.mean[:, 0] - known.offset) / known.scale
        spread = theirs.distribution.covariance_matrix / known.scale**2
    for found, wanted in (
        (mean, centre), (alone, centre), (covariance, spread), (variance, spread.diagonal()),
    ):  # fmt: skip
        assert found.numpy() == pytest.approx(wanted.numpy(), rel=1e-5, abs=1e-7)


def test_gradients_of_the_moments_are_those_of_differences() -> None:
    posterior = learned().exact
    assert posterior is not None
    points = torch.tensor(sobol(2, 5, seed=9), requires_grad=True)
    assert torch.autograd.gradcheck(posterior.moments, points, eps=1e-6, atol=1e-4)


def test_what_is_believed_narrows_the_spread_and_moves_no_mean() -> None:
    """As the library's model does when it is conditioned on the expected values, without noise."""
    known = learned()
    assert known.exact is not None
    flying, points = torch.tensor(sobol(2, 3, seed=11)), places(known)
    with torch.no_grad():
        known.model.posterior(points)  # conditioning needs a cached posterior
        expected = known.model.posterior(flying).mean
        later = known.model.condition_on_observations(
            flying, expected, noise=torch.full((3, 1), 1e-9, dtype=flying.dtype)
        )
        theirs = later.posterior(points)
        mean, variance = known.exact.believing(flying).moments(points)
        before, wide = known.exact.moments(points)
        wanted = theirs.variance[:, 0] / known.scale**2
    assert mean.numpy() == pytest.approx(before.numpy())
    assert variance.numpy() == pytest.approx(wanted.numpy(), rel=1e-4, abs=1e-7)
    assert bool((variance < wide).all())
    assert known.exact.believing(flying[:0]) is known.exact


def test_repeated_trials_without_noise_have_a_posterior() -> None:
    known = learned()
    model = copy.deepcopy(known.model)
    with torch.no_grad():
        model.likelihood.noise_covar.raw_noise.fill_(1e-18)
        model.train_inputs[0][1] = model.train_inputs[0][0]
        mean, variance = Exact(model).moments(places(known))
    assert bool(torch.isfinite(mean).all())
    assert bool((variance > 0).all())
