"""The [farm] section: points become calls, results become outcomes, and misfits are reported."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from farm.call import Call, ModelInfo, Operation, Result, TensorInfo
from farm.errors import FarmError, InvalidInput, InvalidOutput, UnsupportedFeature
from farm.experiment.config.evaluated_model import EvaluatedModel, read_evaluated_model
from farm.experiment.config.reader import read_config

HEAD = """
[common]
parnames = [a, n]
outcome_types = [continuous]
strategy_names = [s]
[a]
lower_bound = 0
upper_bound = 10
[n]
par_type = integer
lower_bound = 1
upper_bound = 5
[s]
generator = SobolGenerator
"""
TWO = HEAD.replace("[continuous]", "[continuous, binary]\noutcome_names = [cost, Fails]")
FIXED = HEAD.replace("[a, n]", "[a, n, k, mesh]") + (
    "[k]\npar_type = fixed\nvalue = 3\n[mesh]\npar_type = categorical\nchoices = [fine, coarse]\n"
)
PLAIN = ModelInfo("beam", (TensorInfo("a", (1,)), TensorInfo("n", (1,))), (TensorInfo("y", (1,)),))
MATRIX = ModelInfo("beam", (TensorInfo("x", (2, 2)),), PLAIN.outputs)
Z = (TensorInfo("z", (1,)),)
ASLEEP = ModelInfo("m", PLAIN.inputs, PLAIN.outputs, frozenset({Operation.GRADIENT}))


def evaluated(farm: str, head: str = HEAD) -> EvaluatedModel:
    return read_evaluated_model(read_config(f"{head}\n[farm]\n{farm}"))


def call(farm: str, info: ModelInfo, head: str = HEAD, **point: Any) -> Call:
    return evaluated(farm, head).bound(info).call({"a": 2.5, "n": 4.0, **point})


def entries(made: Call) -> list[Any]:
    return [array.tolist() for array in made.inputs]


def test_parameters_go_to_the_inputs_of_their_names() -> None:
    made = call("model = beam", PLAIN)
    assert (made.model, made.operation, made.config) == ("beam", Operation.EVALUATE, "{}")
    assert entries(made) == [[2.5], [4.0]]
    as_asked = call("model = beam", PLAIN, a=[1.5], n=[2.0])
    assert entries(as_asked) == [[1.5], [2.0]]


def test_a_name_without_an_input_is_a_key_of_the_config() -> None:
    info = ModelInfo("beam", (TensorInfo("a", (1,)),), PLAIN.outputs)
    assert call("model = beam", info).config == '{"n":4}'
    made = call("model = beam", info, FIXED, k=3.0, mesh="coarse")
    assert made.config == '{"k":3,"mesh":"coarse","n":4}'


BY_PLACE = "input.x[0,1] = a\ninput.in0[2] = n\ninput.x[0] = 0.5\ninput.x[3] = -1e-3"
HELD = "input.x = 7\ninput.x[1] = a\ninput.x[2] = n"
TWICE = "input.x = 0\ninput.x[1] = a\ninput.x[2] = a\ninput.level = n"


@pytest.mark.parametrize(
    ("farm", "x", "config"),
    [
        pytest.param(BY_PLACE, [[0.5, 2.5], [4.0, -0.001]], "{}", id="by name and by position"),
        pytest.param(HELD, [[7.0, 2.5], [4.0, 7.0]], "{}", id="a number where no other is"),
        pytest.param(TWICE, [[0.0, 2.5], [2.5, 0.0]], '{"level":4}', id="to several places"),
    ],
)
def test_entries_of_inputs(farm: str, x: list[list[float]], config: str) -> None:
    made = call(f"model = beam\n{farm}", MATRIX)
    assert (entries(made), made.config) == ([x], config)


def test_names_keep_their_case_and_config_values_are_json() -> None:
    farm = """model = beam
input.E = a
config.Mesh = 3
config.solver = Direct
config.flags = [true, null, {"a": 1.5}]
config.limit = NaN
"""
    info = ModelInfo("beam", (TensorInfo("E", (1,)), TensorInfo("n", (1,))), PLAIN.outputs)
    expected = '{"Mesh":3,"flags":[true,null,{"a":1.5}],"limit":"NaN","solver":"Direct"}'
    assert call(farm, info).config == expected


def test_inputs_have_the_types_of_the_model() -> None:
    info = ModelInfo("m", (TensorInfo("a", (1,), "float32"), TensorInfo("n", (), "int64")), ())
    made = call("model = m", ModelInfo(info.name, info.inputs, PLAIN.outputs))
    assert [(a.dtype.name, a.shape) for a in made.inputs] == [("float32", (1,)), ("int64", ())]


@pytest.mark.parametrize(
    ("dtype", "farm", "text"),
    [
        (
            "int64",
            "input.n = a\ninput.a = n",
            "parameter 'a' is continuous, but input 'n' holds wh",
        ),
        ("bytes", "", "parameter 'n' is integer, but input 'n' holds texts or images, bytes"),
        ("bool", "", "input 'n' has type bool, which cannot hold 5"),
        ("int32", "input.n = 0.5\ninput.x = n", "input 'n' has type int32, which cannot hold 0.5"),
        ("uint8", "input.n = -1\ninput.x = n", "input 'n' has type uint8, which cannot hold -1"),
    ],
)
def test_inputs_that_would_change_a_point_are_refused(dtype: str, farm: str, text: str) -> None:
    """0.7 would become 0, and the surrogate would learn a wrong value."""
    inputs = (TensorInfo("a", (1,)), TensorInfo("n", (1,), dtype))
    more = (TensorInfo("x", (1,)),) if "input.x" in farm else ()
    info = ModelInfo("m", inputs + more, PLAIN.outputs)
    with pytest.raises(InvalidInput) as caught:
        evaluated(f"model = m\n{farm}").bound(info)
    assert text in str(caught.value)


def test_calls_do_not_share_arrays() -> None:
    one = evaluated("model = beam").bound(PLAIN)
    first = one.call({"a": 1.0, "n": 1.0})
    one.call({"a": 2.0, "n": 2.0})
    assert entries(first) == [[1.0], [1.0]]
    assert np.isnan(one.binding.fixed).all(), "of every call"


@pytest.mark.parametrize(
    ("farm", "info", "text"),
    [
        ("", MATRIX, "no value for x[0,0], x[0,1], x[1,0], x[1,1]"),
        ("input.x[9] = 1", MATRIX, "'x[9]' is out of range"),
        ("input.x = a", MATRIX, "'a' is one number, but input 'x' has the shape [2, 2]; expected"),
        ("input.a = 1\ninput.in0 = a", PLAIN, "both set a"),
        ("", ModelInfo("m", (TensorInfo("a", (-1,)),), PLAIN.outputs), "'a' varies"),
        ("", ASLEEP, "model 'm' offers no evaluation"),
        (
            *("", ModelInfo("m", PLAIN.inputs, (TensorInfo("y", (2,)),))),
            "outcome.outcome_1 is missing; expected an expression over the outputs of model 'm', "
            "which are y [2]",
        ),
        ("", ModelInfo("m", PLAIN.inputs, (*PLAIN.outputs, *Z)), "which are y [1], z [1]"),
        ("outcome.outcome_1 = q[0]", PLAIN, "names 'q', which is not an output of model 'beam'"),
        ("outcome.outcome_1 = y[1]", PLAIN, "takes y[1] of an array of shape [1]"),
        ("outcome.outcome_1 = y + y[0:0]", PLAIN, "gives 0 numbers"),
    ],
)
def test_models_that_do_not_fit(farm: str, info: ModelInfo, text: str) -> None:
    one = evaluated(f"model = m\n{farm}")
    with pytest.raises(InvalidInput) as caught:
        one.bound(info)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "--param" not in str(caught.value)


def test_texts_are_no_inputs() -> None:
    info = ModelInfo("m", (*PLAIN.inputs, TensorInfo("mesh", (1,))), PLAIN.outputs)
    with pytest.raises(InvalidInput, match="'mesh' is categorical, but 'mesh' is an input"):
        evaluated("model = m", FIXED).bound(info)
    word = FIXED.replace("value = 3", "value = blue")
    info = ModelInfo("m", (*PLAIN.inputs, TensorInfo("k", (1,))), PLAIN.outputs)
    with pytest.raises(InvalidInput, match="'k' is an input: expected a finite number"):
        evaluated("model = m", word).bound(info)


def outcomes(farm: str, info: ModelInfo, *outputs: Any, head: str = HEAD) -> dict[str, float]:
    model = evaluated(f"model = beam\n{farm}", head).bound(info)
    return model.outcomes(Result(tuple(np.array(output) for output in outputs)))


def test_the_only_output_with_one_entry_is_the_only_outcome() -> None:
    info = ModelInfo("m", PLAIN.inputs, (TensorInfo("field", (9,)), TensorInfo("y", (1,))))
    assert outcomes("", info, np.zeros(9), [2.5]) == {"outcome_1": 2.5}


def test_outputs_of_the_outcomes_names() -> None:
    info = ModelInfo(
        "m",
        PLAIN.inputs,
        (TensorInfo("Fails", (1,)), TensorInfo("cost", (1,)), TensorInfo("z", (1,))),
    )
    found = outcomes("", info, [1.0], [-2.0], [0.0], head=TWO)
    assert found == {"cost": -2.0, "Fails": 1.0}


def test_expressions_over_outputs_by_name_and_position() -> None:
    info = ModelInfo("m", PLAIN.inputs, (TensorInfo("J-1", (1,)), TensorInfo("stress", (2, 2))))
    farm = "outcome.cost = -out0 + stress[1, 0]\noutcome.Fails = max(stress) > 3  # a comment"
    found = outcomes(farm, info, [1.0], [1.0, 2.0, 3.0, 4.0], head=TWO)  # flat, as in some models
    assert found == {"cost": 2.0, "Fails": 1.0}


def test_a_missing_number_stays_one() -> None:
    found = outcomes("outcome.outcome_1 = y > 3", PLAIN, [math.nan])
    assert math.isnan(found["outcome_1"])
    binary = HEAD.replace("continuous", "binary")
    assert math.isnan(outcomes("", PLAIN, [math.nan], head=binary)["outcome_1"])


def test_a_binary_outcome_is_zero_or_one() -> None:
    with pytest.raises(InvalidOutput, match=r"'outcome_1' is binary, but its value is 3\.2; "):
        outcomes("", PLAIN, [3.2], head=HEAD.replace("continuous", "binary"))


def test_an_expression_may_have_no_value() -> None:
    with pytest.raises(InvalidInput, match=r"\[farm\] outcome.outcome_1 = 1 / y: it has no value"):
        outcomes("outcome.outcome_1 = 1 / y", PLAIN, [0.0])


def test_settings() -> None:
    plain = evaluated("model = beam")
    assert (plain.in_flight, plain.budget, plain.retries, plain.seed) == (None, None, 1, None)
    assert (plain.time_limit_s, plain.max_time_s, plain.fill) == (None, None, True)
    full = evaluated(
        "MODEL = beam\nin_flight = 8\nbudget = 100\nretries = 0\nseed = 7\nfill = no\n"
        "time_limit = 1.5\nmax_time = 60"
    )
    assert (full.in_flight, full.budget, full.retries, full.seed) == (8, 100, 0, 7)
    assert (full.time_limit_s, full.max_time_s, full.fill) == (1.5, 60.0, False)


@pytest.mark.parametrize(
    ("farm", "text"),
    [
        ("budget = 5", "[farm] model is missing; expected the name of a model"),
        ("model = m\nbudgets = 5", "[farm] budgets is not known; expected one of model, in_flight"),
        ("model = m\ninput. = 5", "[farm] input. is not known"),
        ("model = m\nbudget = 0", "[farm] budget = 0: expected a whole number, 1 or more"),
        ("model = m\nin_flight = 2.5", "[farm] in_flight = 2.5: expected a whole number, 1 or"),
        ("model = m\nretries = -1", "[farm] retries = -1: expected a whole number, 0 or more"),
        ("model = m\nretries = many", "[farm] retries = many: expected a whole number, 0 or more"),
        ("model = m\ntime_limit = 0", "[farm] time_limit = 0: expected seconds, more than 0"),
        ("model = m\nmax_time = inf", "[farm] max_time = inf: expected seconds, more than 0"),
        ("model = m\ninput.x = b", "[farm] input.x = b: expected a number or a parameter, a, n"),
        ("model = m\ninput.a = 5", "input.a takes the place of parameter 'a', which then goes"),
        ("model = m\noutcome.y = 1", "outcome.y is not an outcome; expected one of outcome_1"),
        ("model = m\noutcome.outcome_1 = y.T", "outcome.outcome_1 = y.T: it holds y.T, which is"),
        (
            "model = m\noutcome.outcome_1 =",
            "[farm] outcome.outcome_1 = : expected an expression over the model's outputs",
        ),
    ],
)
def test_sections_that_are_refused(farm: str, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        evaluated(farm)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_is_no_judge_of_pairs() -> None:
    pairs = HEAD.replace("[continuous]", "[binary]\nstimuli_per_trial = 2")
    with pytest.raises(UnsupportedFeature, match=r"\[farm\] needs stimuli_per_trial = 1"):
        evaluated("model = m", pairs)


def test_without_a_section_no_model_is_evaluated() -> None:
    with pytest.raises(FarmError, match=r"section \[farm\] is missing; expected model = "):
        read_evaluated_model(read_config(HEAD))


def test_common_options_are_not_those_of_farm() -> None:
    head = HEAD.replace("[common]", "[common]\nseed = 5\nbudget = none")
    assert evaluated("model = m", head).seed is None
