"""Models that are programs of the line protocol, and what happens if a program fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.call import Call, Derivative, Operation, Result
from farm.errors import FarmError
from farm.worker.lines import LinesModel
from farm.worker.loader import LoadError, load_models
from farm.worker.runner import Runner
from farm.worker.specs import located, needs_folder, source_of, version_of

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "support" / "line_models.py"
EXAMPLES = ROOT / "examples" / "lines"


def made(mode: str = "good", **options: Any) -> LinesModel:
    return LinesModel([sys.executable, "-I", "-S", str(PROGRAM), mode], **options)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    model = made()
    yield Runner({"all": model})
    model.close()


def outcome(
    runner: Runner, x: list[float], count: int = 2, config: str = "{}", **options: Any
) -> Result | FarmError:
    operation = options.pop("operation", Operation.EVALUATE)
    derivative = Derivative(**options) if options else None
    inputs = np.array(x), np.array(count)
    (found,) = runner.execute([Call("all", operation, inputs, config, derivative)])
    return found


def values(found: Result | FarmError) -> list[Any]:
    assert isinstance(found, Result), found
    return [y.tolist() for y in found.outputs]


def test_what_a_program_describes(runner: Runner) -> None:
    (info,) = runner.models()
    assert [t.unit for t in info.inputs] == ["", "1"]
    assert [(t.name, t.shape, t.dtype) for t in info.inputs] == [
        ("x", (2,), "float64"),
        ("count", (), "int64"),
    ]
    assert [(t.name, t.shape) for t in info.outputs] == [("y", (2,)), ("total", ())]
    assert (info.version, info.copies, info.max_batch) == ("7", False, 1)
    assert "program " in info.description


def test_numbers_are_exact_in_both_directions(runner: Runner) -> None:
    x = [0.1 + 0.2, 5e-324]
    assert values(outcome(runner, x, 1)) == [x, 1.0]
    assert values(outcome(runner, [1.0, 2.0], 2**62 + 1))[1] == float(2**62 + 1)


def test_numbers_that_json_does_not_have(runner: Runner) -> None:
    (y, _) = values(outcome(runner, [np.inf, np.nan]))
    assert y[0] == np.inf
    assert np.isnan(y[1])
    assert values(outcome(runner, [-np.inf, 1.0]))[0] == [-np.inf, 2.0]


def test_sizes_by_config(runner: Runner) -> None:
    assert values(outcome(runner, [1.0, 2.0, 3.0], config='{"n":3}')) == [[2.0, 4.0, 6.0], 2.0]


def test_derivatives_and_cost(runner: Runner) -> None:
    x, sens, vec = [1.0, 2.0], np.array([1.0, 3.0]), np.array([5.0, np.inf])
    wrt: dict[str, Any] = {"out_wrt": 0, "in_wrt": 0}
    found = outcome(runner, x, operation=Operation.GRADIENT, **wrt, sens=sens)
    assert values(found) == [[2.0, 6.0]]
    found = outcome(runner, x, operation=Operation.APPLY_JACOBIAN, **wrt, vec=sens)
    assert values(found) == [[2.0, 6.0]]
    found = outcome(
        runner, x, operation=Operation.APPLY_HESSIAN, **wrt, in_wrt2=0, sens=sens, vec=vec
    )
    assert values(found) == [[0.0, 0.0]]
    found = outcome(runner, x, operation=Operation.VALUE_AND_GRADIENT, **wrt, sens=sens)
    assert values(found) == [[2.0, 4.0], 2.0, [2.0, 6.0]]
    assert values(outcome(runner, x, operation=Operation.COST)) == [[3.5]]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise", "ModelFailed: went wrong"),
        ("refuse", "InvalidInput: x is bad"),
        ("other", "ModelFailed: is lost"),
        ("exit", "ended with exit code 3 during 'evaluate': no licence"),
        ("kill", "ended with signal SIGKILL during 'evaluate'"),
        ("id", "expected one reply, with id"),
        ("bytes", "with a line that is not JSON"),
        ("shape", "InvalidOutput: output 'y' of model 'all' has shape (3,), expected (2,)"),
        ("nothing", "InvalidOutput: model 'all' answered with no outputs; expected a list of 2"),
    ],
)
def test_a_fault_fails_its_call_alone(runner: Runner, fault: str, words: str) -> None:
    found = outcome(runner, [1.0, 2.0], config=f'{{"fault":"{fault}"}}')
    assert isinstance(found, FarmError)
    assert words in f"{type(found).__name__}: {found}"
    assert values(outcome(runner, [1.0, 2.0])) == [[2.0, 4.0], 2.0]


def test_other_output_of_a_program_goes_to_the_log(
    runner: Runner, capfd: pytest.CaptureFixture[str]
) -> None:
    assert values(outcome(runner, [1.0, 2.0], config='{"fault":"chatter"}')) == [[1.0, 2.0], 3.0]
    said = capfd.readouterr().err
    assert 'a note {"id": 5} and' in said
    assert "x" * (1 << 18) in said


def test_rows_share_an_evaluation() -> None:
    model = made("rows", name="sum")
    runner = Runner({"sum": model})
    calls = [Call("sum", Operation.EVALUATE, (np.array([i, 1.0]),)) for i in range(3)]
    assert [values(found) for found in runner.execute(calls)] == [[[301.0]], [[302.0]], [[303.0]]]
    model.close()


ENDS = """
import sys, numpy as np
from farm.model import Inputs
from farm.worker.lines import LinesModel
model = LinesModel([sys.executable, "-I", "-S", sys.argv[1]])
model.evaluate(Inputs(x=np.zeros(2), count=np.array(1)), {"fault": sys.argv[2]})
"""


@pytest.mark.parametrize(("fault", "code"), [("kill", -9), ("segfault", 70)])
def test_a_signal_ends_a_supervised_process_as_a_crash_of_its_own(fault: str, code: int) -> None:
    command = [sys.executable, "-c", ENDS, str(PROGRAM), fault]
    done = subprocess.run(
        command, env={"FARM_REPLICA": "0"}, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == code
    assert "this process ends" in done.stderr


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("silent", "did not answer 'describe' within 0.2 s; expected a line that begins with"),
        ("ends", "ended with exit code 1 during 'describe': no licence"),
        ("shapeless", "expected whole numbers"),
    ],
)
def test_programs_that_describe_no_model(mode: str, words: str) -> None:
    limit_s = 0.2 if mode == "silent" else 30.0
    with pytest.raises(FarmError) as caught:
        made(mode, start_timeout_s=limit_s)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("lines:none-such --a", "there is no program 'none-such' that can be run; install it"),
        ("lines:", "the command is empty"),
        ("lines:'", "No closing quotation"),
        ("lines:false", "ended with exit code 1 during 'describe'"),
    ],
)
def test_specs_that_start_nothing(spec: str, words: str) -> None:
    with pytest.raises(LoadError) as caught:
        load_models([spec])
    assert words in str(caught.value)


def test_what_a_spec_of_a_command_depends_on() -> None:
    spec = "b=lines:./model --x=1"
    assert (located(spec), source_of(spec), version_of(spec)) == (spec, "./model --x=1", "")
    assert needs_folder(spec)
    assert located("model.R") == str(Path.cwd() / "model.R")
    assert not needs_folder("model.R")


def checked(models: Mapping[str, Any]) -> None:
    """Compare the example's model with the same sums by numpy."""
    k, load, sens = np.array([1.0, 2.0, 1 / 3]), np.array([0.1, -0.2, 0.3]), np.array([1.0, 0.5, 2])
    runner = Runner(models)

    def asked(*inputs: Any, **wrt: Any) -> Any:
        operation = Operation.GRADIENT if wrt else Operation.EVALUATE
        derivative = Derivative(out_wrt=0, sens=sens, **wrt) if wrt else None
        call = Call("spring", operation, inputs, "{}", derivative)
        (found,) = runner.execute([call])
        return found

    force, pull = np.cumsum(load[::-1])[::-1], np.cumsum(sens[::-1])[::-1]
    np.testing.assert_allclose(values(asked(k, load))[0], np.cumsum(force / k), rtol=1e-15)
    np.testing.assert_allclose(
        values(asked(k, load, in_wrt=0))[0], -pull * force / k**2, rtol=1e-15
    )
    np.testing.assert_allclose(values(asked(k, load, in_wrt=1))[0], np.cumsum(pull / k), rtol=1e-15)
    assert values(asked(k, np.array([0, 0, np.inf])))[0] == [np.inf] * 3
    assert np.isnan(values(asked(k, np.array([np.nan, 0, 0])))[0]).all()
    refused = asked(-k, load)
    assert isinstance(refused, FarmError)
    assert "expected numbers above 0" in refused.message
    assert values(asked(k, load))


def test_the_example_in_perl() -> None:
    checked(load_models([f"spring=lines:perl {EXAMPLES / 'spring.pl'}"]))


@pytest.mark.slow  # R takes a quarter of a second to start
def test_the_example_in_r() -> None:
    assert shutil.which("Rscript"), "this test needs R: apt-get install r-base-core"
    checked(load_models([str(EXAMPLES / "spring.R")]))
