"""A sampler without a checkpoint is killed with its farm, and repeats no evaluation afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import h5py
import pytest

import farm
from farm.errors import Unavailable
from tests.support.dispatcher_farm import run_farm, serving
from tests.support.time_limits import scaled

LIMIT_S = scaled(60.0)

MODEL = """
from pathlib import Path

import numpy as np
import farm

EVALUATED = Path(__file__).with_name("evaluated")


class Posterior(farm.Model):
    inputs = {"x": 2}
    outputs = {"log_density": 1}

    def evaluate(self, inputs, config):
        x = inputs["x"]
        with EVALUATED.open("a") as log:
            log.write(x.tobytes().hex() + "\\n")
        return np.array([-0.5 * (x @ x) - 0.1 * x[0] ** 4])
"""

METROPOLIS = """
import sys
import numpy as np
import farm

random = np.random.default_rng(11)
with farm.connect("run") as client:
    density = client.model("Posterior")
    x = np.zeros(2)
    p = density(x)
    for step in range(int(sys.argv[1])):
        proposal = x + 0.8 * random.standard_normal(2)
        q = density(proposal)
        if np.log(random.random()) < q - p:
            x, p = proposal, q
        print(step, proposal.tobytes().hex(), x.tobytes().hex(), p.tobytes().hex(), flush=True)
"""

STEPS = 90


def chain(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", METROPOLIS, str(STEPS)]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)


def evaluated(folder: Path) -> Counter[str]:
    return Counter((folder / "evaluated").read_text().split())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


OPTIONS = ("model.py", "--record", "chain.record", "--reuse")


@pytest.mark.slow
def test_a_killed_metropolis_chain_repeats_nothing_that_was_answered(folder: Path) -> None:
    with serving(folder, *OPTIONS) as served:
        first = chain(folder)
        assert first.stdout is not None
        lines = [first.stdout.readline() for _ in range(2 * STEPS // 3)]
        served.kill()
        first.send_signal(signal.SIGKILL)
        rest, _ = first.communicate(timeout=LIMIT_S)
    answered = {line.split()[1] for line in lines + rest.splitlines() if len(line.split()) == 4}
    assert len(answered) >= 2 * STEPS // 3
    with serving(folder, *OPTIONS) as served:
        again = chain(folder)
        output, _ = again.communicate(timeout=LIMIT_S)
        with farm.connect(served.folder) as client:
            state = client.status()["record"]
    assert again.returncode == 0
    assert output.splitlines()[: len(lines)] == [line.rstrip("\n") for line in lines]
    assert len(output.splitlines()) == STEPS
    counts = evaluated(folder)
    assert {point: counts[point] for point in answered} == dict.fromkeys(answered, 1)
    assert sum(counts.values()) <= STEPS + 2, "all points, the start, and the one in flight"
    assert (state["trouble"], state["damaged"], state["models"]["Posterior"]["reused"]) == (
        "",
        [],
        True,
    )
    (folder / "evaluated").unlink()
    with serving(folder, "model.py"):
        whole, _ = chain(folder).communicate(timeout=LIMIT_S)
    assert whole == output, "the chain is the one of a farm without a record, bit for bit"


@pytest.mark.slow
def test_a_changed_model_file_is_evaluated_again(folder: Path) -> None:
    def ask() -> float:
        with serving(folder, *OPTIONS) as served, farm.connect(served.folder) as client:
            return float(client.model("Posterior")([1.0, 0.0])[0])

    assert ask() == ask() == -0.6
    assert evaluated(folder).total() == 1
    (folder / "model.py").write_text(MODEL.replace("0.1 * x[0]", "0.2 * x[0]"))
    assert ask() == -0.7
    assert evaluated(folder).total() == 2


@pytest.mark.slow
def test_two_farms_cannot_share_a_record(folder: Path) -> None:
    with serving(folder, *OPTIONS):
        status, _, error = run_farm("serve", *OPTIONS, "--dir", "other", "--port", "0", cwd=folder)
        assert status != 0
        assert error.count("\n") == 1
        assert "chain.record is in use: " in error
        assert "farm record merge" in error


def test_a_program_records_with_a_farm_of_its_own(folder: Path) -> None:
    for record in (folder / "own.record", str(folder / "own.record")):
        with farm.serve(folder / "model.py", record=record, reuse=True) as client:
            assert client.model("Posterior")([1.0, 0.0])[0] == -0.6
        assert evaluated(folder).total() == 1
    wrong = farm.serve(folder / "model.py", record=folder / "model.py", reuse=True)
    with pytest.raises(Unavailable, match=r"others may write|is not a record of farm"), wrong:
        pass


@pytest.mark.slow
def test_a_sweep_uses_the_record(folder: Path) -> None:
    words = ["sweep", "model.py", "--param", "x[0]=0:1", "--fix", "x[1]=0", "--design", "grid:4"]
    words += ["--workers", "1", "--record", "s.record", "--reuse"]
    for out in ("one.h5", "two.h5"):
        status, _, error = run_farm(*words, "-o", out, cwd=folder, timeout_s=LIMIT_S)
        assert status == 0, error
    assert evaluated(folder).total() == 4
    with h5py.File(folder / "two.h5") as file:
        assert file["reused"][:].tolist() == [1] * 4
    words[1:2] = ["--to", "run"]
    status, _, error = run_farm(*words, "-o", "three.h5", cwd=folder)
    assert (status, "--record needs MODEL" in error) == (2, True)
