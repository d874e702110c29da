"""Cost and benefit of an experiment's models, each against Sobol points alone.

    .venv/bin/python benchmarks/experiments.py                # all measures
    .venv/bin/python benchmarks/experiments.py regret --seeds 20

ask: seconds for the next point after a number of trials, with a fit and between fits, and memory.
regret: distance of the best of 30 evaluations of Branin's function from its optimum, one at a time
and eight in flight. contour: the fraction of a square that is put on the wrong side of the line
where the probability of a yes is 0.75, after 60 trials.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import statistics
import time
from collections.abc import Callable

import numpy as np

from farm.call import Array
from farm.experiment.ask.execute import execute, predict
from farm.experiment.config.definition import Config
from farm.experiment.config.reader import read_config
from farm.experiment.work import Data, Generate, Generated
from machine import versions

CONFIG = """
[common]
parnames = [x, y]
outcome_types = [{outcome}]
strategy_names = [sobol, learning]
[x]
par_type = continuous
lower_bound = -5
upper_bound = 10
[y]
par_type = continuous
lower_bound = 0
upper_bound = 15
[sobol]
generator = SobolGenerator
min_asks = 1
[learning]
generator = OptimizeAcqfGenerator
model = {model}
acqf = {acqf}
[{acqf}]
target = 0.75
{objective}
"""
SOBOL, LEARNING = 0, 1
OPTIMUM = 0.397887

Truth = Callable[[Array, np.random.Generator], Array]


def config_of(acqf: str, *, binary: bool) -> Config:
    return read_config(
        CONFIG.format(
            outcome="binary" if binary else "continuous",
            model="GPClassificationModel" if binary else "GPRegressionModel",
            acqf=acqf,
            objective="objective = ProbitObjective" if binary else "",
        )
    )


OPTIMISING = config_of("qLogNoisyExpectedImprovement", binary=False)
BOUNDARIES = {acqf: config_of(acqf, binary=True) for acqf in ("MCLevelSetEstimation", "EAVC")}


def branin(x: Array, _: np.random.Generator) -> Array:
    """The negative of Branin's function: values to -300, three optima."""
    a, b = x[:, 0], x[:, 1]
    bowl = (b - 5.1 / (4 * np.pi**2) * a**2 + 5 / np.pi * a - 6) ** 2
    return -(bowl + 10 * (1 - 1 / (8 * np.pi)) * np.cos(a) + 10)


def probability(x: Array) -> Array:
    """Return the probability of a yes, which falls along a bent line."""
    a, b = (x[:, 0] + 5) / 15, x[:, 1] / 15
    height = 8 * (b - 0.35 - 0.25 * np.sin(4 * a))
    likely: Array = 1 / (1 + np.exp(-1.7 * height))
    return likely


def yes(x: Array, chance: np.random.Generator) -> Array:
    drawn: Array = (chance.random(len(x)) < probability(x)).astype(float)
    return drawn


def points(
    config: Config, strategy: int, x: Array, y: Array, *, asked: int, seed: int,
    count: int = 1, pending: Array | None = None, fit_to: int | None = None,
) -> Array:  # fmt: skip
    """Return the next points (count, 2) of a strategy after trials x (n, 2) and y (n,)."""
    data = Data(x[:, None, :], y[:, None], len(x) if fit_to is None else fit_to)
    flying = np.empty((0, 2)) if pending is None else pending
    work = Generate(config, strategy, count, asked, data, flying[:, None, :], seed=seed)
    made = execute(work)
    assert isinstance(made, Generated)
    return made.points[:, 0]


def sobol(config: Config, count: int, seed: int) -> Array:
    nothing = np.empty((0, 2))
    return points(config, SOBOL, nothing, nothing[:, 0], asked=0, seed=seed, count=count)


def closed_loop(
    config: Config, truth: Truth, *, first: int, total: int, in_flight: int, seed: int
) -> tuple[Array, Array]:
    """Run trials, starting with Sobol points, and keep `in_flight` of them pending; return all."""
    chance = np.random.default_rng(seed)
    x = sobol(config, first, seed)
    y = truth(x, chance)
    flying = x[:0]
    for asked in range(total - first):
        new = points(config, LEARNING, x, y, asked=asked, seed=seed, pending=flying)
        flying = np.concatenate([flying, new])
        if len(flying) == in_flight:
            x, y = np.concatenate([x, flying[:1]]), np.append(y, truth(flying[:1], chance))
            flying = flying[1:]
    return np.concatenate([x, flying]), np.append(y, truth(flying, chance))


def measure_ask(options: argparse.Namespace) -> None:
    """Time and memory of an ask after many trials."""
    # Processor seconds are printed beside elapsed ones: other programs may use the machine.
    heads = f"{'with a fit':>16}{'between fits':>16}{'GiB':>7}"
    print(f"\n{'seconds to ask (CPU)':36}{'trials':>8}{heads}")
    x = sobol(OPTIMISING, 8, 0)
    points(OPTIMISING, LEARNING, x, branin(x, np.random.default_rng(0)), asked=0, seed=0)  # imports
    models = {"qLogNoisyExpectedImprovement": OPTIMISING, **BOUNDARIES}
    for number, (acqf, trials) in enumerate(itertools.product(models, options.trials)):
        config, times = models[acqf], []
        # Fits are kept, so each needs a seed of its own.
        for seed in range(number, number + options.repeats):
            x = sobol(config, trials + 1, seed)
            truth = branin if config is OPTIMISING else yes
            y = truth(x, np.random.default_rng(seed))
            begun = _clocks()
            points(config, LEARNING, x[:-1], y[:-1], asked=0, seed=seed)
            fitted = _clocks()
            points(config, LEARNING, x, y, asked=1, seed=seed, fit_to=trials)
            times.append(np.concatenate([fitted - begun, _clocks() - fitted]))
        wall, cpu, later_wall, later_cpu = np.median(times, axis=0)
        cells = (f"{wall:.2f} ({cpu:.2f})", f"{later_wall:.2f} ({later_cpu:.2f})")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{acqf:36}{trials:8}{cells[0]:>16}{cells[1]:>16}{peak:7.2f}")


def _clocks() -> Array:
    return np.array([time.perf_counter(), time.process_time()])


def measure_regret(options: argparse.Namespace) -> None:
    """Measure the regret on Branin after 30 evaluations."""
    regrets: dict[str, list[float]] = {"Sobol alone": [], "one at a time": [], "8 in flight": []}
    for seed in range(options.seeds):
        chance = np.random.default_rng(seed)
        found = branin(sobol(OPTIMISING, 30, seed), chance).max()
        regrets["Sobol alone"].append(float(-OPTIMUM - found))
        for name, in_flight in (("one at a time", 1), ("8 in flight", 8)):
            _, y = closed_loop(
                OPTIMISING, branin, first=6, total=30, in_flight=in_flight, seed=seed
            )
            regrets[name].append(float(-OPTIMUM - y.max()))
    _table("regret on Branin, 30 evaluations", regrets)


def measure_contour(options: argparse.Namespace) -> None:
    """Measure the error of the line where the probability is 0.75, after 60 trials."""
    total = 60
    errors: dict[str, list[float]] = {"Sobol alone": [], **{name: [] for name in BOUNDARIES}}
    for seed in range(options.seeds):
        config = BOUNDARIES["EAVC"]
        x = sobol(config, total, seed)
        errors["Sobol alone"].append(wrong_side(config, x, yes(x, np.random.default_rng(seed))))
        for name, config in BOUNDARIES.items():
            x, y = closed_loop(config, yes, first=10, total=total, in_flight=1, seed=seed)
            errors[name].append(wrong_side(config, x, y))
    _table(f"contour at 0.75, {total} trials, part that is wrong", errors)


def wrong_side(config: Config, x: Array, y: Array) -> float:
    """Return the fraction of a grid that the fitted model puts on the wrong side of 0.75."""
    axes = np.meshgrid(np.linspace(-5, 10, 60), np.linspace(0, 15, 60))
    grid = np.stack(axes, -1).reshape(-1, 2)
    told = Data(x[:, None, :], y[:, None], len(x))
    found, _ = predict(config, LEARNING, told, grid[:, None, :])
    return float(((found[:, 0] > 0.75) != (probability(grid) > 0.75)).mean())


def _table(title: str, results: dict[str, list[float]]) -> None:
    base = statistics.median(results["Sobol alone"])
    print(f"\n{title:48}{'median':>9}{'best':>9}{'worst':>9}{'Sobol / this':>14}")
    for name, values in results.items():
        middle = statistics.median(values)
        ratio = base / max(middle, 1e-12)
        print(f"{name:48}{middle:9.4f}{min(values):9.4f}{max(values):9.4f}{ratio:14.1f}")


MEASURES: dict[str, Callable[[argparse.Namespace], None]] = {
    "ask": measure_ask,
    "regret": measure_regret,
    "contour": measure_contour,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=", ".join(MEASURES))
    parser.add_argument("--seeds", type=int, default=5, help="runs of regret and contour")
    parser.add_argument("--trials", type=int, nargs="+", default=[50, 200, 1000])
    parser.add_argument("--repeats", type=int, default=3, help="repetitions of each ask")
    options = parser.parse_args()
    unknown = set(options.measures) - set(MEASURES)
    if unknown:
        parser.error(f"no measure {', '.join(sorted(unknown))}; expected {', '.join(MEASURES)}")
    print(versions("numpy", "scipy", "torch", "gpytorch", "botorch"))
    for name in options.measures or MEASURES:
        MEASURES[name](options)


if __name__ == "__main__":
    main()
