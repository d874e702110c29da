"""`farm call`: its output, and its messages for mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import farm
from farm.cli import run
from farm.cli.call import only_model
from tests.cli.conftest import Command, assert_one_line, command_of
from tests.support.dispatcher_farm import BEAM, Served


@pytest.fixture(params=["native", "http"])
def target(request: pytest.FixtureRequest, beam_farm: Served) -> str:
    return str(beam_farm.folder) if request.param == "native" else beam_farm.connection.url


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], target: str) -> Command:
    """`farm call` of the farm of beams."""
    return lambda words, *more: command_of(capsys, "call")(f"--to {target} {words}", *more)


@pytest.mark.parametrize("words", ["1,2,4 8", "load=8 E=1,2,4", "1,2,4, 8.0 --model beam"])
def test_an_evaluation_is_printed_with_its_outputs_names(call: Command, words: str) -> None:
    status, out, _ = call(words)
    assert status == 0
    assert out.splitlines()[0] == "bent = [8. 4. 2.]"


def test_json_says_everything(call: Command) -> None:
    status, out, _ = call("1,2,4 8 --json")
    answer = json.loads(out)
    assert status == 0
    assert answer["outputs"] == {"bent": [8.0, 4.0, 2.0]}
    assert answer["model"] == "beam"
    assert answer["run_time_s"] > 0
    assert "/" in answer["worker"]


def test_inputs_come_from_a_file(call: Command, tmp_path: Path) -> None:
    for text in ("[[1, 2, 4], [8]]", '{"load": [8], "E": [1, 2, 4]}'):
        file = tmp_path / "point.json"
        file.write_text(text)
        _, out, _ = call("", f"@{file}")
        assert out.startswith("bent = [8. 4. 2.]")


def test_a_gradient(call: Command) -> None:
    # d(load/E_i)/dE_i = -load/E_i^2, weighted by sens
    words = "1,2,4 8 --gradient --sens 1,0,1 --json"
    assert json.loads(call(words)[1])["outputs"] == {"gradient": [-8.0, 0.0, -0.5]}
    assert json.loads(call(f"{words} --in-wrt 1")[1])["outputs"] == {"gradient": [1.25]}


def test_a_value_and_its_gradient(call: Command) -> None:
    words = "1,2,4 8 --value-and-gradient --sens 1,0,1"
    lines = call(words)[1].splitlines()
    assert lines[:2] == ["bent = [8. 4. 2.]", "gradient = [-8.  -0.  -0.5]"]
    answer = json.loads(call(f"{words} --json")[1])
    assert answer["outputs"] == {"bent": [8.0, 4.0, 2.0]}
    assert answer["gradient"] == [-8.0, 0.0, -0.5]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("1,2,4", "model 'beam' has 2 inputs: E (3), load (1); got 1"),
        ("1,2 8", "input 0 ('E') has length 2, model 'beam' expects 3"),
        ("1,2,1_0 8", "'1,2,1_0' is not a vector like 1,2,3"),
        ("http://node3:4242 8", "'http://node3:4242' is not an input; a farm is named by --to"),
        ("1,2,x 8", "'1,2,x' is not a vector like 1,2,3"),
        ("E=1,2,4 F=8", "the inputs are E, load; got E, F"),
        ("1,2,4 8 --model plate", "plate"),
        ("1,2,4 8 --config 3", "not a JSON object"),
        ("1,2,4 8 --apply-jacobian --vec 1,1,1", "model 'beam' does not offer "),
        ("1,2,4 8 --gradient --sens 1", "sens has length 1, expected 3"),
        ("@nosuch.json", "nosuch.json"),
    ],
)
def test_a_mistake_is_one_line(call: Command, words: str, complaint: str) -> None:
    assert_one_line(call(words), complaint)


@pytest.mark.parametrize(
    ("config", "status", "complaint"),
    [
        ({"raise": "too hot"}, 4, "ValueError: too hot"),
        ({"exit": 3}, 5, "exit code 3"),
        ({"sleep": 1.5}, 7, "no answer within 0."),
    ],
)
def test_each_kind_of_failure_is_one_line_and_has_a_status(
    call: Command, config: dict[str, object], status: int, complaint: str
) -> None:
    limit = "--timeout 0.2" if "sleep" in config else ""
    assert_one_line(call(f"1,2,4 8 {limit} --config", json.dumps(config)), complaint, status)


def test_a_model_that_raises_is_named_with_its_file_and_line(
    capsys: pytest.CaptureFixture[str], beam_farm: Served
) -> None:
    words = ["--to", str(beam_farm.folder), "1,2,4", "8", "--config", '{"raise": "too hot"}']
    assert run(["call", *words]) == 4
    line = next(n for n, text in enumerate(BEAM.splitlines(), 1) if "raise ValueError" in text)
    place = f"({beam_farm.folder.parent / 'models.py'}:{line})"
    errors = capsys.readouterr().err
    assert f"model 'beam' failed: ValueError: too hot {place}; for more: farm failures" in errors


class Plate(farm.Model):
    name = "plate"
    inputs = {"x": (2, 2), "t": 1}
    outputs = {"bent": (2, 3), "path": (-1, 2)}

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> Any:
        return {"bent": np.arange(6.0).reshape(2, 3), "path": np.zeros((3, 2))}

    def gradient(self, *arguments: Any) -> Any:
        return np.arange(4.0).reshape(2, 2)

    def apply_jacobian(self, *arguments: Any) -> Any:
        return np.arange(6.0).reshape(2, 3)


def test_json_keeps_the_shapes_of_outputs_and_derivatives(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with farm.serve(Plate(), dir=tmp_path / "run"):

        def outputs(*words: str) -> object:
            call = command_of(capsys, "call")
            status, out, errors = call("1,2,3,4 5 --json --to", str(tmp_path / "run"), *words)
            assert status == 0, errors
            return json.loads(out)["outputs"]

        assert outputs() == {"bent": [[0, 1, 2], [3, 4, 5]], "path": [[0, 0]] * 3}
        assert outputs("--gradient", "--sens", "1,1,1,1,1,1") == {"gradient": [[0, 1], [2, 3]]}
        assert outputs("--apply-jacobian", "--vec", "1,1,1,1") == {
            "apply_jacobian": [[0, 1, 2], [3, 4, 5]]
        }


def test_one_of_several_models_has_to_be_named() -> None:
    class Two:
        def expect_models(self) -> list[str]:
            return ["a", "b"]

    client: Any = Two()
    with pytest.raises(click.UsageError, match="specify --model; the farm has: a, b"):
        only_model(client)
