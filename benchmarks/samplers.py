"""How well samplers and other tools use a farm: the recipes of docs/samplers.md, 1 and 4 workers.

    make .venv-samplers/.clients
    .venv-samplers/bin/python benchmarks/samplers.py [TOOL ...]

An evaluation takes 50 ms, and so does a gradient, or both together. The models note when each
evaluation begins and ends. A run's time is that from the first beginning to the last end, without
pauses of more than a second in which no evaluation is open: imports, compilation, training.
The ideal ratio from 1 to 4 workers is 4.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import farm
from machine import versions

PAGE = Path(__file__).parent.parent / "docs" / "samplers.md"
WORKERS = (1, 4)
PAUSE_S = 1.0
LIMIT_S = 300.0

MODELS = """
import time
from pathlib import Path

import numpy as np

import farm

LOG = open(Path(__file__).with_name("spans"), "a", buffering=1)
MATRIX = np.array([[1.0, 0.5], [0.0, 2.0], [1.0, -1.0]])


class Slow(farm.Model):
    inputs = {"theta": 2}

    def take(self, answer):
        begun = time.monotonic()
        time.sleep(0.05)
        LOG.write(f"{begun} {time.monotonic()}\\n")
        return answer

    def evaluate(self, inputs, config):
        return self.take(self.value(inputs["theta"]))

    def gradient(self, out_wrt, in_wrt, inputs, sens, config):
        return self.take(self.slope(inputs["theta"], sens))

    def value_and_gradient(self, out_wrt, in_wrt, inputs, sens, config):
        return self.take((self.value(inputs["theta"]), self.slope(inputs["theta"], sens)))


class Posterior(Slow):
    name = "posterior"
    outputs = {"log_density": 1}

    def value(self, theta):
        return [-0.5 * theta @ theta]

    def slope(self, theta, sens):
        return -sens[0] * theta


class Forward(Slow):
    name = "forward"
    outputs = {"y": 3}

    def value(self, theta):
        return MATRIX @ theta

    def slope(self, theta, sens):
        return MATRIX.T @ sens
"""

CHAIN = "tda.sample([coarse, fine], proposal, {}, subchain_length=5)"
ENDED_EARLY = {'run_nested(checkpoint_file="nested.save")': "run_nested(maxiter=150)"}
# Its likelihood ends the run after some batches.
POCOMC_RUN = """
import contextlib
with contextlib.suppress(StopIteration):
    sampler.run(progress=False)
"""
DYNESTY = "2, pool=pool, queue_size=16"

TOOLS: dict[str, tuple[str, dict[str, str]]] = {
    "emcee, all walkers at once": ("emcee", {"1000": "6"}),
    "emcee, pool": (
        "emcee",
        {
            "1000": "6",
            "vectorize=True": "pool=farm.Executor()",
            "model.map(theta)[:, 0]": "model(theta)[0]",
        },
    ),
    "dynesty, queue 16": (
        "dynesty",
        {DYNESTY: "2, nlive=50, pool=pool, queue_size=16"} | ENDED_EARLY,
    ),
    "dynesty, queue 4": (
        "dynesty",
        {DYNESTY: "2, nlive=50, pool=pool, queue_size=4"} | ENDED_EARLY,
    ),
    "pocoMC, 256 particles": (
        "pocoMC",
        {
            "lambda theta: model": "lambda theta, left=iter(range(12)): next(left) * 0.0 + model",
            "sampler.run()": POCOMC_RUN,
            "draws, weights, log_likelihood, log_prior = sampler.posterior()": "",
        },
    ),
    "zeus": ("zeus", {"500": "3"}),
    "PyMC, 4 chains": ("PyMC", {"chains=4,": "draws=30, tune=30, random_seed=1, chains=4,"}),
    "BlackJAX, 8 chains of HMC": ("BlackJAX", {"key(1), 200": "key(1), 8"}),
    "NumPyro, 8 chains of NUTS": (
        "NumPyro",
        {"num_warmup=300": "num_warmup=4", "num_samples=300": "num_samples=4"},
    ),
    "tinyDA, 8 chains in threads": (
        "tinyDA",
        {
            CHAIN.format(1000): f"list(farm.Executor().map(lambda _: {CHAIN.format(5)}, range(8)))",
        },
    ),
    "OpenTURNS, blocks of 100": (
        "OpenTURNS",
        {"setBlockSize(100)": "setBlockSize(100)\nalgorithm.setMaximumOuterSampling(2)"},
    ),
    "EasyVVUQ, 16 threads": ("EasyVVUQ", {"polynomial_order=2": "polynomial_order=10"}),
    "libEnsemble, 8 threads": ("libEnsemble", {"64": "128"}),
    "pyABC, 8 threads": ("pyABC", {"size=100": "size=40", "populations=5": "populations=2"}),
    "pyPESTO, 8 starts": ("pyPESTO", {}),
    "sbi": ("sbi", {"2000": "200"}),
    "SALib": ("SALib", {"256": "32"}),
    "QMCPy": ("QMCPy", {"integrand(64)": "integrand(128)"}),
    "chaospy": ("chaospy", {"quadrature(3,": "quadrature(10,"}),
    "scipy, differential evolution": ("scipy", {"polish=False": "polish=False, maxiter=5"}),
    "Optuna, 8 threads": ("Optuna", {}),
    "joblib, 16 threads": ("joblib", {}),
    "R": ("R", {}),
    "Octave": ("Octave", {}),
}
"""What is measured: a recipe of the page, with few steps."""

COMMANDS = {"r": ["Rscript"], "octave": ["octave-cli"], "python": [sys.executable, "-W", "ignore"]}


def recipe(heading: str) -> tuple[str, str]:
    """Language and code of a section of the page, in Python after the page's first block."""
    page = PAGE.read_text()
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    language, code = re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL)[0]
    first = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0] if language == "python" else ""
    return language, first + code


def seconds(spans: list[tuple[float, float]]) -> float:
    """The time that the evaluations took together, without pauses."""
    spans = sorted(spans)
    total, end = 0.0, spans[0][0]
    for begun, ended in spans:
        gap = begun - end
        total += max(0.0, ended - end) - (gap if gap > PAUSE_S else 0.0)
        end = max(end, ended)
    return total


def measure(title: str, workers: int) -> tuple[int, float]:
    """The number of evaluations of a recipe on a farm of `workers`, and their seconds."""
    heading, changes = TOOLS[title]
    language, code = recipe(heading)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "models.py").write_text(MODELS)
        models = [f"{folder}/models.py:{model}" for model in ("Posterior", "Forward")]
        run = folder / "farm-run"
        with farm.serve(*models, workers=workers, port=0, dir=run) as client:
            while len(client.status()["workers"]) < workers:
                time.sleep(0.02)
            url = farm_url(run)
            for old, new in {**changes, "http://127.0.0.1:4242": url}.items():
                code = code.replace(old, new)
            (folder / "recipe").write_text(code)
            subprocess.run(
                [*COMMANDS[language], "recipe"],
                cwd=folder,
                check=True,
                capture_output=True,
                timeout=LIMIT_S,
            )
        lines = (folder / "spans").read_text().splitlines()
    spans = [(float(begun), float(ended)) for begun, ended in map(str.split, lines)]
    return len(spans), seconds(spans)


def farm_url(run: Path) -> str:
    """The address of the farm with that run folder."""
    url: str = json.loads((run / "farm.json").read_text())["url"]
    return url


def main() -> None:
    print(
        versions("emcee", "dynesty", "pocomc", "pymc", "blackjax", "numpyro", "tinyda", "openturns")
    )
    print("| tool | evaluations, 1 worker | seconds | evaluations, 4 workers | seconds | ratio |")
    print("|---|---|---|---|---|---|")
    for title in sys.argv[1:] or TOOLS:
        try:
            (few, one), (many, four) = (measure(title, workers) for workers in WORKERS)
        except (subprocess.SubprocessError, FileNotFoundError) as error:
            reason = getattr(error, "stderr", None) or str(error).encode()
            print(f"| {title} | not measured: {reason.decode().strip().splitlines()[-1]} |")
            continue
        # Random programs ask for different numbers of evaluations: compare the time of one.
        ratio = (one / few) / (four / many)
        print(f"| {title} | {few} | {one:.1f} | {many} | {four:.1f} | {ratio:.1f} |", flush=True)


if __name__ == "__main__":
    main()
