"""Conversations as clients hold them: every message, its forms, its answer, and what it leaves."""

from __future__ import annotations

import math
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from farm.errors import FarmError, InvalidInput, UnsupportedFeature
from farm.experiment.events import Asked, Event, Finished, Released, SetUp, Told
from farm.experiment.experiment import PENDING_LIMIT_S
from farm.experiment.session import MAX_POINTS, SETUPS, RunAction, RunCommand
from farm.experiment.work import QueryKind
from tests.experiment.talk import TWO, Fake, Talk, replayed, state

TYPES = """
[common]
parnames = [c, l, n, flag, k, colour, shape]
outcome_types = [continuous]
strategy_names = [init_strat]
[c]
par_type = continuous
lower_bound = -1
upper_bound = 1
[l]
par_type = continuous
lower_bound = 0.001
upper_bound = 10
log_scale = True
[n]
par_type = integer
lower_bound = 1
upper_bound = 5
[flag]
par_type = binary
[k]
par_type = fixed
value = 4.5
[colour]
par_type = fixed
value = blue
[shape]
par_type = categorical
choices = [round, square, flat]
[init_strat]
generator = SobolGenerator
min_asks = 6
"""
PAIRS = TWO.replace("[continuous]", "[binary]").replace("[common]", "[common]\nstimuli_per_trial=2")
MANUAL = TWO.replace(
    "generator = SobolGenerator\nmin_asks = 6",
    "generator = ManualGenerator\n[ManualGenerator]\npoints = [[1, 0.5], [2, 3], [3, 0], [4.5, 1]]"
    "\nshuffle = False",
)
OUTCOMES = TWO.replace(
    "outcome_types = [continuous]",
    "outcome_types = [binary, continuous]\noutcome_names = [responded, size]",
)
MODEL = (
    TWO.replace("strategy_names = [init_strat]", "strategy_names = [init_strat, opt_strat]")
    + """
[opt_strat]
generator = OptimizeAcqfGenerator
model = GPRegressionModel
min_asks = 4
[OptimizeAcqfGenerator]
acqf = qLogNoisyExpectedImprovement
"""
)
FARM = TWO + "\n[farm]\nmodel = branin\noutcome.outcome_1 = -out0[0]\n"


@pytest.fixture
def talk() -> Talk:
    talk = Talk()
    talk.setup()
    return talk


@pytest.fixture
def fake() -> Fake:
    """In the strategy with a model, two trials told."""
    fake = Fake()
    fake.setup(MODEL)
    fake.tell({"x1": [1, 2], "x2": [3, 4]}, [0.5, 1.5])
    return fake


def told(talk: Talk) -> Told:
    event = talk.server.events[-1]
    assert isinstance(event, Told)
    return event


# A whole conversation


def test_the_conversation_of_a_sobol_experiment() -> None:
    """As recorded between the stock client and the stock server; only the points are farm's."""
    talk = Talk()
    text = TWO + "[metadata]\nexperiment_name = sobol demo\nparticipant_id = p01\nsite = lab3\n"
    assert talk.say("setup", {"config_str": text}) == {"strat_id": 0}
    assert talk.say("parameters", {}) == {"x1": [-5.0, 10.0], "x2": [0.0, 15.0]}
    info = talk.say("info", {})
    assert UUID(info.pop("exp_id"))
    assert info == {
        "db_name": "experiments.db",
        "strat_count": 1,
        "all_strat_names": ["init_strat"],
        "current_strat_index": 0,
        "current_strat_name": "init_strat",
        "current_strat_data_pts": 0,
        "current_strat_model": "model not set",
        "current_strat_acqf": "acqf not set",
        "current_strat_finished": False,
        "current_strat_can_fit": False,
    }
    assert talk.say("get_config", {"section": "init_strat", "property": "min_asks"}) == {
        "init_strat": {"min_asks": "6"}
    }
    for tag in ("r0", "r1"):
        answer = talk.say("ask", {"num_points": 1})
        assert list(answer) == ["config", "is_finished", "num_points"]
        assert list(answer["config"]) == ["x1", "x2"]
        assert answer["is_finished"] is False
        config = {name: value for name, [value] in answer["config"].items()}
        assert talk.tell(config, 24.5, model_data=True, response_time=0.25, tag=tag) == (1, 1)
        assert told(talk).extra == {"response_time": 0.25, "tag": tag}
    config = talk.ask(3)
    assert [len(values) for values in config.values()] == [3, 3]
    assert talk.tell(config, [151.0, 66.25, 118.5]) == (3, 3)
    assert talk.tell({"x1": 0.5, "x2": 2.0}, 28.5) == (1, 1)
    assert talk.tell({"x1": [0.6], "x2": [2.0]}, 27.5, model_data=False) == (1, 0)
    assert talk.say("info", "")["current_strat_data_pts"] == 6
    # The sixth point finishes the strategy, in the answer that gives it.
    assert talk.say("ask", {"num_points": 1})["is_finished"] is True
    assert talk.say("info", {})["current_strat_finished"] is True
    assert talk.say("ask", {"num_points": 1})["is_finished"] is True
    with pytest.raises(InvalidInput, match="needs a model, but no strategy"):
        talk.say("query", {"query_type": "max", "x": None, "y": None, "constraints": None})
    assert talk.say("exit", "") == {"termination_type": "Terminate", "success": True}
    assert talk.closed
    assert talk.server.experiments[0].told == 7


def test_two_experiments_and_resume() -> None:
    talk = Talk()
    assert talk.say("parameters", {}) == {}
    assert talk.setup(TWO + "[metadata]\nexperiment_id = alpha-id\n") == 0
    talk.tell(talk.ask(), 1.5)
    assert talk.setup(TWO.replace("= 10", "= 100")) == 1
    assert talk.say("parameters", {})["x1"] == [-5.0, 100.0]
    info = talk.say("info", {})
    assert (info["current_strat_index"], info["strat_count"]) == (1, 2)
    # A setup without an id belongs to what the same session did before.
    assert info["exp_id"] == "alpha-id"
    for number in (0, "0", 0.0):
        assert talk.say("resume", {"strat_id": number}) == {"strat_id": 0}
    assert talk.say("info", {})["current_strat_data_pts"] == 1
    assert talk.say("finish_strategy", {}) == {
        "finished_strategy": "init_strat",
        "finished_strat_idx": 0,
    }
    # Another connection: other experiments are to be had, ids are its own.
    other = Talk(talk.server)
    assert other.say("resume", {"strat_id": 1}) == {"strat_id": 1}
    assert other.setup() == 2
    assert other.say("info", {})["exp_id"] != "alpha-id"
    assert talk.say("info", {})["current_strat_index"] == 0
    assert talk.say("info", {})["strat_count"] == 3


def test_everything_comes_back_from_its_events(talk: Talk) -> None:
    talk.tell(talk.ask(3), [1, 2, math.nan])
    talk.ask(2)
    talk.say("finish_strategy")
    talk.setup(PAIRS)
    talk.tell(talk.ask(1), 1)
    talk.ask()
    again = replayed(talk.server.events)
    assert {n: state(e) for n, e in again.items()} == {
        n: state(e) for n, e in talk.server.experiments.items()
    }


@pytest.mark.parametrize(
    "type", ["ask", "tell", "query", "info", "get_config", "finish_strategy", "can_model", "run"]
)
def test_before_any_setup_there_is_nothing_to_talk_about(type: str) -> None:
    with pytest.raises(InvalidInput, match="no experiment is current; send a setup or a resume"):
        Talk().say(type, {"config": {"x": 1}, "outcome": 1})


# setup


def test_a_config_as_a_dictionary_is_the_same_as_its_text() -> None:
    talk = Talk()
    talk.setup()
    talk.setup(
        {
            "common": {
                "parnames": ["x1", "x2"],
                "outcome_types": "[continuous]",
                "strategy_names": ["init_strat"],
            },
            "x1": {"par_type": "continuous", "lower_bound": -5, "upper_bound": "10"},
            "x2": {"par_type": "continuous", "lower_bound": 0.0, "upper_bound": 15},
            "init_strat": {"generator": "SobolGenerator", "min_asks": 6},
            "SobolGenerator": {"seed": 123},
        }
    )
    first, second = talk.server.experiments.values()
    assert first.config.parameters == second.config.parameters
    assert first.config.strategies == second.config.strategies
    points = [talk.ask(3)]
    talk.say("resume", {"strat_id": 0})
    assert points == [talk.ask(3)]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({}, "neither of config_str and config_dict"),
        (None, "neither of config_str and config_dict"),
        ({"config_str": None}, "neither"),
        ({"config_str": TWO, "config_dict": {}}, "both of config_str and config_dict"),
        ({"config_str": TWO, "colour": "red"}, "setup has 'colour'"),
        ({"config_str": 5}, "config_str is 5; expected INI text"),
        ({"config_dict": "text"}, "config_dict is 'text'; expected an object"),
        ({"config_dict": {"common": 1}}, "common"),
        ({"config_str": "parnames = [x]\n"}, "section"),
        ({"config_str": TWO.replace("parnames = [x1, x2]", "")}, "parnames"),
        ({"config_str": TWO.replace("SobolGenerator", "NoGenerator")}, "NoGenerator"),
        ({"config_str": TWO.replace("lower_bound = 0", "lower_bound = 20")}, "x2"),
        ({"config_str": FARM.replace("-out0[0]", "open(1)")}, "open"),
    ],
)
def test_a_setup_that_fails_leaves_nothing(message: Any, says: str) -> None:
    talk = Talk()
    talk.setup(TWO.replace("x1", "first").replace("x2", "second"))
    before = talk.server.events[:]
    with pytest.raises(FarmError) as caught:
        talk.say("setup", message)
    assert says in caught.value.message
    assert "\n" not in caught.value.message
    assert talk.server.events == before
    assert talk.say("info")["strat_count"] == 1
    assert list(talk.ask()) == ["first", "second"]
    assert talk.setup() == 1
    assert list(talk.ask()) == ["x1", "x2"]


def test_a_setup_that_cannot_be_kept_leaves_nothing(talk: Talk) -> None:
    step = talk.step("setup", {"config_str": MANUAL})
    assert isinstance(step.events[0], SetUp)
    # Nobody keeps the event and nobody takes the step.
    assert talk.session.current == 0
    assert talk.say("info")["strat_count"] == 1
    assert talk.setup(MANUAL) == 1


def test_chance_is_of_the_config_or_of_the_number() -> None:
    talk = Talk()
    plain = TWO.replace("[SobolGenerator]\nseed = 123\n", "")
    talk.setup(plain)
    talk.setup(plain)
    talk.setup(plain.replace("[common]", "[common]\nseed = 7"))
    talk.setup(FARM + "seed = 8\n")
    seeds = [event.seed for event in talk.server.events if isinstance(event, SetUp)]
    assert seeds == [0, 1, 7, 8]
    asked = [str(talk.say("resume", {"strat_id": n}) and talk.ask()) for n in range(3)]
    assert len(set(asked)) == 3


def test_what_is_understood_as_something_else_is_said_in_info() -> None:
    talk = Talk()
    talk.setup(TWO.replace("outcome_types = [continuous]", "outcome_type = single_continuous"))
    assert any("single_continuous" in note for note in talk.say("info")["notes"])


# ask


@pytest.mark.parametrize("message", [None, "", {}, {"num_points": None}, {"num_points": "1"}])
def test_one_point_is_what_is_asked_for_by_default(talk: Talk, message: Any) -> None:
    assert talk.say("ask", message)["num_points"] == 1


def test_no_points_change_nothing(talk: Talk) -> None:
    before = state(talk.current)
    answer = talk.say("ask", {"num_points": 0})
    assert answer == {"config": {"x1": [], "x2": []}, "is_finished": False, "num_points": 0}
    assert state(talk.current) == before


@pytest.mark.parametrize(
    "count", [-1, 1.5, "many", [1], {}, True, math.nan, MAX_POINTS + 1, 10**30, "1e400"]
)
def test_numbers_of_points_that_are_none(talk: Talk, count: Any) -> None:
    before = state(talk.current)
    with pytest.raises(InvalidInput, match=r"'num_points' is .*; expected a whole number from 0"):
        talk.say("ask", {"num_points": count})
    assert state(talk.current) == before


def test_asks_of_any_size_give_the_same_sequence(talk: Talk) -> None:
    one_by_one = [talk.ask() for _ in range(5)]
    talk.setup()
    assert talk.ask(5) == {
        name: [value for config in one_by_one for value in config[name]] for name in ("x1", "x2")
    }


def test_all_kinds_of_parameters_come_and_go_in_the_users_words() -> None:
    talk = Talk()
    talk.setup(TYPES)
    assert talk.say("parameters") == {
        "c": [-1.0, 1.0],
        "l": [0.001, 10.0],
        "n": [1.0, 5.0],
        "flag": [0.0, 1.0],
        "k": [0.0, 1.0],
        "colour": [0.0, 1.0],
        "shape": [0.0, 2.0],
    }
    config = talk.ask(20)
    assert list(config) == ["c", "l", "n", "flag", "k", "colour", "shape"]
    assert set(config["n"]) == {1.0, 2.0, 3.0, 4.0, 5.0}
    assert set(config["flag"]) == {0.0, 1.0}
    assert set(config["k"]) == {4.5}
    assert set(config["colour"]) == {"blue"}
    assert set(config["shape"]) == {"round", "square", "flat"}
    assert talk.tell(config, list(range(20))) == (20, 20)
    assert not talk.current.pending
    assert told(talk).extra == {}, "fixed ones are what they are"
    talk.tell({name: values[:2] for name, values in config.items()} | {"k": [4.5, 9]}, [1, 2])
    assert told(talk).extra == {"k": [4.5, 9]}, "or not"


def test_pairs_are_pairs() -> None:
    talk = Talk()
    talk.setup(PAIRS)
    config = talk.ask(2)
    assert [[len(pair) for pair in pairs] for pairs in config.values()] == [[2, 2], [2, 2]]
    assert talk.tell(config, [0, 1]) == (2, 2)
    assert talk.tell({"x1": [1, 2], "x2": [3, 4]}, 1) == (1, 1)
    assert talk.current.told == 3


def test_parameters_that_are_held(talk: Talk) -> None:
    answer = talk.say("ask", {"num_points": 3, "fixed_pars": {"x1": 2, "1": ["7.5"]}})
    assert answer["config"] == {"x1": [2.0] * 3, "x2": [7.5] * 3}
    for fixed, says in (
        ({"z": 1}, "fixed_pars names 'z'"),
        ({"2": 1}, "fixed_pars names '2'"),
        ({"x1": "much"}, "'x1' is 'much'; expected a finite number"),
        ({"x1": 11}, "fixed_pars holds 'x1' at 11; expected a value from -5 to 10"),
        ([1], r"fixed_pars is \[1\]"),
    ):
        with pytest.raises(InvalidInput, match=says):
            talk.say("ask", {"fixed_pars": fixed})


def test_a_list_of_points_that_runs_out() -> None:
    talk = Talk()
    talk.setup(MANUAL)
    assert talk.ask(3) == {"x1": [1.0, 2.0, 3.0], "x2": [0.5, 3.0, 0.0]}
    assert talk.say("ask", {"num_points": 5}) == {
        "config": {"x1": [4.5], "x2": [1.0]},
        "is_finished": False,
        "num_points": 1,
    }
    count = len(talk.server.events)
    assert talk.say("ask")["num_points"] == 0
    assert len(talk.server.events) == count, "nothing has happened"
    talk.tell({"x1": 1, "x2": 0.5}, 1)
    assert talk.say("ask") == {
        "config": {"x1": [], "x2": []},
        "is_finished": True,
        "num_points": 0,
    }


def test_an_ask_waits_for_others_and_counts_when_its_turn_has_come(talk: Talk) -> None:
    assert talk.session.turn(talk.request("ask")) == 0
    assert talk.session.turn(talk.request("setup")) == SETUPS
    for type in ("tell", "query", "info", "resume", "exit", "parameters"):
        assert talk.session.turn(talk.request(type)) is None
    # Tells do not wait: one comes while points are made.
    step = talk.step("ask", {"num_points": 2})
    talk.tell({"x1": 1, "x2": 2}, 3.0)
    talk.do(step)
    assert talk.current.snapshot().asked == 2
    assert [e.ids for e in talk.server.events if isinstance(e, Asked)] == [(0, 1)]


def test_points_that_nobody_tells_are_released_in_the_end(talk: Talk) -> None:
    talk.ask(2)
    talk.now += PENDING_LIMIT_S / 2
    talk.ask()
    talk.now += PENDING_LIMIT_S / 2 + 1
    talk.ask()
    assert [e.ids for e in talk.server.events if isinstance(e, Released)] == [(0, 1)]
    assert list(talk.current.pending) == [2, 3]


# tell


@pytest.mark.parametrize(
    ("config", "outcome"),
    [
        ({"x1": 1, "x2": 2}, 3),
        ({"x1": [1], "x2": [2]}, 3.0),
        ({"x1": [[1]], "x2": [[2]]}, [3]),
        ({"x1": "1", "x2": ["2.0"]}, "3"),
        ({"x1": [1.0], "x2": 2}, ["3e0"]),
        ({"x1": 1, "x2": 2}, [[3]]),
        ({"x1": 1, "x2": 2}, {"outcome_1": 3}),
        ({"x1": 1, "x2": 2}, {"outcome_1": ["3"]}),
    ],
)
def test_one_trial_in_all_its_forms(talk: Talk, config: Any, outcome: Any) -> None:
    assert talk.tell(config, outcome) == (1, 1)
    data = talk.current.data(0)
    assert data.x.tolist() == [[[1.0, 2.0]]]
    assert data.y.tolist() == [[3.0]]


@pytest.mark.parametrize(
    "config",
    [{"x1": [1, 2, 3], "x2": [4, 5, 6]}, {"x1": [[1], [2], [3]], "x2": [["4"], [5.0], [6]]}],
)
def test_several_trials_in_all_their_forms(talk: Talk, config: Any) -> None:
    assert talk.tell(config, [7, "8", [9]]) == (3, 3)
    assert talk.current.data(0).x.tolist() == [[[1.0, 4.0]], [[2.0, 5.0]], [[3.0, 6.0]]]
    assert talk.current.data(0).y.tolist() == [[7.0], [8.0], [9.0]]


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


def test_points_need_not_have_been_asked_for_nor_lie_within_bounds(talk: Talk) -> None:
    assert talk.tell({"x1": 55, "x2": -7}, 1.0) == (1, 1)
    assert told(talk).ids == (None,)


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
    assert told(talk).extra == {
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
        ({"config": {"x1": 1}, "outcome": 1}, "parameter 'x2' is missing in config"),
        ({"config": {"q": 1}, "outcome": 1}, "parameter 'x1' is missing in config"),
        ({"config": {"x1": "a", "x2": 1}, "outcome": 1}, "'x1' is 'a'; expected a finite number"),
        ({"config": {"x1": None, "x2": 1}, "outcome": 1}, "'x1' is None"),
        ({"config": {"x1": math.nan, "x2": 1}, "outcome": 1}, "'x1' is nan; expected a finite"),
        ({"config": {"x1": [1, 2], "x2": [1]}, "outcome": [1, 2]}, "'x2' has 1 trials in config"),
        ({"config": {"x1": [[1, 2]], "x2": [[1]]}, "outcome": [1]}, "expected one value"),
        (
            {"config": {"x1": [1, 2], "x2": [1, 2]}, "outcome": [1]},
            "has 1 values, but config has 2",
        ),
        ({"config": {"x1": [1, 2], "x2": [1, 2]}, "outcome": 1}, "has 1 values, but config has 2"),
        ({"config": {"x1": 1, "x2": 1}, "outcome": [1, 2]}, "has 2 values, but config has 1"),
        ({"config": {"x1": 1, "x2": 1}, "outcome": None}, "'outcome_1' is missing; expected a num"),
        (
            {"config": {"x1": 1, "x2": 1}, "outcome": "high"},
            "'outcome_1' is 'high'; expected a num",
        ),
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
    # In single precision, in another order, in text, and one that was never asked for.
    x1 = [float(np.float32(v)) for v in config["x1"]]
    x2 = [f"{v:.9g}" for v in config["x2"]]
    talk.tell({"x1": [x1[2], 9.0, x1[0]], "x2": [x2[2], 9.0, x2[0]]}, [1, 2, 3])
    assert told(talk).ids == (2, None, 0)
    assert list(talk.current.pending) == [1, 3]
    # A trial that is not modelled is an answer as well.
    talk.tell({"x1": x1[1], "x2": x2[1]}, 0.0, model_data=False, error="it broke")
    talk.tell({"x1": x1[3], "x2": x2[3]}, math.nan)
    assert not talk.current.pending


def test_points_that_are_the_same_are_told_one_by_one() -> None:
    talk = Talk()
    talk.setup(MANUAL.replace("[2, 3], [3, 0], [4.5, 1]", "[1, 0.5], [1, 0.5]"))
    talk.ask(3)
    talk.tell({"x1": [1, 1], "x2": [0.5, 0.5]}, [1, 2])
    assert told(talk).ids == (0, 1)
    assert list(talk.current.pending) == [2]


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
    for given in ({"0": 2}, {"x1": 2}, {"x1": [2.0]}, {"0": ["2"]}):
        assert fake.query(constraints=given).constraints == {"x1": 2.0}
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
        ({"constraints": {"x1": 11}}, "constraints holds 'x1' at 11; expected a value from -5"),
        ({"constraints": [1]}, r"constraints is [1]; expected an object"),
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
    with pytest.raises(InvalidInput, match="nothing has been told that is modelled"):
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


# the rest


def test_info_in_a_strategy_with_a_model(fake: Fake) -> None:
    fake.say("finish_strategy")
    fake.notes = "GlobalMI is done as MCLevelSetEstimation"
    fake.ask()
    info = fake.say("info")
    assert info["all_strat_names"] == ["init_strat", "opt_strat"]
    assert info["current_strat_name"] == "opt_strat"
    assert info["current_strat_model"] == "GPRegressionModel"
    assert info["current_strat_acqf"] == "qLogNoisyExpectedImprovement"
    assert info["current_strat_can_fit"] is True
    assert info["notes"] == [fake.notes]
    assert fake.say("can_model", "") == {"can_model": True}


def test_a_model_without_data_cannot_be_fitted() -> None:
    fake = Fake()
    fake.setup(MODEL.replace("[init_strat, opt_strat]", "[opt_strat]"))
    assert fake.say("can_model") == {"can_model": False}
    fake.tell({"x1": 1, "x2": 2}, 3)
    assert fake.say("can_model") == {"can_model": True}


def test_the_config_as_a_whole_and_in_parts(talk: Talk) -> None:
    whole = talk.say("get_config", {})
    assert set(whole) >= {"common", "x1", "x2", "init_strat", "SobolGenerator"}
    assert whole["x1"]["upper_bound"] == "10"
    assert whole["x1"]["parnames"] == "[x1, x2]"
    assert talk.say("get_config", {"section": "x1"}) == {"x1": whole["x1"]}
    assert talk.say("get_config", {"section": None, "property": None}) == whole
    for message, says in (
        ({"property": "min_asks"}, "'property' is 'min_asks' but 'section' is missing"),
        ({"section": "x9"}, "section 'x9' is not in the config; expected one of common"),
        ({"section": "x1", "property": "size"}, r"section \[x1\] has no 'size'"),
        ({"section": 3}, "'section' is 3; expected text"),
    ):
        with pytest.raises(InvalidInput, match=says):
            talk.say("get_config", message)


def test_a_strategy_is_left_at_the_ask_after_its_finish(fake: Fake) -> None:
    assert fake.say("finish_strategy") == {
        "finished_strategy": "init_strat",
        "finished_strat_idx": 0,
    }
    assert fake.say("info")["current_strat_name"] == "init_strat"
    fake.ask()
    assert fake.say("finish_strategy")["finished_strat_idx"] == 1
    events: list[type[Event]] = [type(event) for event in fake.server.events]
    assert events == [SetUp, Told, Finished, Asked, Finished]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({}, "'strat_id' is missing"),
        ({"strat_id": 9}, "experiment 9 does not exist; there are 1, from 0"),
        ({"strat_id": -1}, "'strat_id' is -1; expected a whole number from 0"),
        ({"strat_id": "first"}, "'strat_id' is 'first'"),
        ({"strat_id": 0.5}, "'strat_id' is 0.5"),
    ],
)
def test_a_resume_that_fails_changes_nothing(talk: Talk, message: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        talk.say("resume", message)
    assert talk.say("info")["current_strat_index"] == 0


def test_exit_ends_the_connection_and_nothing_else(talk: Talk) -> None:
    other = Talk(talk.server)
    talk.say("exit", "")
    assert talk.closed
    assert other.say("resume", {"strat_id": 0}) == {"strat_id": 0}
    assert not other.closed
    assert Talk(talk.server).say("exit")["success"] is True


def test_commands_for_the_closed_loop(talk: Talk) -> None:
    number = talk.setup(FARM)
    step = talk.step("run", {"in_flight": "8", "budget": 1})
    assert step.run == RunCommand(RunAction.RUN, number, in_flight=8, budget=1)
    assert talk.step("pause").run == RunCommand(RunAction.PAUSE, number)
    status = talk.step("status", {"strat_id": 0})
    assert status.run == RunCommand(RunAction.STATUS, 0)
    assert status.answer is not None
    assert status.answer["number"] == 0
    assert (status.answer["asked"], status.answer["run"]) == (0, None)
    with pytest.raises(
        InvalidInput, match=r"experiment 0 has no section \[farm\], which says what"
    ):
        talk.say("run", {"strat_id": 0})
    with pytest.raises(InvalidInput, match="'in_flight' is 0; expected a whole number from 1"):
        talk.say("run", {"in_flight": 0})


def test_several_outcomes_have_no_inverse() -> None:
    fake = Fake()
    fake.setup(
        OUTCOMES.replace("[init_strat]\n[x1]", "[init_strat, opt]\n[x1]")
        + "[opt]\ngenerator = IndependentOptimizeAcqfGenerator\nmodel = IndependentGPsModel\n"
        "[IndependentOptimizeAcqfGenerator]\ngenerators = [g1, g2]\n"
        "[g1]\nclass = OptimizeAcqfGenerator\nacqf = MCLevelSetEstimation\n"
        "[g2]\nclass = OptimizeAcqfGenerator\nacqf = qLogNoisyExpectedImprovement\n"
        "[IndependentGPsModel]\nmodels = [m1, m2]\n"
        "[m1]\nclass = GPClassificationModel\n[m2]\nclass = GPRegressionModel\n"
    )
    fake.tell({"x1": 1, "x2": 1}, {"responded": 1, "size": 0.5})
    assert fake.say("query")["y"] == [0.25, 0.25]
    with pytest.raises(UnsupportedFeature, match="an inverse query has one outcome"):
        fake.say("query", {"query_type": "inverse", "y": [0.0, 0.5]})
    fake.say("finish_strategy")
    fake.ask()
    assert fake.say("info")["current_strat_acqf"] == (
        "MCLevelSetEstimation, qLogNoisyExpectedImprovement"
    )
