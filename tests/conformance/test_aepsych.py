"""AEPsych's own Python client, and messages as its MATLAB and Unity clients write them, against
`farm experiment serve` as a process on this machine."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.experiment.talk import TWO
from tests.support.experiment_server import CLIENTS, Client, ExperimentServer, start_experiments

sys.path.append(str(CLIENTS))
client_package = pytest.importorskip("aepsych_client")
sys.path.remove(str(CLIENTS))

CONFIG = (
    TWO.replace("[common]", "[common]\nstimuli_per_trial = 1")
    + "[metadata]\nexperiment_name = sobol demo\nparticipant_id = p01\n"
)
OPTIMISE = CONFIG.replace("= [init_strat]", "= [init_strat, opt_strat]").replace(
    "min_asks = 6",
    "min_asks = 2\n[opt_strat]\ngenerator = OptimizeAcqfGenerator\nmodel = GPRegressionModel\n"
    "min_asks = 2\n[OptimizeAcqfGenerator]\nacqf = qLogNoisyExpectedImprovement",
)
TWO_OUTCOMES = CONFIG.replace(
    "outcome_types = [continuous]",
    "outcome_types = [binary, continuous]\noutcome_names = [responded, size]",
)
PAIRS = CONFIG.replace("per_trial = 1", "per_trial = 2").replace("[continuous]", "[binary]")

LEVEL_SET = (
    OPTIMISE.replace("[continuous]", "[binary]")
    .replace("GPRegressionModel", "GPClassificationModel")
    .replace("qLogNoisyExpectedImprovement", "MCLevelSetEstimation\nobjective = ProbitObjective")
)
BEST_OF_PAIRS = (
    OPTIMISE.replace("[continuous]", "[binary]")
    .replace("per_trial = 1", "per_trial = 2")
    .replace("GPRegressionModel", "PairwiseProbitModel")
)
INDEPENDENT = (
    OPTIMISE.replace("[continuous]", "[binary, continuous]\noutcome_names = [responded, size]")
    .replace("generator = OptimizeAcqf", "generator = IndependentOptimizeAcqf")
    .replace("model = GPRegressionModel", "model = IndependentGPsModel")
    .replace("[OptimizeAcqfGenerator]\nacqf = qLogNoisyExpectedImprovement", "")
    + """
[IndependentOptimizeAcqfGenerator]
generators = [for_responded, for_size]
[for_responded]
class = OptimizeAcqfGenerator
acqf = MCLevelSetEstimation
[for_size]
class = OptimizeAcqfGenerator
acqf = qLogNoisyExpectedImprovement
[IndependentGPsModel]
models = [of_responded, of_size]
[of_responded]
class = GPClassificationModel
[of_size]
class = GPRegressionModel
"""
)

NewClient = Callable[[], Any]


@contextmanager
def stock_clients(server: ExperimentServer) -> Iterator[NewClient]:
    """Make stock clients, and finalize them quietly at the end."""
    clients = []

    def new() -> Any:
        client = client_package.AEPsychClient(ip="127.0.0.1", port=server.port)
        clients.append(client)
        return client

    yield new
    for client in clients:
        with contextlib.suppress(OSError, ValueError):
            client.finalize()
        client.finalize = lambda: None  # it calls this when deleted, without a connection


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExperimentServer]:
    server = start_experiments(tmp_path_factory.mktemp("aepsych"))
    yield server
    assert server.end()[0] == 0


@pytest.fixture
def new_client(server: ExperimentServer) -> Iterator[NewClient]:
    with stock_clients(server) as new:
        yield new


@pytest.fixture
def wire(server: ExperimentServer) -> Iterator[Client]:
    with Client(server.port) as wire:
        yield wire


def text(value: object) -> str:
    return json.dumps(value)


# The Python client


def test_the_python_client_through_a_sobol_experiment(new_client: NewClient) -> None:
    client = new_client()
    (number,) = client.configure(config_str=CONFIG, config_name="demo").values()
    assert client.parameters() == {"x1": [-5.0, 10.0], "x2": [0.0, 15.0]}
    answers = [client.ask(), client.ask(num_points=3)]
    assert [answer["num_points"] for answer in answers] == [1, 3]
    assert client.tell(answers[0]["config"], 24.5, response_time=0.25, tag="r0") == {
        "trials_recorded": 1,
        "model_data_added": 1,
    }
    assert client.tell(answers[1]["config"], [151.0, 66.25, 118.5]) == {
        "trials_recorded": 3,
        "model_data_added": 3,
    }
    assert client.tell({"x1": [0.6], "x2": [2.0]}, 27.5, model_data=False) == {
        "trials_recorded": 1,
        "model_data_added": 0,
    }
    info = client.info()
    assert info["current_strat_index"] == number
    assert info["current_strat_data_pts"] == 4
    assert list(info) == [
        "db_name",
        "exp_id",
        "strat_count",
        "all_strat_names",
        "current_strat_index",
        "current_strat_name",
        "current_strat_data_pts",
        "current_strat_model",
        "current_strat_acqf",
        "current_strat_finished",
        "current_strat_can_fit",
    ]
    assert client.get_config(section="init_strat", property="min_asks") == {
        "init_strat": {"min_asks": "6"}
    }
    assert client.get_config()["x1"]["upper_bound"] == "10"
    assert client.ask(2)["is_finished"] is True
    assert len(client.ask(100)["config"]["x1"]) == 100, "as many as the client can read"
    assert client.finish_strategy() == {"finished_strategy": "init_strat", "finished_strat_idx": 0}
    with pytest.raises(RuntimeError, match="a query needs a model"):
        client.query()
    assert client.finalize() == {"termination_type": "Terminate", "success": True}


def test_the_python_client_resumes_what_it_has_set_up(new_client: NewClient) -> None:
    client = new_client()
    (first,) = client.configure(config_str=CONFIG, config_name="first").values()
    asked = client.ask()["config"]
    client.tell(asked, 1.5)
    (second,) = client.configure(config_str=CONFIG, config_name="second").values()
    assert second == first + 1
    assert client.ask()["config"] == asked, "the same config with a seed of its own"
    assert client.resume(config_name="first") == {"strat_id": first}
    assert client.info()["current_strat_data_pts"] == 1
    assert client.ask()["config"] != asked


def test_the_python_client_goes_on_after_errors(new_client: NewClient) -> None:
    client = new_client()
    with pytest.raises(RuntimeError, match="no experiment is current"):
        client.ask()
    with pytest.raises(RuntimeError, match="has the bounds 20 and 15"):
        client.configure(config_str=CONFIG.replace("lower_bound = 0", "lower_bound = 20"))
    client.configure(config_str=CONFIG)
    for config, outcome, says in (
        ({"x1": [1.0]}, 1.0, "parameter 'x2' is missing in config"),
        ({"x1": [1.0], "x2": ["high"]}, 1.0, "parameter 'x2' is 'high'"),
        ({"x1": [1.0], "x2": [1.0]}, [1.0, 2.0], "2 values"),
        ({"x1": [1.0], "x2": [1.0]}, {"size": 1.0}, "expected outcome_1"),
    ):
        with pytest.raises(RuntimeError, match=says):
            client.tell(config, outcome)
    assert client.info()["current_strat_data_pts"] == 0
    assert client.tell({"x1": [1.0], "x2": [1.0]}, float("nan"))["model_data_added"] == 0
    # An error that quotes a long request is short enough for the client's buffer.
    with pytest.raises(RuntimeError, match="'x2' is missing"):
        client.tell({"x1": [0.123456789] * 1000}, 1.0)


def test_the_python_client_with_several_outcomes_and_pairs(new_client: NewClient) -> None:
    client = new_client()
    client.configure(config_str=TWO_OUTCOMES)
    assert client.tell(client.ask()["config"], {"size": [0.5], "responded": "1"}) == {
        "trials_recorded": 1,
        "model_data_added": 1,
    }
    client.configure(config_str=PAIRS)
    config = client.ask()["config"]
    assert [len(pairs[0]) for pairs in config.values()] == [2, 2]
    assert client.tell(config, 1)["model_data_added"] == 1


@pytest.mark.slow
def test_the_python_client_with_a_model(new_client: NewClient) -> None:
    pytest.importorskip("botorch")
    client = new_client()
    client.configure(config_str=OPTIMISE)
    for outcome in (1.0, 2.5):
        client.tell(client.ask()["config"], outcome)
    asked = client.ask()
    assert client.info()["current_strat_name"] == "opt_strat"
    client.tell(asked["config"], 1.5)
    info = client.info()
    assert info["current_strat_can_fit"] is True
    assert info["current_strat_model"] == "GPRegressionModel"
    best = client.query("max")
    assert set(best) == {"query_type", "probability_space", "constraints", "x", "y"}
    assert isinstance(best["y"], float)
    held = client.query("max", constraints={0: 2.0})
    assert held["x"]["x1"] == [2.0]
    assert held["y"] <= best["y"] + 0.01
    there = client.query("prediction", x={"x1": [0.5], "x2": [3.0]})
    assert there["x"] == {"x1": [0.5], "x2": [3.0]}
    inverse = client.query("inverse", y=there["y"])
    assert inverse["y"] == pytest.approx(there["y"], abs=0.05)
    assert client.query("min")["y"] <= inverse["y"] + 0.01
    with pytest.raises(RuntimeError, match="probability_space is true"):
        client.query("max", probability_space=True)


@pytest.mark.slow
def test_the_python_client_with_a_level_set(new_client: NewClient) -> None:
    pytest.importorskip("botorch")
    client = new_client()
    client.configure(config_str=LEVEL_SET)
    for outcome in (0, 1, 1, 0):
        client.tell(client.ask()["config"], outcome)
    assert client.info()["current_strat_acqf"] == "MCLevelSetEstimation"
    best = client.query("max", probability_space=True)
    assert 0.0 < best["y"] < 1.0
    assert best["y"] >= client.query("min", probability_space=True)["y"]
    latent = client.query("prediction", x=best["x"])["y"]
    assert (latent > 0) is (best["y"] > 0.5)
    inverse = client.query("inverse", y=0.5, probability_space=True, constraints={"x2": [5.0]})
    assert inverse["x"]["x2"] == [5.0]
    assert 0.0 < inverse["y"] < 1.0


@pytest.mark.slow
def test_the_python_client_with_models_of_pairs_and_of_several_outcomes(
    new_client: NewClient,
) -> None:
    pytest.importorskip("botorch")
    client = new_client()
    client.configure(config_str=BEST_OF_PAIRS)
    for outcome in (0, 1, 1):
        client.tell(client.ask()["config"], outcome)
    assert client.info()["current_strat_name"] == "opt_strat"
    best = client.query("max")
    assert [len(values) for values in best["x"].values()] == [1, 1]
    assert type(best["x"]["x1"][0]) is float
    there = client.query("prediction", x=best["x"])
    assert there["y"] == pytest.approx(best["y"], abs=1e-6)
    client.configure(config_str=INDEPENDENT)
    for size in (0.5, 0.75):
        client.tell(client.ask()["config"], {"responded": size > 0.6, "size": size})
    asked = client.ask()
    assert asked["num_points"] == 2, "one for each outcome"
    client.tell(asked["config"], {"responded": [0, 1], "size": [0.25, 1.0]})
    assert [type(y) for y in client.query("max")["y"]] == [float, float]


@pytest.mark.slow
def test_an_experiment_goes_on_after_its_server_was_killed(tmp_path: Path) -> None:
    server = start_experiments(tmp_path)
    try:
        with stock_clients(server) as new:
            client = new()
            client.configure(config_str=CONFIG)
            before = client.ask(2)["config"]
            client.tell({name: [values[0]] for name, values in before.items()}, 1.5)
            server.end(signal.SIGKILL)
        server = start_experiments(tmp_path)
        with stock_clients(server) as new:
            client = new()
            client.configs.append(0)  # the client resumes only ids that it knows
            assert client.resume(config_id=0) == {"strat_id": 0}
            assert client.info()["current_strat_data_pts"] == 1
            after = client.ask()["config"]
            (number,) = client.configure(config_str=CONFIG).values()
            assert number == 1
            whole = client.ask(3)["config"]
            assert whole == {name: before[name] + after[name] for name in before}
    finally:
        server.end()


# Messages of other clients


def test_the_matlab_clients_messages(wire: Client) -> None:
    number = wire.say(
        text(
            {"type": "setup", "version": "0.01", "metadata": {}, "message": {"config_str": CONFIG}}
        )
        + "\n"
    )["strat_id"]
    asked = wire.say('{"type":"ask","message":"","version":"0.01"}\n')
    assert asked["num_points"] == 1
    assert wire.say('{"type":"tell","message":{"config":{"x1":0.5,"x2":[1]},"outcome":1}}\n') == {
        "trials_recorded": 1,
        "model_data_added": 1,
    }
    resume = {"type": "resume", "version": "0.01", "message": {"strat_id": str(number)}}
    assert wire.say(text(resume) + "\n") == {"strat_id": number}
    assert wire.say('{"type":"can_model","message":""}\n') == {"can_model": False}
    assert wire.say('{"type":"params","message":""}\n')["x1"] == [-5.0, 10.0]


def test_the_unity_clients_messages(wire: Client) -> None:
    def unity(type: str, message: object, extra: object = None) -> dict[str, Any]:
        return wire.say(text({"message": message, "type": type, "extra_info": extra}))

    setup = unity("setup", {"config_str": CONFIG})
    assert list(setup) == ["strat_id"], "it is read as a map of text to whole numbers"
    assert type(setup["strat_id"]) is int
    assert unity("ask", "")["num_points"] == 1
    trial = {"config": {"x1": [0.7], "x2": [0.2]}, "outcome": 0.25}
    assert unity("tell", trial, {"response_time": 0.9})["model_data_added"] == 1
    assert unity("parameters", "")["x2"] == [0.0, 15.0]
    assert unity("info", "")["current_strat_can_fit"] is False
    query = {"query_type": "max", "x": {}, "y": 0.0, "constraints": {}, "probability_space": False}
    assert "needs a model" in unity("query", query)["server_error"]
    assert unity("exit", "") == {"termination_type": "Terminate", "success": True}
    assert wire.socket.recv(1) == b"", "exit ends the connection"
