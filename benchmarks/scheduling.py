"""Waits and shares of many callers on the real scheduler, in simulated time.

Each line is a case of `tests/support/scheduler_scenarios.py`: the median and the range over seeds,
and the bar that tests hold. Messages take 0.15 ms each way; nothing depends on the machine.

    python benchmarks/scheduling.py            # 6 seeds
    python benchmarks/scheduling.py --seeds 2
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.scheduler_scenarios import (
    after_a_slow_moment,
    beside_a_sweep,
    chains_with_configs,
    gradients_at_home,
    in_lock_step,
    levels,
    mlda,
    stragglers,
    strangers,
    sweep_over_configs,
    two_sweeps,
)
from tests.support.scheduler_simulator import seeds


def waits_of_levels(seed: int, workers: int) -> float:
    """Return the seconds that calls wait for copies, over those that copies save."""
    waited_s, saved_s = levels(seed, workers=workers)
    return waited_s / saved_s


Case = tuple[str, str, Callable[[int], float]]

CASES: list[Case] = [
    ("4 callers of 10 ms beside 12 of 500 ms, 4 workers: slow-down", "<= 3", strangers),
    ("1 of 10 ms beside 12, after a slow moment: seconds", "0.11", after_a_slow_moment),
    *[
        (title, bar, lambda seed, kept=kept, part=part: in_lock_step(seed, reserve=kept)[part])
        for title, bar, kept, part in (
            ("1 of 10 ms beside 12 of 500 ms in lock-step: seconds", "", 0, 0),
            ("... with a reserve of 1 worker of 4", "<= 0.03", 1, 0),
            ("... without: work of the long over 4 workers", "", 0, 1),
            ("... with: work of the long over 4 workers", ">= 0.7", 1, 1),
        )
    ],
    ("sweeps of 1 s and 20 s on one worker: share of the short", ">= 0.4", two_sweeps),
    *[
        (f"MLDA, {n} named chains, 8 workers: slow-down of coarse calls", "<= 3.5", slowed)
        for n, slowed in (
            (16, lambda seed: mlda(seed, 16)[0]),
            (32, lambda seed: mlda(seed, 32)[0]),
        )
    ],
    ("... 16 chains: total time over the bound", "<= 1.05", lambda seed: mlda(seed, 16)[1]),
    ("... 32 chains: total time over the bound", "<= 1.05", lambda seed: mlda(seed, 32)[1]),
    (
        "16 stock chains beside a sweep: rate over fair",
        "0.95-1.1",
        lambda s: beside_a_sweep(s, 16)[0],
    ),
    (
        "64 stock chains beside a sweep: rate over fair",
        "0.95-1.1",
        lambda s: beside_a_sweep(s, 64)[0],
    ),
    (
        "64 named clients, 16 workers: longest wait, s",
        "<= 8",
        lambda s: beside_a_sweep(s, 64, "Farm-Client", workers=16)[1],
    ),
    (
        "64 chains of one client, 16 workers: longest wait, s",
        "<= 8",
        lambda s: beside_a_sweep(s, 64, "Farm-Chain", workers=16)[1],
    ),
    (
        "1 chain beside a sweep on one worker: rate over fair",
        "0.95-1.1",
        lambda s: beside_a_sweep(s, 1, workers=1, lasts_s=1500.0)[0],
    ),
    (
        "... of another model",
        "0.95-1.1",
        lambda s: beside_a_sweep(s, 1, workers=1, model="n", lasts_s=1500.0)[0],
    ),
    ("sweep over 8 configs, warm-up of 2 runs: makespan over bound", "<= 1.2", sweep_over_configs),
    ("8 chains with configs and pauses: mean run over warm", "<= 1.05", chains_with_configs),
    ("6 chains of evaluation and gradient: share at the same worker", ">= 0.95", gradients_at_home),
    (
        "2 % of equal calls ten times slower: makespan over bound",
        "<= 1.4",
        lambda s: stragglers(s, 0.0)[0],
    ),
    ("... of calls of cv 0.3", "<= 1.65", lambda s: stragglers(s, 0.3)[0]),
    *[
        (
            f"levels of 10 ms and 1 s, {n} workers: waits for copies over savings",
            "<= 0.02",
            lambda s, n=n: waits_of_levels(s, n),
        )
        for n in (2, 4)
    ],
]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=6, help="number of seeds, default 6")
    count = parser.parse_args().seeds
    print(f"{'':64} {'median':>8} {'range':>15}  bar")
    for title, bar, ratio in CASES:
        found = sorted(ratio(seed) for seed in seeds(count))
        extent = f"{found[0]:.2f} to {found[-1]:.2f}"
        print(f"{title:64} {median(found):8.2f} {extent:>15}  {bar}", flush=True)


if __name__ == "__main__":
    main()
