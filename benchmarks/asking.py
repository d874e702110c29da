"""Cost and benefit of asking a Gaussian-process strategy, beside Optuna's GPSampler.

    uv pip install --python .venv/bin/python --constraint constraints.txt optuna
    .venv/bin/python benchmarks/asking.py                # all measures
    .venv/bin/python benchmarks/asking.py regret --seeds 20
    .venv/bin/python benchmarks/asking.py flight close --seeds 20

ask: processor milliseconds of an ask after 10, 20, 30 and 50 evaluations; both optimise the same
function from the same first points in turns, in one process, so they warm up alike. It is a fresh
process whose environment limits the libraries to one thread, as farm's processes that fit are.
regret: distance of the best evaluation from the optimum, of Branin's function after 30 evaluations
and of Hartmann's of six parameters, Ackley's of four and Levy's of three after 50. flight: the
regret with eight points in flight, on Branin's function after 30 and 45 evaluations and on
Hartmann's after 50 and 75, beside that of one at a time after 30 and 50. close: how many of eight
points, asked for in a row without a result, have another of them within 0.01, on a quadratic of two
parameters after 8 and 16 evaluations. noisy: one at a time and eight in flight on Branin's function
with noise of standard deviation 5, by the noise-free value at the point of the best observation.
Without Optuna its columns are left out.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from farm.call import Array
from farm.experiment.ask.execute import execute
from farm.experiment.config.definition import Config
from farm.experiment.config.reader import read_config
from farm.experiment.work import Data, Generate, Generated
from farm.machine.job_process import ONE_THREAD
from machine import versions

optuna: Any = import_module("optuna") if find_spec("optuna") else None

SOBOL, LEARNING = 0, 1
SIZES = (10, 20, 30, 50)
CLOSE = 0.01


@dataclass(frozen=True)
class Problem:
    """A function of the unit cube to be maximised. first: evaluations before a model is used."""

    name: str
    dimensions: int
    value: Callable[[Array], float]
    optimum: float
    first: int
    total: int

    @property
    def config(self) -> Config:
        """The experiment: Sobol points, then expected improvement."""
        names = ", ".join(f"x{i}" for i in range(self.dimensions))
        bounds = ", ".join("{}" for _ in range(self.dimensions))
        return read_config(
            f"[common]\nparnames = [{names}]\noutcome_types = [continuous]\n"
            f"lb = [{bounds.replace('{}', '0')}]\nub = [{bounds.replace('{}', '1')}]\n"
            "strategy_names = [sobol, learning]\n[sobol]\ngenerator = SobolGenerator\n"
            "min_asks = 1\n[learning]\ngenerator = OptimizeAcqfGenerator\n"
            "model = GPRegressionModel\nacqf = qLogNoisyExpectedImprovement\n"
        )

    def start(self, seed: int) -> Array:
        """Return the first points."""
        nothing = Data(np.empty((0, 1, self.dimensions)), np.empty((0, 1)), 1)
        work = Generate(self.config, SOBOL, self.first, 0, nothing, nothing.x, seed=seed)
        made = execute(work)
        assert isinstance(made, Generated)
        return made.points[:, 0]


def _branin(u: Array) -> float:
    a, b = 15 * u[0] - 5, 15 * u[1]
    bowl = (b - 5.1 / (4 * np.pi**2) * a**2 + 5 / np.pi * a - 6) ** 2
    return float(-(bowl + 10 * (1 - 1 / (8 * np.pi)) * np.cos(a) + 10))


_A = np.array([[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14],
               [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]])  # fmt: skip
_P = 1e-4 * np.array([[1312, 1696, 5569, 124, 8283, 5886], [2329, 4135, 8307, 3736, 1004, 9991],
                      [2348, 1451, 3522, 2883, 3047, 6650],
                      [4047, 8828, 8732, 5743, 1091, 381]])  # fmt: skip


def _hartmann(u: Array) -> float:
    return float(np.array([1, 1.2, 3, 3.2]) @ np.exp(-(_A * (u - _P) ** 2).sum(1)))


def _ackley(u: Array) -> float:
    x = 10 * u - 6.3  # the optimum is not in the middle
    far, waves = np.sqrt((x**2).mean()), np.cos(2 * np.pi * x).mean()
    return float(20 * np.exp(-0.2 * far) + np.exp(waves) - 20 - np.e)


def _levy(u: Array) -> float:
    w = 1 + (20 * u - 11) / 4
    steps = ((w[:-1] - 1) ** 2 * (1 + 10 * np.sin(np.pi * w[:-1] + 1) ** 2)).sum()
    last = (w[-1] - 1) ** 2 * (1 + np.sin(2 * np.pi * w[-1]) ** 2)
    return float(-(np.sin(np.pi * w[0]) ** 2 + steps + last))


def _bowl(u: Array) -> float:
    return float(-((u - 0.37) ** 2).sum())


BRANIN = Problem("Branin", 2, _branin, -0.397887, 6, 30)
HARTMANN = Problem("Hartmann-6", 6, _hartmann, 3.32237, 10, 50)
ACKLEY = Problem("Ackley-4", 4, _ackley, 0.0, 8, 50)
LEVY = Problem("Levy-3", 3, _levy, 0.0, 8, 50)
BOWL = Problem("quadratic", 2, _bowl, 0.0, 8, 8)


class Farm:
    """farm's strategy: what a process that fits does for each ask."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self._config, self._seed, self._asked = problem.config, seed, 0
        self._x = np.empty((0, problem.dimensions))
        self._y = np.empty(0)

    def tell(self, point: Array, value: float) -> None:
        self._x, self._y = np.vstack([self._x, point]), np.append(self._y, value)

    def ask(self, flying: list[Array]) -> Array:
        data = Data(self._x[:, None], self._y[:, None], len(self._x))
        pending = np.array(flying).reshape(-1, 1, self._x.shape[1])
        work = Generate(self._config, LEARNING, 1, self._asked, data, pending, seed=self._seed)
        self._asked += 1
        made = execute(work)
        assert isinstance(made, Generated)
        point: Array = made.points[0, 0]
        return point


class Optuna:
    """Optuna's GPSampler with its defaults, but the same first points."""

    def __init__(self, problem: Problem, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sampler = optuna.samplers.GPSampler(seed=seed, n_startup_trials=problem.first)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        d = optuna.distributions.FloatDistribution(0.0, 1.0)
        self._space: dict[str, Any] = {f"x{i}": d for i in range(problem.dimensions)}
        self._flying: dict[bytes, Any] = {}

    def tell(self, point: Array, value: float) -> None:
        trial = self._flying.pop(point.tobytes(), None)
        if trial is not None:
            self._study.tell(trial, value)
            return
        params = dict(zip(self._space, map(float, point), strict=True))
        self._study.add_trial(
            optuna.trial.create_trial(params=params, distributions=self._space, value=value)
        )

    def ask(self, flying: list[Array]) -> Array:
        trial = self._study.ask(self._space)
        point: Array = np.array([trial.params[name] for name in self._space])
        self._flying[point.tobytes()] = trial
        return point


SIDES: dict[str, Callable[[Problem, int], Any]] = {"farm": Farm}
if optuna is not None:
    SIDES["Optuna"] = Optuna


class Loop:
    """One optimisation, a step at a time, with `in_flight` points pending."""

    def __init__(
        self, side: str, problem: Problem, seed: int, in_flight: int = 1, noise: float = 0.0
    ) -> None:
        self._problem, self._in_flight = problem, in_flight
        self._flying: list[Array] = []
        self._noise, self._chance = noise, np.random.default_rng(seed)
        self._optimiser = SIDES[side](problem, seed)
        self._seen: list[tuple[float, float]] = []  # observed and true values
        for point in problem.start(seed):
            self._evaluate(point)

    @property
    def evaluations(self) -> int:
        return len(self._seen)

    def regret(self) -> float:
        """Return the distance of the best observation's true value from the optimum."""
        return self._problem.optimum - max(self._seen)[1]

    def step(self) -> float:
        """Ask until one point may be evaluated, and evaluate it; return the asks' mean CPU time."""
        times = []
        while len(self._flying) < self._in_flight:
            begun = time.process_time()
            point = self._optimiser.ask(self._flying)
            times.append(time.process_time() - begun)
            self._flying.append(point)
        self._evaluate(self._flying.pop(0))
        return statistics.mean(times)

    def _evaluate(self, point: Array) -> None:
        truth = self._problem.value(point)
        seen = truth + self._noise * float(self._chance.standard_normal())
        self._seen.append((seen, truth))
        self._optimiser.tell(point, seen)


def measure_ask(options: argparse.Namespace) -> None:
    """Processor time of an ask, alternately of each."""
    print(
        f"\n{'ask, processor ms, median':32}{'points':>7}", *(f"{s:>9}" for s in SIDES), "   ratio"
    )
    for problem in (BRANIN, HARTMANN):
        for in_flight in (1, 8):
            times: dict[tuple[str, int], list[float]] = {}
            for seed in range(options.repeats):
                loops = {side: Loop(side, problem, seed, in_flight) for side in SIDES}
                for n in range(problem.first, max(SIZES) + 1):
                    for side, loop in loops.items():
                        assert loop.evaluations == n
                        times.setdefault((side, n), []).append(loop.step())
            for size in SIZES:
                # Three neighbouring sizes, for more numbers in the median.
                near = [n for n in (size - 1, size, size + 1) if (next(iter(SIDES)), n) in times]
                medians = [
                    1e3 * statistics.median(t for n in near for t in times[side, n])
                    for side in SIDES
                ]
                name = f"{problem.name}, {in_flight} in flight"
                ratio = f"{medians[0] / medians[1]:8.2f}" if len(medians) > 1 else ""
                print(f"{name:32}{size:7}", *(f"{m:9.1f}" for m in medians), ratio, flush=True)


def _table(title: str, results: dict[str, list[float]]) -> None:
    print(f"\n{title:52}{'quartile':>10}{'median':>10}{'quartile':>10}{'worst':>10}")
    for name, values in results.items():
        row = np.percentile(values, [25, 50, 75, 100])
        print(f"{name:52}", *(f"{value:9.5f}" for value in row), flush=True)


def measure_regret(options: argparse.Namespace) -> None:
    """Regret of each, one point at a time."""
    half = max(options.seeds // 2, 1)
    for problem, seeds in ((BRANIN, options.seeds), (HARTMANN, half), (ACKLEY, half), (LEVY, half)):
        found: dict[str, list[float]] = {side: [] for side in SIDES}
        for seed in range(seeds):
            for side, regrets in found.items():
                loop = Loop(side, problem, seed)
                while loop.evaluations < problem.total:
                    loop.step()
                regrets.append(loop.regret())
        _table(f"regret, {problem.name}, {problem.total} evaluations, {seeds} seeds", found)


def measure_flight(options: argparse.Namespace) -> None:
    """Regret with eight in flight, beside one at a time."""
    half = max(options.seeds // 2, 1)
    for problem, seeds in ((BRANIN, options.seeds), (HARTMANN, half)):
        found: dict[str, list[float]] = {}
        total = problem.total
        for seed in range(seeds):
            for side in SIDES:
                for in_flight, ends in ((1, (total,)), (8, (total, total * 3 // 2))):
                    loop = Loop(side, problem, seed, in_flight)
                    for end in ends:
                        while loop.evaluations < end:
                            loop.step()
                        name = f"{side}, {in_flight} in flight, {end} evaluations"
                        found.setdefault(name, []).append(loop.regret())
        _table(f"regret, {problem.name}, {seeds} seeds", found)


def measure_close(options: argparse.Namespace) -> None:
    """How many of eight points asked for without a result have another of them nearby."""
    found: dict[str, list[float]] = {}
    for seed in range(options.seeds):
        for side, optimiser in SIDES.items():
            for told in (8, 16):
                problem = replace(BOWL, first=told)
                asked = optimiser(problem, seed)
                for point in problem.start(seed):
                    asked.tell(point, problem.value(point))
                flying: list[Array] = []
                while len(flying) < 8:
                    flying.append(asked.ask(flying))
                points = np.array(flying)
                gaps = np.linalg.norm(points[:, None] - points, axis=-1) + np.diag([np.inf] * 8)
                count = float((gaps.min(1) < CLOSE).sum())
                found.setdefault(f"{side}, after {told} evaluations", []).append(count)
    _table(f"of 8, within {CLOSE} of another, {options.seeds} seeds", found)


def measure_noisy(options: argparse.Namespace) -> None:
    """Regret under noise."""
    found: dict[str, list[float]] = {}
    for seed in range(options.seeds):
        for side in SIDES:
            for in_flight in (1, 8):
                loop = Loop(side, BRANIN, seed, in_flight, noise=5.0)
                while loop.evaluations < 45:
                    loop.step()
                found.setdefault(f"{side}, {in_flight} in flight", []).append(loop.regret())
    _table(f"regret, noisy Branin, 45 evaluations, {options.seeds} seeds", found)


MEASURES = {
    "ask": measure_ask,
    "regret": measure_regret,
    "flight": measure_flight,
    "close": measure_close,
    "noisy": measure_noisy,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=", ".join(MEASURES))
    parser.add_argument(
        "--seeds", type=int, default=20, help="runs; half as many with more than two parameters"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs that are timed")
    options = parser.parse_args()
    unknown = set(options.measures) - set(MEASURES)
    if unknown:
        parser.error(f"no measure {', '.join(sorted(unknown))}; expected {', '.join(MEASURES)}")
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        # The libraries read them when they are imported.
        command = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **ONE_THREAD})
    names = ["numpy", "scipy", "torch", "gpytorch", "botorch"]
    print(versions(*names, *(["optuna"] if optuna is not None else [])))
    warnings.filterwarnings("ignore")
    for name in options.measures or MEASURES:
        MEASURES[name](options)


if __name__ == "__main__":
    main()
