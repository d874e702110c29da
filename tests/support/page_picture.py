"""Draws docs/page.png: the status page of a farm at work, as headless Chromium shows it.

`make picture` runs it; it takes about a minute. It needs the Debian packages chromium and
chromium-driver.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import farm
from tests.support.dispatcher_farm import serving, start_farm

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "docs" / "page.png"
MODEL = ROOT / "examples" / "diffusion" / "diffusion.py"
WORKERS = "4"
CHAINS = 3
LOOKED_AT_S = 60.0
"""How long the page is open before it is drawn: its chart begins when it is opened."""
WIDTH, HEIGHT = 1120, 900
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}"),
)


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[str]:
    """Run Chromium for the block, and return the address of its session with ChromeDriver."""
    command = ["chromedriver", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert driver.stdout is not None
            words = (re.search(r"started successfully on port (\d+)", x) for x in driver.stdout)
            port = next(found[1] for found in words if found)
            sessions = f"http://127.0.0.1:{port}/session"
            options = {"args": [*FLAGS, f"--user-data-dir={folder}"]}
            asked = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
            session = f"{sessions}/{webdriver('POST', sessions, asked)['sessionId']}"
            try:
                yield session
            finally:
                webdriver("DELETE", session)
        finally:
            driver.terminate()


def webdriver(method: str, url: str, body: Any = None) -> Any:
    """Return the value that ChromeDriver answers to one WebDriver command."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["value"]


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
            with browser(folder / "profile") as session:
                webdriver("POST", f"{session}/url", {"url": served.connection.url})
                time.sleep(LOOKED_AT_S)
                return base64.b64decode(webdriver("GET", f"{session}/screenshot"))
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
