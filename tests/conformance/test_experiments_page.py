"""The examples of docs/experiments.md work as shown."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from farm.experiment.config.components import ACQUISITIONS, GENERATORS, SURROGATES
from farm.experiment.loop.pacing import IDLE_SHARE, WORTH
from farm.experiment.loop.run import FAILURES_IN_A_ROW
from farm.protocols.aepsych.codec import TYPES
from tests.support.dispatcher_farm import environment, run_farm
from tests.support.experiment_server import CLIENTS, serving_experiments

PAGE = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()
BOWL, CLIENT = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
CONFIG, SEEDED = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)
RUN, READ, SEEDED_LOOP = (
    [line.partition("#")[0].split() for line in block.splitlines()]
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
)


@pytest.mark.slow
def test_the_closed_loop_and_what_it_found(tmp_path: Path) -> None:
    (tmp_path / "bowl.py").write_text(BOWL)
    (tmp_path / "tune.ini").write_text(CONFIG)
    for farm, *command in RUN + READ:
        assert farm == "farm"
        status, out, err = run_farm(*command, cwd=tmp_path, timeout_s=60)
        assert status == 0, (command, err)
        if command[1] == "best":
            x, y = re.findall(r"[xy] = ([\d.e-]+)", out)[:2]
            assert float(x) == pytest.approx(0.3, abs=0.1)
            assert float(y) == pytest.approx(0.7, abs=0.1)
    assert (tmp_path / "tune.html").exists()
    status, out, _ = run_farm("sweep", "status", "tune.h5", "--json", cwd=tmp_path)
    assert json.loads(out)["done"] >= 16


@pytest.mark.slow
def test_an_experiment_that_begins_with_evaluations(tmp_path: Path) -> None:
    def run(*words: str) -> str:
        status, out, err = run_farm(*words, cwd=tmp_path, timeout_s=60)
        assert status == 0, (words, err)
        return out + err

    (tmp_path / "bowl.py").write_text(BOWL)
    (tmp_path / "pilot.ini").write_text(CONFIG)
    (tmp_path / "tune.ini").write_text(CONFIG[: CONFIG.index("[farm]")] + SEEDED)
    design = ["--param", "x=0:1", "--param", "y=0:1", "--design", "sobol:8"]
    run("sweep", "bowl.py", *design, "-o", "asked.h5", "--record", "week.record")
    run("experiment", "run", "pilot.ini", "bowl.py")
    for farm, *command in SEEDED_LOOP:
        assert farm == "farm"
        said = run(*command)
    pilot = json.loads(run("sweep", "status", "pilot.h5", "--json"))["done"]
    for number, file in ((8, "week.h5"), (pilot, "pilot.h5")):
        assert f"[spread] initial trials: {number}, from {file}\n" in said


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
