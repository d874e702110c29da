"""Files as calls of a model: which file fits, and what the trials of another experiment were."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.call import ModelInfo, TensorInfo
from farm.errors import InvalidInput, UnsupportedFeature
from farm.experiment.config.reader import read_config
from farm.experiment.loop.seed_files import read_seed_files
from farm.experiment.loop.seed_table import read_seed_table
from farm.experiment.results.export import write_sweep
from farm.experiment.state.seeding import InitialTrials
from farm.experiment.state.trials import ExperimentRecord, Trial
from farm.model import Inputs, Model
from farm.sweep.design.points import point_seed
from farm.sweep.file.journal import PointStatus
from farm.sweep.file.reading import open_sweep
from tests.experiment.loop.rods import Rod, described, experiment, swept, understood

CONFIG = experiment()


def read(path: Path, text: str = CONFIG, info: ModelInfo | None = None) -> InitialTrials:
    (found,) = read_seed_files([path.name], path.parent, *understood(text, info))
    return found


def refused(path: Path, text: str = CONFIG, info: ModelInfo | None = None) -> str:
    """Return the error about a file, after its name."""
    with pytest.raises(InvalidInput) as caught:
        read(path, text, info)
    name = f"seed data {path.name}: "
    assert caught.value.message.startswith(name)
    assert "\n" not in caught.value.message
    return caught.value.message.removeprefix(name)


def exported(path: Path, text: str, *trials: tuple[Sequence[float], Sequence[float]]) -> Path:
    """Export an experiment with these points and outcomes."""
    told = [
        Trial(
            np.array(point, dtype=np.float64).reshape(read_config(text).stimuli, -1),
            PointStatus.DONE,
            asked_at=1.0,
            told_at=2.0,
            values=np.array(outcomes, dtype=np.float64),
        )
        for point, outcomes in trials
    ]
    record = ExperimentRecord(3, "an-id", 0, read_config(text), told)
    write_sweep(record, path, {"journal": "old.db"})
    return path


def test_a_table_has_the_calls_of_a_sweep(tmp_path: Path) -> None:
    path = swept(
        tmp_path / "w.h5",
        "random:3",
        parameters={"x[1]": (0, 1), "mesh": [1, 2]},
        fix={"x[0]": 0.5, "load": 2},
        config={"solver": "lu"},
    )
    with open_sweep(path) as file:
        table = read_seed_table(file, *understood(CONFIG))
        theta = file["theta"][:]
        outcomes = table.outcomes(np.array([0, 2]))
    assert table.size == 3
    assert table.entry(0, 0).tolist() == [0.5] * 3
    assert table.entry(0, 1).tolist() == theta[:, 0].tolist()
    assert table.entry(1, 0).tolist() == [2.0] * 3
    assert table.setting("mesh") == theta[:, 1].tolist()
    assert table.setting("solver") == ["lu"] * 3
    assert table.setting("grain") is None
    weights = [0.5 + 10 * theta[k, 0] + 100 * theta[k, 1] for k in (0, 2)]
    assert [-float(np.ravel(row)[0]) for row in outcomes] == pytest.approx(weights)


def test_another_model_is_refused(tmp_path: Path) -> None:
    class Beam(Rod):
        name = "beam"

    path = swept(tmp_path / "w.h5", model=Beam())
    assert refused(path) == "it has evaluations of 'beam'; expected 'rod'"


@pytest.mark.parametrize(
    ("inputs", "outputs", "says"),
    [
        ({"x": 3, "load": 1}, Rod.outputs, "it has the inputs x [3], load [1]; expected x [2]"),
        ({"x": 2, "force": 1}, Rod.outputs, "it has the inputs x [2], force [1]; expected x [2]"),
        ({"x": 2}, Rod.outputs, "it has the inputs x [2]; expected x [2], load [1]"),
        ({"x": 2, "load": 1, "t": 1}, Rod.outputs, "the inputs x [2], load [1], t [1]; expected"),
        (Rod.inputs, {"stress": 2, "mass": 1}, "it has the outputs stress [2], mass [1]; expected"),
        (Rod.inputs, {"stress": 2, "weight": 2}, "stress [2], weight [2]; expected stress [2], we"),
    ],
)
def test_inputs_and_outputs_must_fit(
    tmp_path: Path, inputs: dict[str, int], outputs: dict[str, int], says: str
) -> None:
    class Former(Model):
        name = "rod"

        def evaluate(self, given: Inputs, config: Any) -> Any:
            return [np.ones(size) for size in outputs.values()]

    Former.inputs, Former.outputs = inputs, outputs
    fix = {name: 1 for name in inputs if name != "x"}
    path = swept(tmp_path / "w.h5", "random:2", model=Former(), parameters={"x": (0, 1)}, fix=fix)
    assert says in refused(path)


def test_inputs_and_outputs_are_matched_by_name(tmp_path: Path) -> None:
    """The order is that of the model's author, who may have changed it."""

    class Turned(Rod):
        inputs = {"load": 1, "x": 2}
        outputs = {"weight": 1, "stress": 2, "heat": 1}

        def evaluate(self, given: Inputs, config: Any) -> Any:
            return [[5.0 + given["x"][1]], [1.0, 2.0], [3.0]]

    path = swept(tmp_path / "w.h5", "random:3", model=Turned())
    several = experiment(outcomes="cost, s", farm="outcome.s = out0[1]\n")
    found = read(path, several)
    assert found.outcomes[:, 0].tolist() == (-5.0 - found.points[:, 0, 1]).tolist()
    assert found.outcomes[:, 1].tolist() == [2.0] * 3


def test_names_that_say_only_the_position(tmp_path: Path) -> None:
    path = swept(tmp_path / "w.h5", "random:3")
    known = described()
    info = ModelInfo(
        "rod",
        tuple(TensorInfo(f"in{i}", t.shape) for i, t in enumerate(known.inputs)),
        tuple(TensorInfo(f"out{i}", t.shape) for i, t in enumerate(known.outputs)),
    )
    text = CONFIG.replace("input.x", "input.in0").replace("-weight", "-out1")
    text += "input.in1 = load\n"
    assert read(path, text, info).outcomes.tolist() == read(path).outcomes.tolist()


def test_outputs_that_no_outcome_needs_may_be_missing(tmp_path: Path) -> None:
    class Light(Rod):
        outputs = {"weight": 1}

        def evaluate(self, given: Inputs, config: Any) -> Any:
            return [[1.0]]

    path = swept(tmp_path / "w.h5", "random:2", model=Light())
    assert read(path).outcomes.tolist() == [[-1.0], [-1.0]]
    needs = experiment(farm="outcome.cost = weight + out0[0]\n")
    assert "it has the outputs weight [1]; expected stress [2], weight [1]" in refused(path, needs)


def test_seeds_of_random_models_count_only_if_the_experiment_has_the_key(tmp_path: Path) -> None:
    ranges = {"x[0]": (0, 0.5), "x[1]": (0, 0.5)}
    path = swept(tmp_path / "w.h5", "random:3", parameters=ranges, seed_key="noise")
    assert len(read(path).points) == 3
    wanted = point_seed(1, 1)
    found = read(path, experiment(farm=f"config.noise = {wanted}\n"))
    assert (len(found.points), "2 with another config (noise = " in found.note) == (1, True)


def test_trials_of_an_experiment_with_the_same_model(tmp_path: Path) -> None:
    """Its parameters need not be the same: what counts are the calls that they make."""
    old = experiment("b", "a", "mesh", "kind", "load", farm="config.solver = lu\n")
    path = exported(
        tmp_path / "old.h5",
        old,
        ([0.5, 0.25, 3, 1], [-1.0]),
        ([0.5, 0.75, 3, 0], [-2.0]),
        ([0.5, 0.875, 2, 1], [-3.0]),
        ([0.5, 0.125, 3, 1], [np.nan]),
    )
    new = experiment("a", "b", "kind", "load", farm="config.solver = lu\nconfig.mesh = 3\n")
    found = read(path, new)
    assert found.points.tolist() == [[[0.25, 0.5, 1]], [[0.75, 0.5, 0]]]
    assert found.outcomes.tolist() == [[-1.0], [-2.0]]
    assert found.note == (
        "initial trials: 2, from old.h5; left out: 1 with another config (mesh = 2.0, here 3), "
        "1 not finite"
    )
    fewer = new.replace("choices = [steel, brass]", "choices = [copper, brass]")
    found = read(path, fewer)
    assert found.points.tolist() == [[[0.25, 0.5, 1]]]
    assert "1 with unknown choices (kind = 'steel')" in found.note
    other = new.replace("config.solver = lu", "config.solver = cg")
    assert "4 with another config (solver = 'lu', here 'cg')" in read(path, other).note
    heavy = new.replace("value = 2", "value = 3")
    assert "4 with other fixed inputs (load = 2, here 3)" in read(path, heavy).note


def test_outcomes_are_taken_by_name(tmp_path: Path) -> None:
    broke = "outcome.broke = max(stress) > 1\n"
    old = experiment(outcomes="broke, cost", farm=broke)
    path = exported(tmp_path / "old.h5", old, ([0.5, 0.25], [1.0, -2.0]))
    assert read(path).outcomes.tolist() == [[-2.0]]
    both = experiment(outcomes="cost, broke", farm=broke.replace("stress", " out0 "))
    assert read(path, both).outcomes.tolist() == [[-2.0, 1.0]]
    other = both.replace("> 1", "> 2")
    assert refused(path, other) == (
        "its outcome 'broke' is 'max(stress) > 1'; expected 'max( out0 ) > 2'"
    )
    more = experiment(outcomes="cost, heat", farm="outcome.heat = stress[0]\n")
    assert refused(path, more) == (
        "its experiment has the outcomes broke (binary), cost (continuous); "
        "expected heat (continuous)"
    )
    numbers = both.replace("[continuous, binary]", "[continuous, continuous]")
    assert "expected broke (continuous)" in refused(path, numbers)


def test_an_experiment_with_another_model_is_refused(tmp_path: Path) -> None:
    old = CONFIG.replace("model = rod", "model = beam")
    path = exported(tmp_path / "old.h5", old, ([0.5, 0.25], [1.0]))
    assert refused(path) == "its experiment evaluated 'beam'; expected 'rod'"
    old = CONFIG.replace("input.x[1] = b", "input.y = b")
    path = exported(tmp_path / "other.h5", old, ([0.5, 0.25], [1.0]))
    assert refused(path).startswith("the experiment in it: [farm] does not fit the model: ")


def test_trials_that_clients_told_count_for_the_model(tmp_path: Path) -> None:
    old = CONFIG.split("[farm]", maxsplit=1)[0]
    path = exported(tmp_path / "old.h5", old, ([0.5, 0.25], [1.0]))
    assert read(path).points.tolist() == [[[0.5, 0.25]]]
    single = experiment("a", "load", farm="input.x[1] = 0.25\n").split("[farm]", maxsplit=1)[0]
    path = exported(tmp_path / "single.h5", single, ([0.5], [1.0]))
    assert "the experiment in it: " in refused(path)
    pairs = old.replace("[common]", "[common]\nstimuli_per_trial = 2")
    pairs = pairs.replace("[continuous]", "[binary]")
    exported(tmp_path / "pairs.h5", pairs, ([0.0] * 4, [1.0]))
    with pytest.raises(UnsupportedFeature, match=r"pairs\.h5: the experiment in it: .*pairs"):
        read(tmp_path / "pairs.h5")
