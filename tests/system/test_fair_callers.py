"""Real farms and published clients: whose call it is, and which worker it finds warm."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import kubemo
import numpy as np
import pytest
import requests
import tritonclient.grpc as triton
import umbridge
from graphpipe import remote

import farm
from farm.call import Call, Operation
from tests.support.dispatcher_farm import Served, run_farm, serving
from tests.support.time_limits import scaled

pytestmark = pytest.mark.filterwarnings("ignore:numElems is deprecated:DeprecationWarning")

TIMEOUT_S = scaled(20.0)

RECORDS_CALLERS = """
import json, os
from farm.call import Operation
from farm.scheduler.core import Scheduler

submit = Scheduler.submit

def recorded(self, call, *, client="", chain="?", **rest):
    if call.operation is not Operation.DESCRIBE:
        with open(os.environ["CALLERS"], "a") as file:
            file.write(json.dumps([client, chain, call.rows]) + "\\n")
    return submit(self, call, client=client, chain=chain, **rest)

Scheduler.submit = recorded
"""
"""Python imports it in every process of the farm, as `sitecustomize`."""

MODELS = """
import json, os, time
import farm

def note(*words):
    with open("ran", "a") as file:
        file.write(json.dumps([os.getpid(), *words]) + "\\n")

class Twice(farm.Model):
    name = "twice"
    inputs = {"x": 1}
    outputs = {"y": 1}
    max_batch = 4

    def evaluate(self, inputs, config):
        return 2 * inputs["x"]

class Keeper(farm.Model):
    name = "keeper"
    inputs = {"x": 2}
    outputs = {"y": 1}
    keeps_point = True

    def evaluate(self, inputs, config):
        chain, step = map(int, inputs["x"])
        note("evaluate", chain, step)
        with open(f"begun-{chain}-{step}", "w"):
            limit = time.monotonic() + 10
        while not os.path.exists(f"begun-{1 - chain}-{step}") and time.monotonic() < limit:
            time.sleep(0.001)  # so that the chains evaluate at the same time, on two workers
        return inputs["x"].sum(keepdims=True)

    def gradient(self, out_wrt, in_wrt, inputs, sens, config):
        note("gradient", *map(int, inputs["x"]))
        return [sens[0], sens[0]]

class Mesh(farm.Model):
    name = "mesh"
    inputs = {"x": 1}
    outputs = {"y": 1}
    has = None

    def evaluate(self, inputs, config):
        if config["mesh"] != self.has:
            time.sleep(0.05)  # what its first use costs
            self.has = config["mesh"]
        note(config["mesh"])
        time.sleep(0.002)
        return inputs["x"]
"""


class RunningFarm:
    """`farm serve` with two workers. callers: what the scheduler got since the last look."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.served = served
        self.url = served.connection.url
        self._folder = folder
        self._read = {"callers": 0, "ran": 0}

    def _new(self, name: str) -> list[Any]:
        path = self._folder / name
        rows = path.read_text().splitlines() if path.exists() else []
        read, self._read[name] = self._read[name], len(rows)
        return [json.loads(row) for row in rows[read:]]

    def callers(self) -> list[tuple[str, str | None]]:
        return [(client, chain) for client, chain, _ in self._new("callers")]

    def ran(self) -> list[list[Any]]:
        """Return process and note of each run since the last look."""
        return self._new("ran")

    def infer(self, rows: int, headers: dict[str, str]) -> None:
        """Ask by KServe's REST protocol."""
        given = {"name": "x", "datatype": "FP64", "shape": [rows, 1], "data": [1.5] * rows}
        path = f"{self.url}/v2/models/twice/infer"
        answer = requests.post(path, json={"inputs": [given]}, headers=headers, timeout=TIMEOUT_S)
        assert answer.json()["outputs"][0]["data"] == [3.0] * rows

    def evaluate(self, headers: dict[str, str]) -> None:
        """Ask by a stream of points."""
        path = f"{self.url}/farm/models/twice/evaluate"
        points = {"inputs": [[[i]] for i in range(9)]}
        answer = requests.post(path, json=points, headers=headers, timeout=TIMEOUT_S)
        assert len(answer.text.splitlines()) >= 9


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFarm]:
    folder = tmp_path_factory.mktemp("farm")
    (folder / "models.py").write_text(MODELS)
    (folder / "sitecustomize.py").write_text(RECORDS_CALLERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CALLERS", str(folder / "callers"))
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        options = ["--workers", "2", "--grpc-port", "0", "--mip", "twice=127.0.0.1:0"]
        models = [f"models.py:{name}" for name in ("Twice", "Keeper", "Mesh")]
        with serving(folder, *models, *options) as process:
            process.wait_for_workers(2)
            yield RunningFarm(process, folder)


def umbridge_request(served: RunningFarm, headers: dict[str, str]) -> None:
    body = {"name": "twice", "input": [[1.5]], "config": {}}
    answer = requests.post(f"{served.url}/Evaluate", json=body, headers=headers, timeout=TIMEOUT_S)
    assert answer.json() == {"output": [[3.0]]}


def kserve_rest(served: RunningFarm, headers: dict[str, str]) -> None:
    served.infer(1, headers)


def kserve_grpc(served: RunningFarm, headers: dict[str, str]) -> None:
    client = triton.InferenceServerClient(served.served.connection.grpc)
    given = triton.InferInput("x", [1, 1], "FP64")
    given.set_data_from_numpy(np.array([[1.5]]))
    metadata = {name.lower(): text for name, text in headers.items()}
    with client:
        assert client.infer("twice", [given], headers=metadata).as_numpy("y").tolist() == [[3.0]]


@pytest.mark.parametrize("ask", [umbridge_request, kserve_rest, kserve_grpc])
@pytest.mark.parametrize(
    ("headers", "caller"),
    [
        ({}, ("127.0.0.1", None)),
        ({"Farm-Client": "me"}, ("me", None)),
        ({"Farm-Client": "me", "Farm-Chain": "chain 7"}, ("me", "chain 7")),
        ({"Farm-Chain": ""}, ("127.0.0.1", "")),
    ],
    ids=["plain", "client", "chain", "bulk"],
)
def test_a_request_is_a_caller_by_itself_unless_it_names_a_chain(
    served: RunningFarm,
    ask: Callable[[RunningFarm, dict[str, str]], None],
    headers: dict[str, str],
    caller: tuple[str, str | None],
) -> None:
    ask(served, headers)
    assert served.callers() == [caller]


def test_stock_clients_are_callers_by_themselves(served: RunningFarm) -> None:
    assert umbridge.HTTPModel(served.url, "twice")([[1.5]]) == [[3.0]]
    assert served.callers() == [("127.0.0.1", None)]
    assert remote.execute(f"{served.url}/graphpipe/twice", np.array([[1.5]])).tolist() == [[3.0]]
    assert served.callers() == [("127.0.0.1", None)]
    (address,) = served.served.connection.addresses["mip"]
    ((answer,),) = kubemo.Client().inference(address, ((kubemo.Text("[1.5]"),),))
    assert answer.decode() == [3.0]
    assert served.callers() == [("127.0.0.1", None)]


@pytest.mark.parametrize("many", [lambda f, h: f.infer(9, h), RunningFarm.evaluate])
def test_a_request_of_many_rows_is_one_caller(
    served: RunningFarm, many: Callable[[RunningFarm, dict[str, str]], None]
) -> None:
    chains = []
    for _ in range(2):
        many(served, {})
        callers = served.callers()
        assert len(callers) > 1
        ((client, chain),) = set(callers)
        assert client == "127.0.0.1"
        assert re.fullmatch(r"rows -\d+", str(chain))
        chains.append(chain)
    assert chains[0] != chains[1]
    many(served, {"Farm-Chain": "c"})
    assert set(served.callers()) == {("127.0.0.1", "c")}


@pytest.mark.parametrize("over", ["native", "http"])
def test_farms_own_client(served: RunningFarm, over: str) -> None:
    """Single calls are callers by themselves, `map` is one, and a chain is what it names."""
    target = served.url if over == "http" else served.served.folder
    with farm.connect(target, client="me") as client:
        model = client.model("twice")
        assert model([1.5]).tolist() == [3.0]
        ((who, chain),) = served.callers()
        assert who == "me"
        assert chain is None or chain.startswith("rows ")
        model.map(np.ones((9, 1)))
        assert set(served.callers()) == {("me", "")}
    for chain in ["seven", "\N{GREEK SMALL LETTER ETA}\n"][: 1 + (over == "native")]:
        with farm.connect(target, client="me", chain=chain) as client:
            model = client.model("twice")
            model([1.5])
            model.map(np.ones((9, 1)))
            assert len(set(served.callers())) == 1


def test_a_sweep_is_bulk_from_its_first_point(served: RunningFarm, tmp_path: Path) -> None:
    arguments = ["--model", "twice", "--param", "x=0:1", "--design", "random:9", "-o", "s.h5"]
    run_farm("sweep", "--to", served.url, *arguments, cwd=tmp_path)
    callers = served.callers()
    assert len({client for client, _ in callers}) == 1
    assert {chain for _, chain in callers} == {""}


def test_a_gradient_runs_where_its_point_was_evaluated(served: RunningFarm) -> None:
    stock = umbridge.HTTPModel(served.url, "keeper")
    with farm.connect(served.served.folder) as client, ThreadPoolExecutor(1) as other:
        native = client.model("keeper")
        for step in range(8):
            mine, theirs = [0.0, float(step)], [1.0, float(step)]
            evaluated = other.submit(stock, [theirs])
            native(mine)
            evaluated.result(TIMEOUT_S)
            # Both workers are free; the one that answered last would be taken without the rule.
            native.gradient(0, 0, mine, [1.0])
            stock.gradient(0, 0, [theirs], [1.0])
    ran = served.ran()
    evaluated_by = {tuple(at): process for process, what, *at in ran if what == "evaluate"}
    gradient_by = {tuple(at): process for process, what, *at in ran if what == "gradient"}
    assert len(evaluated_by) == 16
    assert gradient_by == evaluated_by
    assert all(evaluated_by[0, step] != evaluated_by[1, step] for step in range(8))


def test_workers_seldom_change_the_config_of_a_sweep(served: RunningFarm) -> None:
    """In the order of arrival a worker would change it almost every time."""
    order = random.Random(1)
    with farm.connect(served.served.folder, chain="") as client:
        futures = [
            client.submit(
                Call("mesh", Operation.EVALUATE, (np.ones(1),), f'{{"mesh":{order.randrange(4)}}}')
            )
            for _ in range(160)
        ]
        for future in futures:
            future.result(TIMEOUT_S)
    ran = served.ran()
    changes = 0
    for process in {row[0] for row in ran}:
        changes += sum(a != b for a, b in pairwise(row[1] for row in ran if row[0] == process))
    assert changes < len(ran) / 4
