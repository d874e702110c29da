"""The recipes of docs/samplers.md that CI runs, from the document's own text."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import emcee
import numpy as np
import pytest

from tests.samplers import page
from tests.samplers.target import (
    COVARIANCE,
    MATRIX,
    MEAN,
    NOISE_SD,
    Calls,
    Served,
    assert_moments,
    linear_posterior,
)
from tests.support.dispatcher_farm import serving
from tests.support.running_farm import wait_until
from tests.support.time_limits import scaled

LIMIT_S = scaled(60.0)
MODELS = "Models to try"


def test_every_recipe_is_run() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*recipes.py"))
    shown = {heading for language in ("python", "r", "octave") for heading in page.blocks(language)}
    recipes = shown - {"", MODELS}
    assert len(recipes) == 23
    assert {heading for heading in recipes if f'"{heading}"' not in tests} == set()


def test_the_setup_names_the_test_models(here: Path) -> None:
    names = page.run("", here)
    assert names.model.name == "posterior"
    assert names.forward.name == "forward"
    assert f"{NOISE_SD**2:g} * np.eye(3)" in page.blocks()["tinyDA"]


def test_the_page_has_models_to_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models.py").write_text(page.blocks()[MODELS])
    command = re.findall(r"`farm serve (models\.py:.*?) --workers 4`", page.PAGE)
    with serving(tmp_path, *command[0].split(), "--workers", "1") as served:
        (tmp_path / "farm-run").symlink_to(served.folder)
        monkeypatch.chdir(tmp_path)
        names = page.run("", tmp_path)
        x = np.array([1.0, 2.0])
        assert names.model(x) == pytest.approx(-2.5)
        assert names.model.gradient(0, 0, x, [1.0]) == pytest.approx(-x)
        assert names.forward(x, {"level": 1}) == pytest.approx(0.9 * (MATRIX @ x))
        assert names.forward.gradient(0, 0, x, [1.0, 0.0, 0.0]) == pytest.approx(MATRIX[0])


def test_emcee(here: Path, calls: Calls) -> None:
    np.random.seed(1)
    names = page.run("emcee", here, {"1000": "400"})
    assert calls.count() == 32 * 401
    draws = names.sampler.get_chain(discard=100, flat=True)
    time = names.sampler.get_autocorr_time(discard=100, quiet=True).max()
    assert_moments(draws, len(draws) / time, MEAN, COVARIANCE)


def test_emcee_continues_its_chain(here: Path, calls: Calls) -> None:
    chains = []
    for steps in ((60,), (25, 60)):
        np.random.seed(2)
        for n in steps:
            page.run("emcee", here, {"1000": str(n)})
        chains.append(emcee.backends.HDFBackend(str(here / "chain.h5")).get_chain())
        (here / "chain.h5").unlink()
    assert np.array_equal(*chains)
    assert calls.count() == 2 * 32 * 61


def test_dynesty(here: Path, calls: Calls) -> None:
    names = page.run("dynesty", here)
    results = names.sampler.results
    assert calls.repeats() == 0
    # The evidence of a normal density under a uniform prior of area 400.
    assert results.logz[-1] == pytest.approx(-np.log(400.0), abs=5 * results.logzerr[-1])
    draws = results.samples_equal(rstate=np.random.default_rng(1))
    assert_moments(draws, 500, MEAN, COVARIANCE)


RESTORED = dict(
    zip(
        re.findall(r"^    sampler.*$", page.blocks()["dynesty"], re.MULTILINE),
        page.blocks("text")["dynesty"].splitlines(),
        strict=True,
    )
)
REPORTED = """
    results = sampler.results
    print(results.logz[-1], results.logzerr[-1], results.ncall.sum())
"""


def test_dynesty_continues_after_a_kill(here: Path, calls: Calls) -> None:
    often = {'"nested.save")': '"nested.save", checkpoint_every=0.1)'}
    (here / "first.py").write_text(page.script("dynesty", often))
    first = subprocess.Popen([sys.executable, "first.py"], cwd=here, stderr=subprocess.DEVNULL)
    try:
        saved = here / "nested.save"
        wait_until(lambda: saved.exists() and calls.count() > 500, "a checkpoint")
    finally:
        first.kill()
        first.wait()
    assert first.returncode == -signal.SIGKILL
    before = calls.count()
    (here / "second.py").write_text(page.script("dynesty", RESTORED) + REPORTED)
    output = subprocess.run(
        [sys.executable, "second.py"], cwd=here, capture_output=True, check=True, timeout=LIMIT_S
    ).stdout
    log_z, error, counted = (float(x) for x in output.split())
    assert log_z == pytest.approx(-np.log(400.0), abs=5 * error)
    # What dynesty counts includes the points of the first program, which are not asked for again.
    assert calls.count() - before < counted - 200


@pytest.mark.parametrize("how", ["native", "umbridge"])
def test_tinyda(here: Path, served: Served, calls: Calls, how: str) -> None:
    changes: dict[str, str] = {}
    if how == "umbridge":
        remote = f'umbridge.HTTPModel("{served.url}", "forward")'
        changes = {
            "lambda theta: forward(theta, {": f"tda.UmBridgeModel({remote}, umbridge_config={{",
            "import tinyDA as tda": "import tinyDA as tda, umbridge",
        }
    np.random.seed(3)
    names = page.run("tinyDA", here, {"1000": "400", **changes})
    chain = np.array([link.parameters for link in names.chains["chain_fine_0"]])
    time = emcee.autocorr.integrated_time(chain[50:], quiet=True).max()
    assert_moments(chain[50:], len(chain[50:]) / time, *linear_posterior(2.0))
    fine = sum(line.split()[2] == "0" for line in calls.lines("forward"))
    coarse = calls.count("forward") - fine
    assert fine <= 401
    assert coarse > 4 * fine
