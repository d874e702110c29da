"""Benefit of the pause after a batch of several calls: farm with and without it, alternating.

The model takes 5 ms for each execution of up to 64 rows; callers call again after each answer:

    .venv/bin/python benchmarks/linger.py
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
import tempfile
import urllib.request
from pathlib import Path

from http_load import Load
from kserve import binary_load
from kserve_peers import FARM_COMMAND, Peer, farm_peer
from machine import versions

CALLERS = (1, 4, 16, 64)

WITHOUT = """
import farm.scheduler.batching
farm.scheduler.batching.LINGER = 0.0
from farm.cli import main
main()
"""

COMMANDS = {"with": FARM_COMMAND, "without": (sys.executable, "-c", WITHOUT)}


def mean_batch(peer: Peer) -> float:
    """Return the rows per execution, as the server counts them."""
    url = f"http://{peer.http[0]}:{peer.http[1]}/v2/models/slow/stats"
    with urllib.request.urlopen(url) as answer:
        (row,) = json.load(answer)["model_stats"]
    return float(row["inference_count"] / row["execution_count"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each load")
    parser.add_argument("--rounds", type=int, default=10, help="turns into which it is divided")
    options = parser.parse_args()
    print(versions("numpy", "pyzmq", "uvloop"))
    seconds = options.seconds / options.rounds
    loads: dict[tuple[str, int], Load] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        peers = {
            name: stack.enter_context(farm_peer(Path(folder) / name, command))
            for name, command in COMMANDS.items()
        }
        for _, callers, name in itertools.product(range(options.rounds), CALLERS, peers):
            binary_load(peers[name], "slow", callers, 0.1 * seconds)
            load = loads.setdefault((name, callers), Load())
            load.add(binary_load(peers[name], "slow", callers, seconds))
        batches = {name: mean_batch(peer) for name, peer in peers.items()}
    print(f"\n{'requests/s (median ms)':24}" + "".join(f"{c:>8} callers" for c in CALLERS))
    for name in COMMANDS:
        row = [loads[name, c] for c in CALLERS]
        cells = "".join(f"{load.per_s:8.0f} ({load.p50_s * 1e3:5.2f})" for load in row)
        print(f"{name:24}{cells}   mean batch {batches[name]:.1f}")
    ratios = [loads["with", c].per_s / loads["without", c].per_s for c in CALLERS]
    print(f"{'with / without':24}" + "".join(f"{ratio:16.2f}" for ratio in ratios))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
