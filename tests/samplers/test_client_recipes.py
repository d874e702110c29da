"""The other recipes of docs/samplers.md, from the document's own text: `make test-clients`."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import emcee
import numpy as np
import pytest

from farm.client.remote import RemoteModel
from tests.samplers import page
from tests.samplers.target import (
    COVARIANCE,
    MATRIX,
    MEAN,
    Array,
    Calls,
    Served,
    assert_moments,
    linear_posterior,
)
from tests.support.time_limits import scaled

pytestmark = pytest.mark.clients
SERVER = "http://127.0.0.1:4242"
FIRST_SD = float(np.linalg.norm(MATRIX[0]))
"""Standard deviation of the first observable under standard normal parameters; its mean is zero."""


def test_pocomc(here: Path, calls: Calls) -> None:
    changes = {"sampler.run()": "sampler.run(1024, 1024, progress=False)"}
    names = page.run(
        "pocoMC", here, {"vectorize=True": "vectorize=True, random_state=1", **changes}
    )
    weights = names.weights / names.weights.sum()
    picked = np.random.default_rng(1).choice(len(weights), 2000, p=weights)
    assert_moments(names.draws[picked], 300, MEAN, COVARIANCE)
    assert calls.count() > 1000


def test_zeus(here: Path) -> None:
    np.random.seed(1)
    names = page.run("zeus", here, {"500": "300"})
    draws = names.sampler.get_chain(discard=50)
    time = emcee.autocorr.integrated_time(draws, quiet=True).max()
    assert_moments(draws, draws[..., 0].size / time, MEAN, COVARIANCE)


def test_openturns(here: Path, calls: Calls) -> None:
    names = page.run("OpenTURNS", here)
    exact = 0.5 * math.erfc(1.0 / FIRST_SD / math.sqrt(2.0))
    assert names.probability == pytest.approx(exact, rel=0.5)  # it stops at a variation of 0.1
    assert calls.count("forward") % 100 == 0


def test_openturns_takes_gradients(here: Path) -> None:
    text = re.findall(r"`(gradient=lambda.*)` to `PythonFunction`", page.PAGE)[0]
    names = page.run("OpenTURNS", here, {"[:, :1])": f"[:, :1], {text})"})
    assert np.array(names.function.gradient([1.0, 2.0])) == pytest.approx(MATRIX[:1].T)


def test_easyvvuq(here: Path, calls: Calls) -> None:
    names = page.run("EasyVVUQ", here)
    assert names.results.describe("y", "mean") == pytest.approx(0.0, abs=1e-12)
    assert names.results.describe("y", "std") == pytest.approx(FIRST_SD)
    assert calls.count("forward") == 9


def test_libensemble(here: Path, calls: Calls, posterior: RemoteModel) -> None:
    names = page.run("libEnsemble", here)
    done = names.history[names.history["sim_ended"]]
    assert calls.count() == len(done) == 64
    assert np.array_equal(done["f"], posterior.map(done["x"])[:, 0])


def test_pyabc(here: Path, calls: Calls) -> None:
    names = page.run("pyABC", here)
    frame, weights = names.history.get_distribution()
    mean = weights @ frame[["a", "b"]].to_numpy()
    exact, covariance = linear_posterior(2.0)
    # The last threshold is still wide: twice the posterior's standard deviation is right.
    assert np.all(np.abs(mean - exact) < 2.0 * np.sqrt(np.diag(covariance)))
    assert calls.count("forward") >= 500


def test_pypesto(here: Path, calls: Calls) -> None:
    names = page.run("pyPESTO", here)
    assert names.result.optimize_result[0].x == pytest.approx(MEAN, abs=1e-4)
    assert calls.count(operation="gradient") >= 8


def test_sbi(here: Path, calls: Calls) -> None:
    names = page.run("sbi", here)
    exact, covariance = linear_posterior(2.0)
    mean = names.draws.numpy().mean(axis=0)
    # A network after 2,000 simulations: within its posterior's standard deviation.
    assert np.all(np.abs(mean - exact) < np.sqrt(np.diag(covariance)))
    assert calls.count("forward") == 2000


def test_salib(here: Path, calls: Calls) -> None:
    names = page.run("SALib", here)
    shares = MATRIX[0] ** 2 / (MATRIX[0] ** 2).sum()  # of a linear model's variance
    assert names.problem.analysis["S1"] == pytest.approx(shares, abs=0.05)
    assert calls.count("forward") == 256 * 6


def test_qmcpy(here: Path, served: Served, calls: Calls) -> None:
    names = page.run("QMCPy", here, {SERVER: served.url})
    assert names.means == pytest.approx(np.zeros(3), abs=0.2)
    assert calls.count("forward") == 64


def test_chaospy(here: Path, calls: Calls) -> None:
    names = page.run("chaospy", here)
    expansion, law = names.expansion, names.law
    assert names.chaospy.E(expansion, law) == pytest.approx(np.zeros(3), abs=1e-12)
    assert names.chaospy.Var(expansion, law) == pytest.approx((MATRIX**2).sum(axis=1))
    assert calls.count("forward") == 16


def test_scipy(here: Path, calls: Calls) -> None:
    names = page.run("scipy", here)
    assert names.found.x == pytest.approx(MEAN, abs=0.1)
    assert calls.count() % 30 == 0


def test_optuna(here: Path, calls: Calls) -> None:
    names = page.run("Optuna", here)
    assert len(names.study.trials) == calls.count() == 100
    assert names.study.best_value == max(trial.value for trial in names.study.trials)


@pytest.mark.parametrize("processes", [False, True])
def test_joblib(here: Path, calls: Calls, posterior: RemoteModel, processes: bool) -> None:
    changes = {'n_jobs=16, prefer="threads"': "n_jobs=2"} if processes else {}
    names = page.run("joblib", here, changes)
    assert calls.count() == 100
    assert np.array_equal(np.array(names.values), posterior.map(names.points))


def test_ray(here: Path, calls: Calls, posterior: RemoteModel) -> None:
    """As a program: Ray's workers import what they run from it."""
    changes = {"num_cpus=4": "num_cpus=2, include_dashboard=False, log_to_driver=False"}
    code = page.script("Ray", changes) + 'np.savez("values.npz", points, values)\n'
    (here / "recipe.py").write_text(code)
    subprocess.run([sys.executable, "recipe.py"], cwd=here, check=True, timeout=scaled(120.0))
    points, values = np.load(here / "values.npz").values()
    assert calls.count() == 100
    assert np.array_equal(values, posterior.map(points)[:, 0])


PRINTED = {
    "R": ("r", ["Rscript"], 'cat(sprintf("%.17g %.17g %.17g\\n", theta[, 1], theta[, 2], values))'),
    "Octave": ("octave", ["octave-cli"], 'printf("%.17g %.17g %.17g\\n", [theta, values(:)]\');'),
}


def printed(language: str, here: Path, url: str, more: Mapping[str, str]) -> Array:
    """Run a recipe of another language with changes; return its points and values, (n, 3)."""
    fence, command, show = PRINTED[language]
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    code = page.blocks(fence)[language]
    for old, new in {SERVER: url, **more}.items():
        assert old in code
        code = code.replace(old, new)
    (here / "recipe").write_text(f"{code}{show}\n")
    ended = subprocess.run(
        [*command, "recipe"], cwd=here, capture_output=True, text=True, timeout=scaled(60.0)
    )
    assert ended.returncode == 0, ended.stderr
    words = [line.split() for line in ended.stdout.splitlines()]
    return np.array([[math.nan if word == "NA" else float(word) for word in row] for row in words])


@pytest.mark.parametrize("language", PRINTED)
def test_other_languages(
    language: str, here: Path, served: Served, calls: Calls, posterior: RemoteModel
) -> None:
    found = printed(language, here, served.url, {})
    assert calls.count() == len(found) == 100
    assert found[:, 2] == pytest.approx(posterior.map(found[:, :2])[:, 0], rel=1e-9)


def test_r_reads_what_is_no_number_as_na(
    here: Path, served: Served, posterior: RemoteModel
) -> None:
    far = {"theta <- matrix(rnorm(200), ncol = 2)": "theta <- rbind(c(0, 0), c(1e200, 0))"}
    found = printed("R", here, served.url, far)
    values = posterior.map(found[:, :2])[:, 0]
    assert values[1] == -math.inf
    assert found[0, 2] == pytest.approx(values[0], rel=1e-9)
    assert math.isnan(found[1, 2])
