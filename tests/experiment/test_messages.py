"""Values of messages: every accepted form, and refusals of malformed ones."""

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
from farm.experiment.config.reader import read_config
from farm.experiment.work import QueryKind
from tests.experiment.talk import MODEL, OUTCOMES, TWO, Fake, Talk, replayed, state

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


@pytest.mark.parametrize(
    "value", [-1, 11, 0.5, True, "five", [5], {}, math.nan, math.inf, 10**400, "1_0"]
)
def test_what_is_no_whole_number(value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"'n' is .*; expected a whole number from 0 to 10"):
        messages.whole_number({"n": value}, "n", least=0, most=10)


def test_what_is_not_there_or_null_has_its_default() -> None:
    for message in ({}, {"n": None}):
        assert messages.whole_number(message, "n", least=0) is None
        assert messages.text(message, "n") is None
        assert messages.flag(message, "n", True) is True


@pytest.mark.parametrize(
    ("options", "seed"),
    [("", 5), ("seed = 3", 3), ("seed = none", 5), ("seed = 1.5", 5), (f"seed = {2**31 + 4}", 4)],
)
def test_the_seed_of_an_experiment(options: str, seed: int) -> None:
    config = read_config(TWO.replace("[common]", f"[common]\n{options}"))
    assert messages.seed_of(config, 5) == seed


# tell


@pytest.mark.parametrize(
    "outcome", [3, 3.0, [3], "3", ["3e0"], [[3]], {"outcome_1": 3}, {"outcome_1": ["3"]}]
)
def test_outcomes_in_all_their_forms(talk: Talk, outcome: Any) -> None:
    assert talk.tell({"x1": "1", "x2": [[2]]}, outcome) == (1, 1)
    assert talk.tell({"x1": [4, 5, 6], "x2": [[7], "8", 9]}, [7, "8", [9]]) == (3, 3)
    data = talk.current.data(0)
    assert data.x[:, 0].tolist() == [[1.0, 2.0], [4.0, 7.0], [5.0, 8.0], [6.0, 9.0]]
    assert data.y.tolist() == [[3.0], [7.0], [8.0], [9.0]]


def test_several_outcomes() -> None:
    talk = Talk()
    talk.setup(OUTCOMES)
    config = {"x1": [1.0, 2.0], "x2": [0.25, 0.5]}
    assert talk.tell(config, {"responded": [0, "1"], "size": [0.5, 0.75]}) == (2, 2)
    assert talk.tell({"x1": 1, "x2": 1}, {"size": [0.25], "responded": True}) == (1, 1)
    assert talk.current.data(0).y.tolist() == [[0.0, 0.5], [1.0, 0.75], [1.0, 0.25]]
    for outcome, says in (
        ({"responded": 1}, "'outcome' names responded; expected responded, size"),
        ({"responded": 1, "size": 2, "extra": 3}, "names responded, size, extra; expected"),
        ({}, "names nothing; expected responded, size"),
        ([0, 1], "expected an object with a number for each trial of responded, size"),
        ({"responded": 0.5, "size": 1}, "'responded' is 0.5; expected 0 or 1"),
        ({"responded": [0, 1], "size": 1}, "'responded' has 2 values, but config has 1 trials"),
    ):
        with pytest.raises(InvalidInput, match=says):
            talk.tell({"x1": 1, "x2": 1}, outcome)
    assert talk.current.told == 3


def test_everything_beside_the_trial_is_kept(talk: Talk) -> None:
    message = {
        "config": {"x1": [1, 2], "x2": [3, 4], "z": [5, 6], "note": "day 2"},
        "outcome": [0, 1],
        "note": "héllo μ",
        "response_time": [0.5, None],
        "deep": {"a": [1, {"b": None}]},
    }
    assert talk.say("tell", message, extra_info={"trial": "a", "response_time": 9}) == {
        "trials_recorded": 2,
        "model_data_added": 2,
    }
    assert talk.last_told.extra == {
        "trial": "a",
        "response_time": [0.5, None],
        "note": "héllo μ",
        "deep": {"a": [1, {"b": None}]},
        "z": [5, 6],
        "config.note": "day 2",
    }
    (again,) = replayed(talk.server.events).values()
    assert state(again) == state(talk.current)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "nan", "-inf"])
def test_outcomes_that_are_not_finite_are_recorded_and_not_modelled(talk: Talk, value: Any) -> None:
    assert talk.tell({"x1": [1, 2], "x2": [3, 4]}, [0.5, value]) == (2, 1)
    assert talk.current.data(0).y.tolist() == [[0.5]]
    assert talk.current.told == 2
    assert talk.say("info")["current_strat_data_pts"] == 1


@pytest.mark.parametrize(
    ("model_data", "added"), [(True, 1), (False, 0), (None, 1), (0, 0), ("false", 0), ("True", 1)]
)
def test_trials_that_are_not_for_the_model(talk: Talk, model_data: Any, added: int) -> None:
    assert talk.tell({"x1": 1, "x2": 2}, 3, model_data=model_data) == (1, added)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({}, "'config' is missing in the tell; expected values of x1, x2"),
        ({"config": None, "outcome": 1}, "'config' is missing"),
        ({"config": [1, 2], "outcome": 1}, "expected an object of parameters"),
        ({"config": {"x1": 1, "x2": 2}}, "'outcome' is missing in the tell; expected a number"),
        ({"config": {"x1": 1, "x2": 2}, "outcome": "1_0"}, "is '1_0'; expected a number"),
        ({"config": {"x1": 1}, "outcome": 1}, "parameter 'x2' is missing in config"),
        ({"config": {"x1": [1, 2], "x2": [1, 2]}, "outcome": 1}, "has 1 values, but config has 2"),
        ({"config": {"x1": 1, "x2": 1}, "outcome": [1, 2]}, "has 2 values, but config has 1"),
        ({"config": {"x1": 1, "x2": 1}, "outcome": None}, "'outcome_1' is missing; expected a num"),
        ({"config": {"x1": 1, "x2": 1}, "outcome": "up"}, "'outcome_1' is 'up'; expected a num"),
        ({"config": {"x1": 1, "x2": 1}, "outcome": {"y": 1}}, "names y; expected outcome_1"),
        ({"config": {"x1": 1, "x2": 1}, "outcome": 1, "model_data": "maybe"}, "true or false"),
    ],
)
def test_a_tell_that_is_refused_leaves_nothing(talk: Talk, message: Any, says: str) -> None:
    talk.ask(2)
    before, events = state(talk.current), talk.server.events[:]
    with pytest.raises(InvalidInput) as caught:
        talk.say("tell", message)
    assert says in caught.value.message
    assert state(talk.current) == before
    assert talk.server.events == events


def test_a_tell_is_matched_to_an_ask_by_its_values(talk: Talk) -> None:
    config = talk.ask(4)
    # In single precision, in another order, as text, and one that was never asked for.
    x1 = [float(np.float32(v)) for v in config["x1"]]
    x2 = [f"{v:.9g}" for v in config["x2"]]
    talk.tell({"x1": [x1[2], 9.0, x1[0]], "x2": [x2[2], 9.0, x2[0]]}, [1, 2, 3])
    assert talk.last_told.ids == (2, None, 0)
    assert list(talk.current.pending) == [1, 3]
    # A trial that is not modelled also counts as an answer.
    talk.tell({"x1": x1[1], "x2": x2[1]}, 0.0, model_data=False, error="it broke")
    talk.tell({"x1": x1[3], "x2": x2[3]}, math.nan)
    assert not talk.current.pending


# query


def test_a_query_uses_the_next_strategy_with_a_model_on_all_data(fake: Fake) -> None:
    query = fake.query()
    assert (query.kind, query.strategy) == (QueryKind.MAX, 1)
    assert query.data.y.tolist() == [[0.5], [1.5]]
    assert fake.say("info")["current_strat_can_fit"] is False


def test_answers_to_queries_have_the_form_that_clients_read(fake: Fake) -> None:
    nulls = {"x": None, "y": None, "constraints": None}
    assert fake.say("query", {"query_type": "max", "probability_space": False, **nulls}) == {
        "query_type": "max",
        "probability_space": False,
        "constraints": {},
        "x": {"x1": [1.5], "x2": [1.5]},
        "y": 0.25,
    }
    unity = {"query_type": "min", "x": {}, "y": 0.0, "constraints": {"x1": [0.5]}}
    answer = fake.say("query", unity)
    assert answer["query_type"] == "min"
    assert answer["constraints"] == {"x1": [0.5]}
    prediction = {"query_type": "prediction", "x": {"x1": 5, "x2": ["99"]}}
    assert fake.say("query", prediction)["x"] == {"x1": [5.0], "x2": [99.0]}


def test_what_a_query_says_is_what_is_done(fake: Fake) -> None:
    for form in ({"0": 2}, {"x1": 2}, {"x1": [2.0]}, {"0": ["2"]}):
        assert fake.query(constraints=form).constraints == {"x1": 2.0}
    inverse = fake.query(query_type="inverse", y=["0.75"], max_time=0.5)
    assert (inverse.kind, inverse.y, inverse.max_time_s) == (QueryKind.INVERSE, 0.75, 0.5)
    prediction = fake.query(query_type="prediction", x={"x1": [1], "x2": 2, "other": 3})
    assert prediction.x is not None
    assert prediction.x.tolist() == [[[1.0, 2.0]]]
    assert fake.query(query_type="max", y=0.0, x={"x1": 1}).x is None


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"query_type": "median"}, "'query_type' is 'median'; expected one of max, min"),
        ({"query_type": ["max"]}, "expected one of max"),
        ({"query_type": "prediction"}, "'x' is missing; expected values of x1, x2"),
        ({"query_type": "prediction", "x": {"x1": 1}}, "parameter 'x2' is missing"),
        ({"query_type": "prediction", "x": {"x1": [1, 2], "x2": [1, 2]}}, "'x' has 2 points"),
        ({"query_type": "inverse"}, "'y' is missing; expected the value"),
        ({"query_type": "inverse", "y": "high"}, "'y' is 'high'"),
        ({"probability_space": True}, "not all outcomes are binary; expected false for outcome_1"),
        ({"constraints": {"5": 1}}, "constraints names '5'"),
        ({"max_time": 0}, "'max_time' is 0; expected seconds above 0"),
    ],
)
def test_queries_that_are_refused(fake: Fake, message: Any, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        fake.say("query", message)
    assert says in caught.value.message


def test_a_query_before_any_data_is_refused() -> None:
    fake = Fake()
    fake.setup(MODEL)
    fake.tell({"x1": 1, "x2": 1}, math.nan)
    with pytest.raises(InvalidInput, match="no modelled trial is recorded yet"):
        fake.say("query", {})


def test_of_a_pair_one_stimulus_is_predicted_or_both() -> None:
    fake = Fake()
    models = "model = PairwiseProbitModel\nmin_asks"
    fake.setup(
        MODEL.replace("[continuous]", "[binary]")
        .replace("[common]", "[common]\nstimuli_per_trial = 2")
        .replace("model = GPRegressionModel\nmin_asks", models)
    )
    fake.tell({"x1": [[1, 2]], "x2": [[3, 4]]}, 1)
    one = fake.say("query", {"query_type": "prediction", "x": {"x1": [0.5], "x2": [0.25]}})
    assert one["x"] == {"x1": [0.5], "x2": [0.25]}
    both = fake.say("query", {"query_type": "prediction", "x": {"x1": [[1, 2]], "x2": [[3, 4]]}})
    assert both["x"] == {"x1": [[1.0, 2.0]], "x2": [[3.0, 4.0]]}
    assert fake.say("query", {"probability_space": True})["x"] == {"x1": [1.5], "x2": [1.5]}


@pytest.mark.parametrize(
    ("message", "count"),
    [
        ({}, 0),
        ({"config": {"x": 1.0}, "outcome": 2.0}, 0),
        ({"config": {"x": [1.0] * 7, "y": 0.0}, "outcome": 2.0}, 7),
        ({"config": [1.0] * 5, "outcome": {"a": [1.0] * 9}}, 9),
    ],
)
def test_how_many_trials_a_tell_has_at_most(message: dict[str, Any], count: int) -> None:
    assert messages.most_trials(message) == count
