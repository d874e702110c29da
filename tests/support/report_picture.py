"""Draws docs/report.png: the report of a sweep, as headless Chromium shows it.

`make picture` runs it; it takes half a minute. It needs the Debian packages chromium and
chromium-driver, and the extra `sensitivity`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import farm
from farm.sweep.report.report import write_report
from tests.support.browser import RIGHT, chromium

TARGET = Path(__file__).parents[2] / "docs" / "report.png"
WIDTH, HEIGHT = 1120, 1580
STEPS = 10


def beam(load: float, thickness: float, stiffness: float, width: float) -> dict[str, Any]:
    """Return the deflection of a cantilever along its length, and the stress at its root."""
    stress = 6 * load * 2.0 / (width * thickness**2)
    if stress > 4.5e8:
        raise ValueError(f"the beam breaks: {stress / 1e6:.0f} MPa")
    x = np.linspace(0.0, 2.0, 60)
    inertia = width * thickness**3 / 12
    curve = load * x**2 * (6.0 - x) / (6 * stiffness * 1e9 * inertia)
    return {"tip": curve[-1], "stress": stress / 1e6, "deflection": curve}


def draw(folder: Path) -> bytes:
    """Return the report of a sweep as PNG, with one point selected."""
    out = folder / "beam.h5"
    farm.sweep(
        beam,
        {
            "load": farm.log(50, 2000),
            "thickness": (0.01, 0.05),
            "stiffness": farm.normal(210, 12),
            "width": farm.choice(0.05, 0.1, 0.2),
        },
        design="sobol",
        n=512,
        seed=7,
        out=out,
        title="Cantilever: tip, stress and shape",
        show=False,
    ).wait()
    write_report(out, out.with_suffix(".html"))
    with chromium(folder / "profile") as browser:
        browser.show_as(WIDTH, HEIGHT)
        browser.open(out.with_suffix(".html").as_uri())
        browser.until("return document.body.dataset.ready")
        browser.press(*[RIGHT] * STEPS)
        browser.until_text("#row", f"Point {STEPS - 1}")
        return browser.screenshot()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        TARGET.write_bytes(draw(Path(folder)))
    print(f"docs/{TARGET.name}: {TARGET.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
