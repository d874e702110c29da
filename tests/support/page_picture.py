"""Draws docs/page.png and docs/terminal.svg: a farm at work, on its page and in `farm top`.

`make picture` runs it; it takes about a minute. It needs the Debian packages chromium and
chromium-driver.
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import farm
from farm.cli.top import view
from tests.support.browser import chromium
from tests.support.dispatcher_farm import Served, serving, start_farm

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "docs" / "page.png"
TERMINAL = ROOT / "docs" / "terminal.svg"
COLUMNS, LINES = 140, 40
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


@contextlib.contextmanager
def at_work(folder: Path) -> Iterator[Served]:
    """Run a farm on which a sweep and a few chains run."""
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
            yield served
        finally:
            stop.set()
            for chain in chains:
                chain.join()
            sweep.terminate()
            sweep.communicate()


def draw(folder: Path) -> tuple[bytes, str]:
    """Return the page as PNG, and the live view of the terminal as SVG."""
    with at_work(folder) as served, chromium(folder / "profile") as browser:
        browser.show_as(WIDTH, HEIGHT)
        browser.open(served.connection.url)
        time.sleep(LOOKED_AT_S)
        with farm.connect(served.folder) as client:
            return browser.screenshot(), terminal(client.status())


def terminal(status: Mapping[str, Any]) -> str:
    """Return what `farm top` shows of a farm, as SVG with a font of the reader's machine."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(view(status, LINES))
    svg = console.export_svg(title="farm top", unique_id="top")
    return re.sub(r"@font-face \{[^}]*\}", "", svg)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        page, top = draw(Path(folder))
    TARGET.write_bytes(page)
    TERMINAL.write_text(top)
    for picture in (TARGET, TERMINAL):
        print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
