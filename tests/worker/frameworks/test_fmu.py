"""An FMU of a mass on a spring, compiled here, against its closed form."""

from __future__ import annotations

import math
import subprocess
import zipfile
from pathlib import Path

import fmpy
import numpy as np
import pytest

from farm.call import Call, Operation, Result
from farm.errors import FarmError
from farm.worker.frameworks.fmu import FmuModel
from farm.worker.loader import LoadError, load_models
from farm.worker.runner import Runner

SOURCE = Path(__file__).parents[2] / "support" / "fmu"


@pytest.fixture(scope="module")
def fmu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The FMU, for this platform."""
    folder = tmp_path_factory.mktemp("fmu")
    library = folder / "oscillator.so"
    headers = Path(fmpy.__file__).parent / "c-code"
    command = ["cc", "-O2", "-shared", "-fPIC", "-I", str(headers), str(SOURCE / "oscillator.c")]
    subprocess.run([*command, "-o", str(library)], check=True)
    return zipped(folder / "oscillator.fmu", library, fmpy.platform)


def zipped(path: Path, library: Path, platform: str) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.write(SOURCE / "modelDescription.xml", "modelDescription.xml")
        file.write(library, f"binaries/{platform}/{library.name}")
    return path


def outputs(runner: Runner, *x: float, config: str = "{}") -> list[list[float]]:
    call = Call("oscillator", Operation.EVALUATE, tuple(np.array([v]) for v in x), config)
    (outcome,) = runner.execute([call])
    assert isinstance(outcome, Result), outcome
    return [y.tolist() for y in outcome.outputs]


def message(runner: Runner, *x: float, config: str = "{}") -> str:
    call = Call("oscillator", Operation.EVALUATE, tuple(np.array([v]) for v in x), config)
    (outcome,) = runner.execute([call])
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
