"""Samplers run on while the front door is killed and started again; their draws do not change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import farm
from farm.client.remote import RemoteModel
from tests.samplers.target import COVARIANCE, MEAN, MODELS, assert_moments
from tests.support.dispatcher_farm import LIMIT_S
from tests.support.restarted_farm import RestartedFarm, restarted_farm

Array = NDArray[np.float64]
pytestmark = pytest.mark.timeout(600)

KILLS = 2
WAIT_S = 10 * LIMIT_S


class Door:
    """A farm, and a thread that kills its front door while a sampler runs."""

    def __init__(self, served: RestartedFarm, log: Path) -> None:
        self.served = served
        self._log = log
        self.kills = 0

    def evaluations(self) -> int:
        """Return how many evaluations were made so far."""
        return self._log.read_bytes().count(b"\n") if self._log.exists() else 0

    @contextmanager
    def killed(self, expected: int) -> Iterator[None]:
        """Kill the front door KILLS times, spread over the `expected` evaluations of the block."""
        begun = self.evaluations()
        over = threading.Event()

        def kill() -> None:
            for number in range(1, KILLS + 1):
                at = begun + expected * number // (KILLS + 1)
                while self.evaluations() < at:
                    if over.wait(0.01):
                        return
                self.served.kill()
                self.kills += 1
                self.served.start()
                self.served.up()

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            yield
        finally:
            over.set()
            killer.join()
        assert self.kills == KILLS, "the run ended before its kills"

    def compare(self, run: Callable[[], Array]) -> Array:
        """Return the draws of a run that is disturbed; they are those of one that is not."""
        begun = self.evaluations()
        undisturbed = run()
        with self.killed(self.evaluations() - begun):
            disturbed = run()
        assert np.array_equal(disturbed, undisturbed)
        return disturbed


MORE = pytest.mark.clients
"""Not in CI: the tests there take one road for each sampler."""


@pytest.fixture(
    params=["stream", pytest.param("zmq", marks=MORE), pytest.param("http", marks=MORE)]
)
def over(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def door(over: str, tmp_path: Path) -> Iterator[Door]:
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "farm.toml").write_text('transport = "zmq"\n' if over == "zmq" else "")
    options = ["models.py:Posterior", "--workers", "2", "--config", "farm.toml"]
    with restarted_farm(tmp_path, *options) as served:
        yield Door(served, tmp_path / "calls.log")


@pytest.fixture
def model(door: Door, over: str) -> Iterator[RemoteModel]:
    target = door.served.url if over == "http" else door.served.folder
    with farm.connect(target, wait=WAIT_S) as client:
        yield client.model("posterior")


BRIEF = {"sleep_s": 0.002}


def test_emcee_with_all_walkers_at_once(door: Door, model: RemoteModel) -> None:
    import emcee

    def run() -> Array:
        def log_density(theta: Array) -> Array:
            return model.map(theta, BRIEF)[:, 0]

        sampler = emcee.EnsembleSampler(16, 2, log_density, vectorize=True)
        sampler.random_state = np.random.RandomState(1).get_state()
        start = MEAN + np.random.default_rng(1).standard_normal((16, 2))
        sampler.run_mcmc(start, 200)
        return np.asarray(sampler.get_chain())

    draws = door.compare(run)
    assert_moments(draws[50:], 16 * 150 / 30, MEAN, COVARIANCE)


@pytest.mark.parametrize("over", ["stream"], indirect=True)
def test_emcee_with_a_pool(door: Door, model: RemoteModel) -> None:
    import emcee

    def run() -> Array:
        def log_density(theta: Array) -> float:
            return float(model(theta, BRIEF)[0])

        with farm.Executor() as pool:
            sampler = emcee.EnsembleSampler(16, 2, log_density, pool=pool)
            sampler.random_state = np.random.RandomState(2).get_state()
            start = MEAN + np.random.default_rng(2).standard_normal((16, 2))
            sampler.run_mcmc(start, 100)
            return np.asarray(sampler.get_chain())

    door.compare(run)


@pytest.mark.parametrize("over", ["stream", pytest.param("http", marks=MORE)], indirect=True)
def test_dynesty(door: Door, model: RemoteModel) -> None:
    import dynesty

    def run() -> Array:
        def log_density(theta: Array) -> float:
            return float(model(theta, BRIEF)[0])

        def prior(unit: Array) -> Array:
            return MEAN + 16.0 * (unit - 0.5)

        with farm.Executor() as pool:
            sampler = dynesty.NestedSampler(
                log_density,
                prior,
                2,
                nlive=60,
                pool=pool,
                queue_size=8,
                rstate=np.random.default_rng(3),
            )
            sampler.run_nested(dlogz=0.5, print_progress=False)
        results: Any = sampler.results
        assert abs(results.logz[-1] + np.log(16.0**2)) < 5.0 * results.logzerr[-1]
        return np.column_stack([results.samples, results.logl])

    door.compare(run)


@pytest.mark.parametrize("over", ["stream"], indirect=True)
def test_numpyro(door: Door, model: RemoteModel) -> None:
    import jax
    from numpyro.infer import MCMC, NUTS

    jax.config.update("jax_enable_x64", True)

    def values(theta: Any) -> Array:
        points = np.ascontiguousarray(np.asarray(theta, float).reshape(-1, 2))
        return np.reshape(model.map(points)[:, 0], np.shape(theta)[:-1])

    def gradients(theta: Any) -> Array:
        points = np.asarray(theta, float).reshape(-1, 2)
        rows = [model.gradient(0, 0, row, [1.0]) for row in points]
        return np.array(rows).reshape(np.shape(theta))

    def shape(x: Any, dimensions: int) -> Any:
        return jax.ShapeDtypeStruct(x.shape[: x.ndim - 1 + dimensions], np.float64)

    def called(function: Any, x: Any, dimensions: int) -> Any:
        return jax.pure_callback(function, shape(x, dimensions), x, vmap_method="expand_dims")

    log_density = jax.custom_vjp(lambda x: called(values, x, 0))
    log_density.defvjp(
        lambda x: (called(values, x, 0), called(gradients, x, 1)),
        lambda g, ct: (ct[..., None] * g,),
    )

    def run() -> Array:
        def potential(theta: Any) -> Any:
            return -log_density(theta)

        chains = MCMC(
            NUTS(potential_fn=potential),
            num_warmup=40,
            num_samples=40,
            num_chains=2,
            chain_method="vectorized",
            progress_bar=False,
        )
        chains.run(jax.random.PRNGKey(4), init_params=np.tile(MEAN, (2, 1)))
        return np.asarray(chains.get_samples(group_by_chain=True))

    door.compare(run)


@pytest.mark.parametrize("over", ["stream", pytest.param("http", marks=MORE)], indirect=True)
@pytest.mark.filterwarnings("ignore")
def test_pymc_with_forked_chains(door: Door, model: RemoteModel) -> None:
    import pymc
    import pytensor.tensor as pt
    from pytensor.graph.basic import Apply
    from pytensor.graph.op import Op

    class Gradient(Op):  # type: ignore[misc]  # of a package without types here
        def make_node(self, x: Any) -> Any:
            return Apply(self, [pt.as_tensor(x)], [pt.dvector()])

        def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
            outputs[0][0] = model.gradient(0, 0, inputs[0], [1.0])

    class LogDensity(Op):  # type: ignore[misc]  # the same
        def make_node(self, x: Any) -> Any:
            return Apply(self, [pt.as_tensor(x)], [pt.dscalar()])

        def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
            outputs[0][0] = np.asarray(model(inputs[0])[0])

        def grad(self, inputs: Any, output_grads: Any) -> Any:
            return [output_grads[0] * gradient(inputs[0])]

        def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> Any:
            return self.grad(inputs, cotangents)

    log_density, gradient = LogDensity(), Gradient()
    float(model(MEAN)[0])  # the parent has a connection before it forks

    def run() -> Array:
        with pymc.Model():
            theta = pymc.Flat("theta", shape=2)
            pymc.Potential("log_density", log_density(theta))
            trace = pymc.sample(
                tune=60,
                draws=60,
                chains=4,
                cores=4,
                mp_ctx="fork",
                init="adapt_diag",
                initvals={"theta": MEAN},
                random_seed=5,
                progressbar=False,
                compute_convergence_checks=False,
            )
        return np.asarray(trace.posterior["theta"])

    assert door.compare(run).shape == (4, 60, 2)
