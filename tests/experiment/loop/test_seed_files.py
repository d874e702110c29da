"""Trials from files: which points become trials, with which outcomes, and what is left out."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import farm
from farm.errors import InvalidInput
from farm.experiment.loop import seed_table
from farm.experiment.loop.progress import LoopOptions
from farm.experiment.loop.run import ClosedLoop
from farm.experiment.loop.seed_files import read_seed_files
from farm.experiment.state import seeding
from farm.experiment.state.seeding import InitialTrials
from farm.model import Inputs
from tests.experiment.loop.rods import Rod, described, experiment, swept, understood
from tests.experiment.subjects import dispatching, hosting
from tests.support.foreign import ATTACKS, SECRET, replaced


def read(path: Path, text: str, *others: str) -> InitialTrials:
    """Return the trials of a file, the first of several."""
    first, *_ = read_seed_files([path.name, *others], path.parent, *understood(text))
    return first


def table_of(path: Path, *rows: tuple[float, ...], names: str = "x[0],x[1]") -> str:
    """Write a table of points for a design."""
    csv = path.with_suffix(".csv")
    lines = [",".join(repr(float(value)) for value in row) for row in rows]
    names = ",".join(f'"{name}"' for name in names.split(","))
    csv.write_text("\n".join([names, *lines]) + "\n")
    return f"file:{csv}"


def points(path: Path, *rows: tuple[float, ...], names: str = "x[0],x[1]", **given: Any) -> Path:
    """Sweep the rod over a table of points."""
    return swept(path, table_of(path, *rows, names=names), parameters={}, **given)


def test_done_points_with_finite_outcomes_are_trials(tmp_path: Path) -> None:
    rows = [(0.25, 0.5), (0.95, 0.5), (0.5, 0.95), (0.75, 0.125)]
    path = points(tmp_path / "week.h5", *rows)
    found = read(path, experiment())
    assert found.points.tolist() == [[[0.25, 0.5]], [[0.75, 0.125]]]
    assert found.outcomes.tolist() == [[-105.25], [-102.0]]
    assert found.note == "initial trials: 2, from week.h5; left out: 1 failed, 1 not finite"


def test_outcomes_are_computed_as_for_evaluations(tmp_path: Path) -> None:
    path = points(tmp_path / "week.h5", (0.25, 0.5), (0.75, 0.125))
    several = experiment(
        outcomes="broke, cost, norm",
        farm="outcome.broke = max(stress) > 1.25\noutcome.norm = out0[1] + weight / 2\n",
    )
    found = read(path, several)
    assert found.outcomes.tolist() == [[0.0, -105.25, 53.625], [1.0, -102.0, 51.25]]


def test_an_outcome_that_an_evaluation_could_not_have_is_left_out(tmp_path: Path) -> None:
    path = points(tmp_path / "week.h5", (0.0, 0.5), (0.5, 0.5))
    one = experiment(outcomes="broke", farm="outcome.broke = 2 * stress[0] - 1\n")
    found = read(path, one)
    assert found.outcomes.tolist() == [[1.0]]
    assert "left out: 1 without an outcome (outcome 'broke' is binary, but" in found.note
    found = read(path, experiment(farm="outcome.cost = 1 / stress[0]\n"))
    assert found.outcomes.tolist() == [[1.0]]
    assert (
        "1 without an outcome ([farm] outcome.cost = 1 / stress[0]: it has no value" in found.note
    )


def test_points_of_other_fixed_inputs_are_left_out(tmp_path: Path) -> None:
    names = "x[0],x[1],load"
    path = points(tmp_path / "w.h5", (0.25, 0.5, 2), (0.25, 0.5, 3), names=names, fix={})
    found = read(path, experiment())
    assert found.points.tolist() == [[[0.25, 0.5]]]
    assert found.note.endswith("left out: 1 with other fixed inputs (load = 3, here 2)")
    path = points(tmp_path / "v.h5", (0.25, 0.5), fix={"load": 3})
    found = read(path, experiment())
    assert len(found.points) == 0
    assert found.outcomes.shape == (0, 1)
    assert "initial trials: 0, from v.h5; left out: 1 with other fixed" in found.note
    constant = experiment("a", "load", farm="input.x[1] = 0.5\n")
    path = points(tmp_path / "u.h5", (0.25, 0.5), (0.5, 0.25))
    found = read(path, constant)
    assert found.points.tolist() == [[[0.25]]]
    assert "1 with other fixed inputs (entry 1 of x = 0.25, here 0.5)" in found.note


def test_fixed_inputs_are_compared_in_the_type_of_the_model(tmp_path: Path) -> None:
    class Single(Rod):
        inputs = {"x": 2, "load": farm.TensorInfo("load", (1,), "float32")}

    rounded = float(np.float32(0.1))
    path = points(tmp_path / "w.h5", (0.25, 0.5), model=Single(), fix={"load": rounded})
    text = experiment("a", "b", farm="input.load = 0.1\n")
    (found,) = read_seed_files(["w.h5"], tmp_path, *understood(text, described(Single())))
    assert len(found.points) == 1
    assert len(read(path, text).points) == 0


def test_points_of_another_config_are_left_out(tmp_path: Path) -> None:
    path = points(tmp_path / "w.h5", (0.25, 0.5), config={"mesh": 2})
    assert read(path, experiment(farm="config.mesh = 2\n")).outcomes.tolist() == [[-205.25]]
    assert (
        "1 with another config (mesh = 2, here 3)"
        in read(path, experiment(farm="config.mesh = 3\n")).note
    )
    assert "1 with another config (mesh = 2, here none)" in read(path, experiment()).note
    assert (
        "1 with another config (solver = none, here 'lu')"
        in read(path, experiment(farm="config.mesh = 2\nconfig.solver = lu\n")).note
    )
    names = "x[0],x[1],mesh"
    path = points(tmp_path / "v.h5", (0.25, 0.5, 1), (0.25, 0.5, 2), names=names)
    found = read(path, experiment(farm="config.mesh = 2\n"))
    assert found.outcomes.tolist() == [[-205.25]]
    assert "1 with another config (mesh = 1.0, here 2)" in found.note


def test_keys_of_the_config_are_parameters(tmp_path: Path) -> None:
    rows = [(0.25, 0.5, 1), (0.25, 0.5, 2.5), (0.25, 0.5, 3)]
    path = points(tmp_path / "w.h5", *rows, names="x[0],x[1],mesh", config={"kind": "brass"})
    found = read(path, experiment("mesh", "a", "kind", "b", "load"))
    assert found.points.tolist() == [[[1, 0.25, 1, 0.5]], [[3, 0.25, 1, 0.5]]]
    assert found.note.endswith("left out: 1 whose mesh is no whole number")
    with pytest.raises(InvalidInput) as caught:
        read(path, with_grain())
    assert "no 'grain' for parameter 'grain'; the keys of its config are kind, mesh" in str(
        caught.value
    )
    path = points(tmp_path / "v.h5", (0.25, 0.5), config={"kind": "wood"})
    assert read(path, experiment("a", "b", "kind", "load")).note.endswith(
        "left out: 1 with unknown choices (kind = 'wood')"
    )
    path = points(tmp_path / "u.h5", (0.25, 0.5), config={"mesh": "2"})
    assert read(path, experiment("a", "b", "mesh", "load")).note.endswith(
        "left out: 1 without a number (mesh = '2')"
    )


def with_grain() -> str:
    text = experiment("a", "b", "load")
    grain = "[grain]\npar_type = continuous\nlower_bound = 0\nupper_bound = 1\n"
    return text.replace("[a, b, load]", "[a, b, load, grain]").replace("[farm]", f"{grain}[farm]")


def test_a_parameter_of_several_entries_has_one_value(tmp_path: Path) -> None:
    path = points(tmp_path / "w.h5", (0.25, 0.5), (0.5, 0.5))
    found = read(path, experiment("a", "load", farm="input.x[1] = a\n"))
    assert found.points.tolist() == [[[0.5]]]
    assert found.note.endswith("left out: 1 with several values of a")


def test_points_beyond_the_bounds_are_used_and_undefined_ones_are_not(tmp_path: Path) -> None:
    path = points(tmp_path / "w.h5", (0.25, 0.5), (-1.5, 0.5), (0.5, 0.75))
    found = read(path, experiment())
    assert found.points[:, 0, 0].tolist() == [0.25, -1.5, 0.5]
    assert found.note == "initial trials: 3, from w.h5; beyond the bounds, and used: 1"
    log = experiment().replace("lower_bound = 0", "log_scale = true\nlower_bound = 0.1", 1)
    found = read(path, log)
    assert found.points[:, 0, 0].tolist() == [0.25, 0.5]
    assert found.note.endswith("left out: 1 undefined here")


def test_points_that_have_not_run_are_left_out(tmp_path: Path) -> None:
    path = points(tmp_path / "w.h5", (0.25, 0.5), (0.5, 0.5), (0.75, 0.5))
    with h5py.File(path, "r+") as file:
        file["status"][:] = [0, 1, 3]
    found = read(path, experiment())
    assert found.points[:, 0, 0].tolist() == [0.5]
    assert found.note.endswith("left out: 2 not evaluated")


@pytest.mark.parametrize("block", [1, 3, 1024])
def test_the_latest_trials_of_the_last_files_up_to_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(seeding, "MOST_TRIALS", 5)
    monkeypatch.setattr(seed_table, "BLOCK_ROWS", block)
    points(tmp_path / "w.h5", *((k / 8, 0.5) for k in range(4)))
    points(tmp_path / "v.h5", (0.0, 0.75), (0.5, 0.95), (0.25, 0.75), (0.5, 0.75))
    known = understood(experiment())
    first, last = read_seed_files(["w.h5", "v.h5"], tmp_path, *known)
    assert last.points[:, 0, 0].tolist() == [0.0, 0.25, 0.5]
    assert last.note == "initial trials: 3, from v.h5; left out: 1 not finite"
    assert first.points[:, 0, 0].tolist() == [0.25, 0.375]
    assert first.outcomes[:, 0].tolist() == [-105.25, -105.375]
    assert first.note == "initial trials: 2, from w.h5; left out: 2 beyond the limit of 5"
    first, second, last = read_seed_files(["w.h5", "w.h5", "v.h5"], tmp_path, *known)
    assert (len(first.points), len(second.points), len(last.points)) == (0, 2, 3)


def test_another_version_of_the_model_is_told(tmp_path: Path) -> None:
    class First(Rod):
        version = "1"

    class Second(Rod):
        version = "2"

    points(tmp_path / "w.h5", (0.25, 0.5), model=First())
    note = "initial trials: 1, from w.h5"
    for model, more in ((First(), ""), (Second(), "; evaluated by version '1', the farm has '2'")):
        known = understood(experiment(), described(model))
        (found,) = read_seed_files(["w.h5"], tmp_path, *known)
        assert found.note == note + more


def test_files_that_are_no_sweeps_get_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("hello\n")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["theta"] = np.zeros((2, 2))
    damaged = points(tmp_path / "damaged.h5", (0.25, 0.5))
    with h5py.File(damaged, "r+") as file:
        del file["out_1"]
    cut = points(tmp_path / "cut.h5", (0.25, 0.5))
    cut.write_bytes(cut.read_bytes()[:5000])
    (tmp_path / "folder.h5").mkdir()
    for name, says in (
        ("none.h5", "does not exist"),
        ("text.h5", "cannot be read"),
        ("other.h5", "is not a sweep file of farm"),
        ("damaged.h5", "out_1"),
        ("cut.h5", "cannot be read"),
        ("folder.h5", "is a folder"),
    ):
        with pytest.raises(InvalidInput) as caught:
            read(tmp_path / name, experiment())
        (line,) = str(caught.value).splitlines()
        assert line.startswith(f"seed data: {tmp_path / name}")
        assert says in line
        assert line.endswith("farm record export and farm experiment export write it")


@pytest.mark.parametrize("attack", ATTACKS)
def test_seed_data_goes_where_no_file_leads(tmp_path: Path, attack: str) -> None:
    path = points(tmp_path / "sent.h5", (0.25, 0.5), (0.75, 0.125))
    reason = replaced(path, "theta", attack)
    with pytest.raises(InvalidInput, match=reason) as caught:
        read(path, experiment())
    assert len(str(caught.value).splitlines()) == 1
    assert (tmp_path / "secret").read_bytes() == SECRET


def test_a_running_sweep_has_trials(tmp_path: Path) -> None:
    gate = threading.Event()

    class Waiting(Rod):
        def evaluate(self, inputs: Inputs, config: farm.Config) -> Any:
            if inputs["x"][0] > 0.25:
                gate.wait()
            return super().evaluate(inputs, config)

    path = tmp_path / "w.h5"
    rows = [(0.125, 0.5), (0.25, 0.5), (0.5, 0.5), (0.75, 0.5)]
    given: dict[str, Any] = {
        "design": table_of(path, *rows),
        "fix": {"load": 2},
        "order": "given",
        "probe": False,
    }
    with farm.sweep(Waiting(), {}, out=path, workers=1, show=False, **given) as sweep:
        done = sweep.as_completed()
        next(done), next(done)
        found = read(path, experiment())
        gate.set()
    assert found.points[:, 0].tolist() == [[0.125, 0.5], [0.25, 0.5]]
    assert found.note == "initial trials: 2, from w.h5; left out: 2 not evaluated"
    assert len(read(path, experiment()).points) == 4


@pytest.mark.slow
@pytest.mark.parametrize("best", [(0.25, 0.75), (0.625, 0.125)])
async def test_the_first_point_of_a_model_is_chosen_from_the_trials(
    tmp_path: Path, best: tuple[float, float]
) -> None:
    """The strategy has no point of its own before: all it knows is the file."""

    class Valley(Rod):
        outputs = {"weight": 1}

        def evaluate(self, inputs: Inputs, config: object) -> float:
            return float(np.sum((inputs["x"] - best) ** 2))

    points(tmp_path / "w.h5", *np.random.default_rng(1).random((40, 2)), model=Valley())
    improve = (
        "[spread]\ngenerator = OptimizeAcqfGenerator\nacqf = qLogNoisyExpectedImprovement\n"
        "model = GPRegressionModel\nmin_asks = 3\n"
    )
    text = experiment(strategies=improve)
    given = read_seed_files(["w.h5"], tmp_path, *understood(text, described(Valley())))
    async with hosting(tmp_path / "e.db") as host, dispatching(Valley(), 1) as farm:
        number = await host.set_up(text, given)
        loop = ClosedLoop(host, number, farm, LoopOptions(in_flight=1, budget=1))
        await loop.begin()
        await loop.go()
        begun = host.experiments[number]
        ((point,),), _ = begun.trials
        assert point == pytest.approx(best, abs=0.05)
        assert (begun.told, begun.modelled, begun.snapshot().asked) == (1, 1, 1)
        assert len(begun.data(0).x) == 41
