"""Values of messages: every form that is understood, and none so strange that it is not refused."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import InvalidInput, UnsupportedFeature
from farm.experiment import messages
from farm.experiment.config import Parameter, ParameterKind
from farm.experiment.grammar import read_config
from farm.experiment.space import Space
from farm.experiment.work import Answered, Query, QueryKind
from tests.experiment.talk import TWO, Fake, state

STRANGE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(
        ["", "1", "nan", "1e999", "x1", "outcome_1", "0x10", "1_0", " 2 ", "é", "[1]"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["x1", "x2", "outcome_1", "0", "1", "z"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
KEYS = {
    "setup": ["config_str", "config_dict", "more"],
    "ask": ["num_points", "fixed_pars", "more"],
    "tell": ["config", "outcome", "model_data", "note"],
    "query": ["query_type", "x", "y", "constraints", "probability_space", "max_time"],
    "get_config": ["section", "property"],
    "resume": ["strat_id"],
    "run": ["strat_id", "in_flight", "budget"],
    "info": ["any"],
}
GOOD: dict[str, Any] = {
    "config": {"x1": 1, "x2": [2]},
    "outcome": 0.5,
    "query_type": "prediction",
    "x": {"x1": 1, "x2": [2]},
    "y": 1,
}


@given(st.data())
def test_whatever_a_client_says_it_has_an_answer_or_an_error_and_nothing_is_half_done(
    data: st.DataObject,
) -> None:
    fake = Fake()
    fake.setup()
    fake.tell({"x1": [1, 2], "x2": [3, 4]}, [0.5, 1.5])
    fake.ask()
    type = data.draw(st.sampled_from(list(KEYS)))
    message = {
        key: data.draw(st.just(GOOD[key]) | STRANGE if key in GOOD else STRANGE)
        for key in data.draw(st.lists(st.sampled_from(KEYS[type]), unique=True))
    }
    before, events = state(fake.current), len(fake.server.events)
    refused = None
    try:
        json.dumps(fake.say(type, message), allow_nan=False)
    except (InvalidInput, UnsupportedFeature) as error:
        refused = error.message
    if refused is not None:
        assert "\n" not in refused
        assert len(refused) < 400
        assert len(fake.server.events) == events
        assert state(fake.server.experiments[0]) == before


@pytest.mark.parametrize("value", [0, 3, 7.0, "5", " 4 ", 10])
def test_whole_numbers(value: Any) -> None:
    assert messages.whole_number({"n": value}, "n", least=0, most=10) == float(value)


@pytest.mark.parametrize("value", [-1, 11, 0.5, True, "five", [5], math.inf, 10**400, "1_0"])
def test_what_is_no_whole_number(value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"'n' is .*; expected a whole number from 0 to 10"):
        messages.whole_number({"n": value}, "n", least=0, most=10)


def test_what_is_not_there_or_null_has_its_default() -> None:
    for message in ({}, {"n": None}):
        assert messages.whole_number(message, "n", least=0) is None
        assert messages.text(message, "n") is None
        assert messages.flag(message, "n", True) is True
        assert messages.experiment_number(message) is None


def test_held_coordinates_are_within_bounds_and_in_the_users_words() -> None:
    space = Space(
        [
            Parameter("x", upper=10.0),
            Parameter("k", ParameterKind.FIXED, value="blue"),
            Parameter("shape", ParameterKind.CATEGORICAL, upper=1.0, choices=("round", "flat")),
        ]
    )
    assert messages.held(space, {"x": [2], "shape": "flat", "k": "blue"}, "constraints") == {
        "x": 2.0,
        "shape": 1.0,
    }
    assert messages.held(space, {"2": ["round"], "0": "10"}, "constraints") == {
        "x": 10.0,
        "shape": 0.0,
    }
    assert messages.held(space, None, "constraints") == {}
    for values, says in (
        ({"x": 10.5}, "constraints holds 'x' at 10.5; expected a value from 0 to 10"),
        ({"k": "red"}, "constraints holds 'k' at 'red', but it is fixed at 'blue'"),
        ({"shape": "oval"}, "'shape' is 'oval'; expected one of round, flat"),
    ):
        with pytest.raises(InvalidInput, match=says):
            messages.held(space, values, "constraints")


@pytest.mark.parametrize(
    ("options", "seed"),
    [("", 5), ("seed = 3", 3), ("seed = none", 5), ("seed = 1.5", 5), (f"seed = {2**31 + 4}", 4)],
)
def test_the_seed_of_an_experiment(options: str, seed: int) -> None:
    config = read_config(TWO.replace("[common]", f"[common]\n{options}"))
    assert messages.seed_of(config, 5) == seed


def test_an_answer_to_a_query_has_a_list_for_several_outcomes_alone() -> None:
    fake = Fake()
    fake.setup()
    fake.tell({"x1": 1, "x2": 2}, 3)
    config = fake.current.config
    query = Query(config, 0, QueryKind.MAX, fake.current.data(0))
    for y, shown in (((0.5,), 0.5), ((0.5, 1.5), [0.5, 1.5])):
        answer = messages.query_answer(query, {}, Answered(np.array([[[1.0, 2.0]]]), y))
        assert answer["y"] == shown
        assert answer["x"] == {"x1": [1.0], "x2": [2.0]}


def test_errors_show_values_in_few_characters() -> None:
    assert messages.shown(None) == "missing"
    assert messages.shown("a") == "'a'"
    assert len(messages.shown("a" * 10_000)) == 60
