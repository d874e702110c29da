"""The examples of docs/experiments.md work as shown."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

from farm.experiment.config.components import ACQUISITIONS, GENERATORS, SURROGATES
from farm.experiment.loop.pacing import IDLE_SHARE, WORTH
from farm.experiment.loop.run import FAILURES_IN_A_ROW
from farm.protocols.aepsych.codec import TYPES
from tests.support.dispatcher_farm import environment
from tests.support.experiment_server import CLIENTS, serving_experiments
from tests.support.shell_page import ShellPage
from tests.support.shown_blocks import text_of
from tests.support.time_limits import scaled

PAGE = text_of("docs/experiments.md")
BOWL, CLIENT = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
CONFIG, SEEDED = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
@pytest.mark.timeout(scaled(150.0))
def test_the_loop_what_it_found_and_one_that_begins_with_evaluations(tmp_path: Path) -> None:
    with ShellPage("docs/experiments.md", tmp_path) as page:
        page.write("bowl.py", BOWL)
        page.write("tune.ini", CONFIG)
        page.type_next("pip install")
        page.type_next("farm experiment run tune.ini")
        told = page.type_next("farm experiment status")
        x, y = re.findall(r"[xy] = ([\d.e-]+)", told)[:2]
        assert float(x) == pytest.approx(0.3, abs=0.1)
        assert float(y) == pytest.approx(0.7, abs=0.1)
        assert (page.folder / "tune.html").exists()
        done = points_done(page.folder / "tune.h5")
        assert done >= 16

        page.write("tune.ini", CONFIG[: CONFIG.index("[farm]")] + SEEDED)
        shutil.copy(page.folder / "tune.db", page.folder / "pilot.db")
        design = "--param x=0:1 --param y=0:1 --design sobol:8"
        page.prepare(f"farm sweep bowl.py {design} -n 1 -o asked.h5 --record week.record")
        page.type_next("farm record export")
    for number, file in ((8, "week.h5"), (done, "pilot.h5")):
        assert f"[spread] initial trials: {number}, from {file}\n" in page.errors


def points_done(path: Path) -> int:
    """Return the number of points of a sweep file that are done."""
    with h5py.File(path) as file:
        return int((file["status"][:] == 1).sum())


@pytest.mark.slow
def test_the_published_client(tmp_path: Path) -> None:
    if not CLIENTS.exists():
        pytest.skip("aepsych-client is not installed")
    (tmp_path / "tune.ini").write_text(CONFIG)
    with serving_experiments(tmp_path) as server:
        program = CLIENT.replace("5555", str(server.port))
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env=environment() | {"PYTHONPATH": str(CLIENTS)},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    x = re.search(r"'x': \[([\d.e-]+)\]", done.stdout)
    assert x is not None, done.stdout
    assert float(x[1]) == pytest.approx(0.3, abs=0.1)


def test_every_name_is_on_the_page() -> None:
    """tests/experiment/config/test_options.py checks the tables of options."""
    names = {*GENERATORS.known, *SURROGATES.known, *ACQUISITIONS.known, *TYPES}
    assert {name for name in names if f"`{name}`" not in PAGE} == set()


def test_the_numbers_that_it_tells() -> None:
    assert f"less than {IDLE_SHARE:.0%}".replace("%", " %") in PAGE
    assert (WORTH, "more than ten times" in PAGE) == (10, True)
    assert (FAILURES_IN_A_ROW, "Twenty points in a row" in " ".join(PAGE.split())) == (20, True)
