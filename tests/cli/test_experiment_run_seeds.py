"""`farm experiment run` on evaluations that are there: of a sweep, a record, another experiment."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import farm
from farm.experiment.state.events import Event, Seeded, SetUp, Told
from farm.experiment.state.journal import read_journal
from tests.support.dispatcher_farm import run_farm, serving

BOWL = """
import farm

@farm.model(name="bowl", inputs={"x": 2}, outputs={"height": 1})
def bowl(x):
    with open("evaluated", "a") as file:
        file.write(f"{float(x[0])!r}\\n")
    if x[0] > 0.9:
        raise ValueError("beyond the edge")
    return (x[0] - 0.3) ** 2 + (x[1] - 0.7) ** 2
"""
CONFIG = """[common]
parnames = [a, b]
outcome_names = [depth]
outcome_types = [continuous]
strategy_names = [spread]
lb = [0, 0]
ub = [1, 1]
[spread]
generator = SobolGenerator
min_asks = 3
[farm]
model = bowl
input.x[0] = a
input.x[1] = b
outcome.depth = -height
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bowl.py").write_text(BOWL)
    (tmp_path / "tune.ini").write_text(CONFIG)
    return tmp_path


def said(folder: Path, *arguments: str, status: int = 0) -> str:
    """Run a command; return what it wrote to stderr."""
    code, _, err = run_farm(*arguments, cwd=folder)
    assert code == status, err
    return err


def swept(model: str, out: Path, *inputs: str) -> None:
    """Sweep a model in this process; points beyond the edge fail."""
    ranges = dict.fromkeys(inputs or ("x",), (0, 1))
    farm.sweep(model, ranges, design="sobol:16", seed=1, out=out, show=False, stream=False).wait()


def run(folder: Path, *options: str, status: int = 0) -> str:
    return said(
        folder, "experiment", "run", "tune.ini", "bowl.py", "-n", "1", *options, status=status
    )


def events(folder: Path) -> list[Event]:
    return list(read_journal(folder / "tune.db"))


def seeds(folder: Path) -> list[Seeded]:
    return [event for event in events(folder) if isinstance(event, Seeded)]


def evaluated(folder: Path) -> int:
    return len((folder / "evaluated").read_text().splitlines())


def depth(points: np.ndarray) -> np.ndarray:
    return np.asarray(-((points[:, 0] - 0.3) ** 2) - (points[:, 1] - 0.7) ** 2)


@pytest.mark.slow
def test_from_a_sweep_to_the_next_experiment(folder: Path) -> None:
    design = ("--param", "x=0:1", "--design", "sobol:16", "--seed", "1")
    said(folder, "sweep", "bowl.py", *design, "-n", "1", "-o", "week.h5", status=1)
    with h5py.File(folder / "week.h5") as file:
        done = file["status"][:] == 1
        points = file["theta"][:][done]
    assert 0 < len(points) < 16
    err = run(folder, "--seed-data", "week.h5")
    note = f"[spread] initial trials: {len(points)}, from week.h5; left out: {16 - len(points)} fai"
    assert note in err
    (seeded,) = seeds(folder)
    assert np.array_equal(seeded.points[:, 0], points)
    assert seeded.outcomes[:, 0] == pytest.approx(depth(points))
    assert "3 told and 0 failed" in err, "they count for no rule"
    assert evaluated(folder) == 16 + 3, "no point of the file is evaluated again"

    said(folder, "experiment", "export", "tune.db", "first.h5")
    config = folder / "tune.ini"
    config.write_text(f"{CONFIG}seed_data = [week.h5, first.h5]\n")
    err = run(folder)
    assert "initial trials: 3, from first.h5" in err
    _, again, last = seeds(folder)
    assert np.array_equal(again.points, seeded.points)
    told = [event for event in events(folder) if isinstance(event, Told) and event.experiment == 0]
    by_point = {tuple(e.points[0, 0].tolist()): e.outcomes.item() for e in told}
    given = zip(last.points[:, 0].tolist(), last.outcomes[:, 0].tolist(), strict=True)
    assert {tuple(point): outcome for point, outcome in given} == by_point


@pytest.mark.slow
def test_a_record_begins_an_experiment(folder: Path) -> None:
    points = np.random.default_rng(1).random((12, 2)) * 0.9
    with serving(folder, "bowl.py", "--workers", "1", "--record", "week.record") as served:
        with farm.connect(served.folder) as client:
            client.model("bowl").map(points)
        assert served.stop()[0] == 0
    said(folder, "record", "export", "week.record", "-o", "week.h5")
    (folder / "tune.ini").write_text(f"{CONFIG}seed_data = week.h5\n")
    assert "[spread] initial trials: 12, from week.h5\n" in run(folder)
    (seeded,) = seeds(folder)
    assert sorted(seeded.points[:, 0].tolist()) == sorted(points.tolist())
    assert seeded.outcomes[:, 0] == pytest.approx(depth(seeded.points[:, 0]))
    assert evaluated(folder) == 12 + 3


@pytest.mark.slow
def test_files_are_beside_the_configuration_and_read_once(folder: Path) -> None:
    study = folder / "study"
    study.mkdir()
    swept("bowl.py", study / "week.h5")
    (folder / "tune.ini").rename(study / "tune.ini")
    (study / "tune.ini").write_text(f"{CONFIG}seed_data = week.h5\n")
    command = ("experiment", "run", "study/tune.ini", "bowl.py", "-n", "1", "-o", "tune.db")
    assert "from week.h5" in said(folder, *command, "--budget", "2")
    (study / "week.h5").unlink()
    err = said(folder, *command, "--seed-data", "study/week.h5")
    assert "continues experiment 0 in tune.db: 2 told" in err
    assert "from week.h5" in err, "the trials are in the journal"
    assert len(seeds(folder)) == 1
    assert "--seed-data is not read: only a new experiment begins with it" in err
    err = said(folder, *command, "--new", "--seed-data", "week.h5", status=2)
    assert "seed data: week.h5 does not exist" in err, "options are relative to this folder"
    assert len([event for event in events(folder) if isinstance(event, SetUp)]) == 1


@pytest.mark.slow
def test_the_command_line_replaces_the_option(folder: Path) -> None:
    swept("bowl.py", folder / "week.h5")
    (folder / "tune.ini").write_text(f"{CONFIG}seed_data = gone.h5\n")
    run(folder, "--seed-data", "week.h5", "--seed-data", str(folder / "week.h5"))
    notes = [event.note.split(";")[0].rpartition(" ")[2] for event in seeds(folder)]
    assert notes == ["week.h5", str(folder / "week.h5")]
