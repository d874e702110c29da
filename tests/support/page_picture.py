"""Draws docs/page.png: the status page of a farm at work, as headless Chromium shows it.

`make picture` runs it; it takes about a minute. It needs the Debian packages chromium and
chromium-driver.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import farm
from tests.support.browser import chromium
from tests.support.dispatcher_farm import Served, serving, start_farm

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "docs" / "page.png"
MODEL = ROOT / "examples" / "diffusion" / "diffusion.py"
WORKERS = "4"
CHAINS = 3
LOOKED_AT_S = 60.0
"""How long the farm works before its page is drawn: the charts begin with the farm."""
DESIGNED_WITHIN_S = 120.0
QUEUED = 10
WIDTH, HEIGHT = 1120, 1250


def walk(run_folder: Path, number: int, stop: threading.Event) -> None:
    """Call the model from point to point, as a Markov chain does, until `stop` is set."""
    rng = np.random.default_rng(number)
    theta = rng.standard_normal(16)
    with (
        farm.connect(run_folder, client="posterior") as client,
        farm.chain(f"chain {number}"),
    ):
        model = client.model("diffusion")
        while not stop.is_set():
            theta = 0.9 * theta + 0.4 * rng.standard_normal(16)
            model.evaluate([theta], {"mesh": 32})


def wait_for_calls(served: Served) -> None:
    """Wait until the sweep's calls wait: it computes its design first, and chains seldom queue."""
    with farm.connect(served.folder) as client:
        limit = time.monotonic() + DESIGNED_WITHIN_S
        while sum(row["queued"] for row in client.status()["queues"]) < QUEUED:
            assert time.monotonic() < limit, "the sweep does not begin"
            time.sleep(0.5)


def draw(folder: Path) -> bytes:
    """Return the page as PNG, of a farm on which a sweep and a few chains run."""
    with serving(folder, str(MODEL), "--workers", WORKERS) as served:
        spread = ("--param", "theta=normal:0:1", "--fix", "mesh=48", "--design", "sobol:1000000")
        to = ("--to", str(served.folder), "-o", "sweep.h5")
        sweep = start_farm("sweep", *to, *spread, cwd=folder)
        stop = threading.Event()
        chains = [
            threading.Thread(target=walk, args=(served.folder, number, stop))
            for number in range(CHAINS)
        ]
        for chain in chains:
            chain.start()
        try:
            wait_for_calls(served)
            with chromium(folder / "profile") as browser:
                browser.show_as(WIDTH, HEIGHT)
                browser.open(served.connection.url)
                time.sleep(LOOKED_AT_S)
                return browser.screenshot()
        finally:
            stop.set()
            for chain in chains:
                chain.join()
            sweep.terminate()
            sweep.communicate()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        TARGET.write_bytes(draw(Path(folder)))
    print(f"{TARGET.relative_to(ROOT)}: {TARGET.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
