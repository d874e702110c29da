"""FMUs of FMI 2 and 3, compiled here, against their closed forms."""

from __future__ import annotations

import math
import re
import subprocess
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.call import Call, Operation, Result
from farm.errors import FarmError
from farm.worker.frameworks.fmu import FmuModel
from farm.worker.loader import LoadError, load_models
from farm.worker.runner import Runner

SOURCE = Path(__file__).parents[2] / "support" / "fmu"


def fmpy() -> Any:
    """FMPy, imported when it is needed, as that takes long."""
    return import_module("fmpy")


def compiled(name: str, folder: Path) -> Path:
    """The library of an FMU, for this platform."""
    library = folder / f"{name}.so"
    headers = Path(fmpy().__file__).parent / "c-code"
    command = ["cc", "-O2", "-shared", "-fPIC", "-I", str(headers), str(SOURCE / f"{name}.c")]
    subprocess.run([*command, "-o", str(library), "-lm"], check=True)
    return library


@pytest.fixture(scope="module")
def fmu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mass on a spring, of FMI 2."""
    folder = tmp_path_factory.mktemp("fmu")
    return zipped(folder / "oscillator.fmu", compiled("oscillator", folder), fmpy().platform)


@pytest.fixture(scope="module")
def decay_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("decay", tmp_path_factory.mktemp("decay"))


def decay(folder: Path, library: Path, *kinds: str) -> Runner:
    """The worker of an exponential decay, of FMI 3, that can be simulated in these ways only."""
    lines = (SOURCE / "decay.xml").read_text().splitlines()
    ways = [
        line for line in lines if "modelIdentifier" not in line or any(k in line for k in kinds)
    ]
    path = folder / "decay.fmu"
    zipped(path, library, fmpy().platform_tuple, about="\n".join(ways))
    return Runner(load_models([str(path)]))


def zipped(path: Path, library: Path, platform: str, *, about: str = "") -> Path:
    """Write an FMU. about: its description; empty: the oscillator's."""
    with zipfile.ZipFile(path, "w") as file:
        about = about or (SOURCE / "oscillator.xml").read_text()
        file.writestr("modelDescription.xml", about)
        file.write(library, f"binaries/{platform}/{library.name}")
    return path


def outcome_of(runner: Runner, x: tuple[float, ...], config: str) -> Result | FarmError:
    (info,) = runner.models()
    call = Call(info.name, Operation.EVALUATE, tuple(np.array([v]) for v in x), config)
    (outcome,) = runner.execute([call])
    return outcome


def outputs(runner: Runner, *x: float, config: str = "{}") -> list[list[float]]:
    outcome = outcome_of(runner, x, config)
    assert isinstance(outcome, Result), outcome
    return [y.tolist() for y in outcome.outputs]


def message(runner: Runner, *x: float, config: str = "{}") -> str:
    outcome = outcome_of(runner, x, config)
    assert isinstance(outcome, FarmError), outcome
    return f"{type(outcome).__name__}: {outcome}"


def test_final_values_and_a_reset_between_calls(fmu: Path) -> None:
    runner = Runner(load_models([str(fmu)]))
    (info,) = runner.models()
    assert [t.name for t in info.inputs] == ["force", "k", "mass", "damped", "order"]
    assert [(t.name, t.shape) for t in info.outputs] == [("x", (1,)), ("steps", (1,))]
    assert info.description == "a mass on a spring"
    for k in (4.0, 9.0, 4.0):
        ((x,), (steps,)) = outputs(runner, 0.0, k, 1.0, 0.0, 1.0)
        assert x == pytest.approx(math.cos(2.0 * math.sqrt(k)), abs=1e-3)
        assert steps == 20
    ((x,), _) = outputs(runner, 4.0, 4.0, 1.0, 0.0, 1.0)  # the force that holds it at 1
    assert x == pytest.approx(1.0)


def test_time_series_with_sizes_by_config(fmu: Path) -> None:
    runner = Runner(load_models([str(fmu)]))
    config = '{"output_interval":0.1,"start_time":0,"stop_time":0.3}'
    x, steps, time = outputs(runner, 0.0, 4.0, 1.0, 0.0, 1.0, config=config)
    np.testing.assert_allclose(time, [0.0, 0.1, 0.2, 0.3], atol=1e-12)
    np.testing.assert_allclose(x, np.cos(2 * np.array(time)), atol=1e-3)
    assert steps == [0, 1, 2, 3]


def test_other_variables(fmu: Path) -> None:
    model = FmuModel(fmu, inputs=["x"], outputs=["energy"], name="oscillator")
    runner = Runner({"oscillator": model})
    config = '{"start_values":{"k":2,"damped":0}}'
    ((energy,),) = outputs(runner, 3.0, config=config)
    assert energy == pytest.approx(0.5 * 2 * 9, rel=1e-2)
    with pytest.raises(ValueError, match="'none' is no variable of one number; the FMU has k, "):
        FmuModel(fmu, outputs=["none"])


@pytest.mark.parametrize(
    ("x", "config", "words"),
    [
        ((0, -1, 1, 0, 1), "{}", "ModelFailed: fmi2ExitInitializationMode failed with status 3"),
        ((0, -1, 1, 0, 1), "{}", "it says: stiffness k is not positive"),
        ((0, 4, 1, 0.5, 1), "{}", "InvalidInput: 'damped' is 0.5; expected 0 or 1"),
        ((0, 4, 1, 0, 1.5), "{}", "InvalidInput: 'order' is 1.5; expected a whole number"),
        ((0, 4, 1, 0, 1), '{"stop":1}', "InvalidInput: the config has 'stop'; expected one of"),
        ((0, 4, 1, 0, 1), '{"stop_time":-1}', "stop_time is -1; expected a time after 0"),
        ((0, 4, 1, 0, 1), '{"output_interval":0.3}', "of which 2, the time between start and stop"),
        ((0, 4, 1, 0, 1), '{"start_values":{"y":1}}', "'y', which is no variable of one number"),
    ],
)
def test_errors_in_words(fmu: Path, x: tuple[float, ...], config: str, words: str) -> None:
    runner = Runner(load_models([str(fmu)]))
    assert words in message(runner, *x, config=config)
    assert outputs(runner, 0, 4, 1, 0, 1)[1] == [20]  # the next call has a good instance


def test_files_that_cannot_be_served(fmu: Path, tmp_path: Path) -> None:
    (tmp_path / "text.fmu").write_text("no zip")
    with pytest.raises(LoadError, match="FMPy cannot open"):
        load_models([str(tmp_path / "text.fmu")])
    (tmp_path / "oscillator.dll").touch()
    other = zipped(tmp_path / "other.fmu", tmp_path / "oscillator.dll", "win64")
    with pytest.raises(LoadError, match="has libraries for win64, this is linux64; export it"):
        load_models([str(other)])


# FMI 3


@pytest.mark.parametrize(("kind", "error"), [("CoSimulation", 1e-12), ("ModelExchange", 1e-3)])
def test_fmi_3_by_co_simulation_and_model_exchange(
    tmp_path: Path, decay_library: Path, kind: str, error: float
) -> None:
    runner = decay(tmp_path, decay_library, kind)
    (info,) = runner.models()
    assert [t.name for t in info.inputs] == ["k", "low", "grows"]
    assert [t.name for t in info.outputs] == ["x", "steps"]
    for k in (1.0, 2.0, 1.0):
        ((x,), (steps,)) = outputs(runner, k, 0.0, 0.0)
        assert x == pytest.approx(math.exp(-2.0 * k), rel=error)
        assert steps > 1
    ((x,), _) = outputs(runner, 0.5, 0.0, 1.0)
    assert x == pytest.approx(math.exp(1.0), rel=error)
    config = '{"output_interval":0.25,"stop_time":1,"tolerance":1e-8}'
    (series, _, time) = outputs(runner, 1.0, 0.0, 0.0, config=config)
    np.testing.assert_allclose(time, [0.0, 0.25, 0.5, 0.75, 1.0], atol=1e-12)
    np.testing.assert_allclose(series, np.exp(-np.array(time)), rtol=error)
    assert "'grows' is 0.5; expected 0 or 1" in message(runner, 1.0, 0.0, 0.5)


@pytest.mark.parametrize("kind", ["CoSimulation", "ModelExchange"])
def test_a_unit_that_ends_early_fails_and_the_next_call_has_a_new_one(
    tmp_path: Path, decay_library: Path, kind: str
) -> None:
    runner = decay(tmp_path, decay_library, kind)
    for _ in range(2):
        text = message(runner, 1.0, 0.5, 0.0)
        found = re.search(
            r"the FMU ended the simulation at time (.*), before its stop time 2", text
        )
        assert found is not None, text
        assert float(found[1]) == pytest.approx(math.log(2.0), abs=0.1)
        ((x,), _) = outputs(runner, 1.0, 0.0, 0.0)
        assert x == pytest.approx(math.exp(-2.0), rel=1e-3)


def test_a_unit_that_others_must_schedule_is_refused(tmp_path: Path, decay_library: Path) -> None:
    with pytest.raises(LoadError, match="neither co-simulation nor model exchange"):
        decay(tmp_path, decay_library)
