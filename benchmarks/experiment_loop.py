"""Utilisation of workers by a closed loop that fits a surrogate, beside Sobol points alone.

    .venv/bin/python benchmarks/experiment_loop.py
    .venv/bin/python benchmarks/experiment_loop.py --workers 16 --seconds 1 --evaluations 480

Worker processes evaluate a model that sleeps; the strategies are Sobol's sequence, and expected
improvement by a Gaussian process after as many Sobol points as there are workers. Utilisation is
the time in the model over the workers' time, from the first point asked for to the last told.
All processes share the cores of this machine; on a cluster the workers have their own.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import farm
from farm.experiment.host import Experiments
from farm.experiment.loop.evaluators import RemoteEvaluator
from farm.experiment.loop.progress import LoopProgress
from farm.experiment.loop.run import ClosedLoop
from farm.protocols.aepsych.codec import AepsychRequest
from machine import versions

MODEL = """
import time
import farm

@farm.model(name="bowl", inputs={{"x": 1, "y": 1}}, outputs={{"height": 1}})
def bowl(x, y):
    time.sleep({seconds})
    return -(x - 0.3) ** 2 - (y - 0.7) ** 2
"""

CONFIG = """
[common]
parnames = [x, y]
outcome_types = [continuous]
strategy_names = [{strategies}]
lb = [0, 0]
ub = [1, 1]
[sobol]
generator = SobolGenerator
min_asks = {sobol}
[learning]
generator = OptimizeAcqfGenerator
acqf = qLogNoisyExpectedImprovement
model = GPRegressionModel
min_asks = {evaluations}
[farm]
model = bowl
budget = {evaluations}
fill = {fill}
"""


async def looped(client: farm.Client, journal: Path, config: str) -> LoopProgress:
    """Run a whole loop, from setup to the end."""
    experiments = Experiments(journal)
    await experiments.start()
    try:
        request = AepsychRequest("setup", {"config_str": config}, {})
        await experiments.handle(experiments.session(), request)
        run = ClosedLoop(experiments, 0, RemoteEvaluator(client))
        await run.begin()
        return await run.go()
    finally:
        await experiments.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=1.0, help="run time of one evaluation")
    parser.add_argument("--evaluations", type=int, default=320)
    options = parser.parse_args()
    print(versions("numpy", "torch", "botorch"))
    print(f"{options.workers} workers, {options.seconds} s, {options.evaluations} evaluations")
    print(f"{'strategy':28}{'utilisation':>12}{'filled in':>11}{'seconds':>9}{'ratio':>8}")
    kinds = {
        "Sobol alone": ("sobol", "yes", options.evaluations),
        "expected improvement": ("sobol, learning", "yes", options.workers),
        "the same, not filled in": ("sobol, learning", "no", options.workers),
    }
    base = 0.0
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "bowl.py"
        model.write_text(MODEL.format(seconds=options.seconds))
        with farm.serve(model, workers=options.workers, dir=Path(folder) / "run") as client:
            while len(client.status()["workers"]) < options.workers:
                time.sleep(0.1)
            for name, (strategies, fill, sobol) in kinds.items():
                config = CONFIG.format(
                    strategies=strategies, sobol=sobol, fill=fill, evaluations=options.evaluations
                )
                end = asyncio.run(looped(client, Path(folder) / f"{name}.db", config))
                base = base or end.utilisation
                print(
                    f"{name:28}{end.utilisation:12.3f}{end.fillers:11d}{end.elapsed_s:9.1f}"
                    f"{end.utilisation / base:8.2f}"
                )


if __name__ == "__main__":
    main()
