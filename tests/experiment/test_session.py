"""Conversations of clients: every message, its forms, its answer, and its effect."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from farm.errors import FarmError, InvalidInput, UnsupportedFeature
from farm.experiment.session import MAX_POINTS, SETUPS, RunAction, RunCommand
from farm.experiment.state.events import Asked, Event, Finished, Released, SetUp, Told
from farm.experiment.state.experiment import PENDING_LIMIT_S
from farm.protocols.aepsych.codec import ANSWER_BYTES, encode_answer
from tests.experiment.talk import (
    FARM,
    MANUAL,
    MODEL,
    OUTCOMES,
    PAIRS,
    TWO,
    TYPES,
    Fake,
    Talk,
    state,
)

# A complete conversation


def test_the_conversation_of_a_sobol_experiment() -> None:
    """The recorded dialogue of AEPsych's client and server; only the points are farm's."""
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
        assert talk.last_told.extra == {"response_time": 0.25, "tag": tag}
    config = talk.ask(3)
    assert [len(values) for values in config.values()] == [3, 3]
    assert talk.tell(config, [151.0, 66.25, 118.5]) == (3, 3)
    assert talk.tell({"x1": 0.5, "x2": 2.0}, 28.5) == (1, 1)
    assert talk.tell({"x1": [0.6], "x2": [2.0]}, 27.5, model_data=False) == (1, 0)
    assert talk.say("info", "")["current_strat_data_pts"] == 6
    # The sixth point finishes the strategy, in the answer that contains it.
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
    # A setup without an id inherits that of the session's previous setup.
    assert info["exp_id"] == "alpha-id"
    for number in (0, "0", 0.0):
        assert talk.say("resume", {"strat_id": number}) == {"strat_id": 0}
    assert talk.say("info", {})["current_strat_data_pts"] == 1
    assert talk.say("finish_strategy", {}) == {
        "finished_strategy": "init_strat",
        "finished_strat_idx": 0,
    }
    # Another connection sees the experiments, but has ids of its own.
    other = Talk(talk.server)
    assert other.say("resume", {"strat_id": 1}) == {"strat_id": 1}
    assert other.setup() == 2
    assert other.say("info", {})["exp_id"] != "alpha-id"
    assert talk.say("info", {})["current_strat_index"] == 0
    assert talk.say("info", {})["strat_count"] == 3


@pytest.mark.parametrize(
    "type", ["ask", "tell", "query", "info", "get_config", "finish_strategy", "can_model", "run"]
)
def test_before_any_setup_there_is_nothing_to_talk_about(type: str) -> None:
    with pytest.raises(InvalidInput, match="no experiment is current; send a setup or a resume"):
        Talk().say(type, {"config": {"x": 1}, "outcome": 1})


# setup


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
        ({"config_str": TWO.replace("parnames = [x1, x2]", "")}, "parnames"),
        ({"config_str": TWO.replace("SobolGenerator", "NoGenerator")}, "NoGenerator"),
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
    # The event is not applied and the step is not taken.
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


def test_notes_are_as_many_as_clients_can_read() -> None:
    talk = Talk()
    names = [f"strategy_{i}" for i in range(60)]
    sections = "".join(f"[{n}]\ngenerator = SobolGenerator\nn_trials = 2\n" for n in names)
    strategies = f"strategy_names = [{', '.join(names)}]"
    talk.setup(TWO.replace("strategy_names = [init_strat]", strategies) + sections)
    info = talk.say("info")
    assert info["notes"][0] == "[strategy_0] n_trials is an older spelling of min_asks"
    assert info["notes"][-1] == f"{60 - len(info['notes']) + 1} more, in the server's log"
    assert len(encode_answer(info)) <= ANSWER_BYTES


# ask


@pytest.mark.parametrize("message", [None, "", {}, {"num_points": None}, {"num_points": "1"}])
def test_one_point_is_what_is_asked_for_by_default(talk: Talk, message: Any) -> None:
    assert talk.say("ask", message)["num_points"] == 1


def test_no_points_change_nothing(talk: Talk) -> None:
    before = state(talk.current)
    answer = talk.say("ask", {"num_points": 0})
    assert answer == {"config": {"x1": [], "x2": []}, "is_finished": False, "num_points": 0}
    assert state(talk.current) == before


@pytest.mark.parametrize("count", [-1, 1.5, MAX_POINTS + 1])
def test_numbers_of_points_that_are_none(talk: Talk, count: Any) -> None:
    before = state(talk.current)
    with pytest.raises(InvalidInput, match=r"'num_points' is .*; expected a whole number from 0"):
        talk.say("ask", {"num_points": count})
    assert state(talk.current) == before


def test_points_of_many_parameters_are_fewer_in_one_ask(talk: Talk) -> None:
    names = [f"p{i}" for i in range(200)]
    lists = f"parnames = [{', '.join(names)}]\nlb = [{'0,' * 200}]\nub = [{'1,' * 200}]"
    talk.setup(TWO.replace("parnames = [x1, x2]", lists))
    with pytest.raises(InvalidInput, match="a whole number from 0 to 5000"):
        talk.say("ask", {"num_points": 5001})
    talk.setup(PAIRS.replace("parnames = [x1, x2]", lists))
    with pytest.raises(InvalidInput, match="a whole number from 0 to 2500"):
        talk.say("ask", {"num_points": 2501})


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
        "choice": [0.0, 2.0],
    }
    config = talk.ask(20)
    assert list(config) == ["c", "l", "n", "flag", "k", "colour", "choice"]
    assert set(config["n"]) == {1.0, 2.0, 3.0, 4.0, 5.0}
    assert set(config["flag"]) == {0.0, 1.0}
    assert set(config["k"]) == {4.5}
    assert set(config["colour"]) == {"light blue"}
    assert set(config["choice"]) == {"red", "dark, green", "blue"}
    assert talk.tell(config, list(range(20))) == (20, 20)
    assert not talk.current.pending
    assert talk.last_told.extra == {}, "fixed parameters keep their value"
    talk.tell({name: values[:2] for name, values in config.items()} | {"k": [4.5, 9]}, [1, 2])
    assert talk.last_told.extra == {"k": [4.5, 9]}, "or not"


def test_parameters_that_are_held(talk: Talk) -> None:
    answer = talk.say("ask", {"num_points": 3, "fixed_pars": {"x1": 2, "1": ["7.5"]}})
    assert answer["config"] == {"x1": [2.0] * 3, "x2": [7.5] * 3}
    with pytest.raises(InvalidInput, match="fixed_pars names 'z'"):
        talk.say("ask", {"fixed_pars": {"z": 1}})


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
    # Tells do not wait: one arrives while points are generated.
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


# Other messages


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
        InvalidInput, match=r"experiment 0 has no section \[farm\], which defines the model for"
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
    with pytest.raises(UnsupportedFeature, match="an inverse query needs a single outcome"):
        fake.say("query", {"query_type": "inverse", "y": [0.0, 0.5]})
    fake.say("finish_strategy")
    fake.ask()
    assert fake.say("info")["current_strat_acqf"] == (
        "MCLevelSetEstimation, qLogNoisyExpectedImprovement"
    )
