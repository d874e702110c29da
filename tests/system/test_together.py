"""Published clients of all protocols call a fast model at once: each call has its own outcome."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import kubemo
import numpy as np
import pytest
import requests
import tritonclient.grpc as triton
import umbridge
from graphpipe import remote

import farm
from tests.support.dispatcher_farm import LIMIT_S, serving
from tests.support.running_farm import wait_until
from tests.system.test_fair_callers import RECORDS_CALLERS

pytestmark = pytest.mark.filterwarnings("ignore:numElems is deprecated:DeprecationWarning")

MODEL = """
import farm

@farm.model(inputs={"x": (2, 2)}, outputs={"y": (2, 2), "n": 1})
def square(x):
    if x[0, 0] % 7 == 3:
        raise ArithmeticError(f"no root at {x[0, 0]:g}")
    return x * x, [x[0, 0]]
"""
GATED = """
import pathlib
import time
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1}, copies=False)
def gated(x):
    while x[0] < 0 and not pathlib.Path("gate").exists():
        time.sleep(0.01)
    return 2 * x
"""
EACH, THREADS = 100, 4
"""Calls in one thread of a protocol, and its threads."""

Caller = Callable[[float], object]
"""Returns the square of a number and the number itself, or the words of an error."""


def over_umbridge(url: str) -> Caller:
    model = umbridge.HTTPModel(url, "square")

    def call(x: float) -> object:
        try:
            y, (n,) = model([[x, 1.0, 2.0, 3.0]])
        except Exception as error:
            return str(error)
        return y, n

    return call


def over_kserve(url: str) -> Caller:
    session = requests.Session()

    def call(x: float) -> object:
        tensor = {"name": "x", "shape": [2, 2], "datatype": "FP64", "data": [x, 1.0, 2.0, 3.0]}
        answer = session.post(f"{url}/v2/models/square/infer", json={"inputs": [tensor]}).json()
        if "error" in answer:
            return answer["error"]
        y, n = answer["outputs"]
        return y["data"], n["data"][0]

    return call


def over_grpc(address: str) -> Caller:
    client = triton.InferenceServerClient(address)

    def call(x: float) -> object:
        tensor = triton.InferInput("x", [2, 2], "FP64")
        tensor.set_data_from_numpy(np.array([[x, 1.0], [2.0, 3.0]]))
        try:
            answer = client.infer("square", [tensor])
        except Exception as error:
            return str(error)
        return answer.as_numpy("y").reshape(-1).tolist(), answer.as_numpy("n")[0]

    return call


def over_graphpipe(url: str) -> Caller:
    def call(x: float) -> object:
        try:
            asked = np.array([[x, 1.0], [2.0, 3.0]])
            y, n = remote.execute_multi(f"{url}/graphpipe/square", [asked], ["x"], ["y", "n"])
        except Exception as error:
            return str(error)
        return y.reshape(-1).tolist(), n.reshape(-1)[0]

    return call


def over_mip(address: str) -> Caller:
    client = kubemo.Client()

    def call(x: float) -> object:
        try:
            answer = client.inference(address, ((kubemo.Text(f"[[{x}, 1.0], [2.0, 3.0]]"),),))
        except Exception as error:
            return str(error)
        ((y, n),) = answer
        return np.reshape(y.decode(), -1).tolist(), np.reshape(n.decode(), -1)[0]

    return call


def over_native(client: farm.Client) -> Caller:
    model = client.model("square")

    def call(x: float) -> object:
        try:
            y, n = model([[x, 1.0], [2.0, 3.0]]).values()
        except farm.FarmError as error:
            return str(error)
        return y.reshape(-1).tolist(), n[0]

    return call


def is_right(x: float, found: object) -> bool:
    if x % 7 == 3:
        is_told = isinstance(found, str) and f"no root at {x:g}" in found
        return is_told or found == "responded with error code: 5"  # all that MIP has for it
    return found == ([x * x, 1.0, 4.0, 9.0], x)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_each_call_has_its_own_answer_or_error_while_workers_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "square.py").write_text(MODEL)
    (tmp_path / "sitecustomize.py").write_text(RECORDS_CALLERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("CALLERS", str(tmp_path / "callers"))
    options = ["--workers", "3", "--grpc-port", "0", "--mip", "127.0.0.1:0"]
    with serving(tmp_path, "square.py", *options) as served, farm.connect(served.folder) as client:
        url, grpc = served.connection.url, served.connection.grpc
        (mip,) = served.connection.addresses["mip"]
        makers: list[Callable[[], Caller]] = [
            lambda: over_umbridge(url),
            lambda: over_kserve(url),
            lambda: over_grpc(grpc),
            lambda: over_graphpipe(url),
            lambda: over_mip(mip),
            lambda: over_native(client),
        ]

        def calls_of(number: int, make: Callable[[], Caller]) -> list[tuple[float, object]]:
            call = make()
            points = [float(number * EACH + n) for n in range(EACH)]
            return [(x, call(x)) for x in points]

        client.model("square")([[1.0, 1.0], [2.0, 3.0]])  # its run time is known from here on

        def has_done(count: int) -> bool:
            return bool(client.status()["done"] > count)

        over = [make for make in makers for _ in range(THREADS)]
        with ThreadPoolExecutor(len(over)) as threads:
            found = [threads.submit(calls_of, *one) for one in enumerate(over)]
            for lost in range(1, 4):
                wait_until(partial(has_done, 300 * lost), "calls")
                wait_until(lambda: client.status()["workers"], "a worker")
                with suppress(ProcessLookupError):  # of the kill before
                    os.kill(client.status()["workers"][0]["pid"], signal.SIGKILL)
            pairs = [pair for future in found for pair in future.result(LIMIT_S)]
        assert [pair for pair in pairs if not is_right(*pair)] == []

        def counted() -> int:
            status = client.status()
            return int(status["done"] + status["failed"])

        wait_until(lambda: counted() >= len(pairs) + 1, "the count of each call")
        assert counted() == len(pairs) + 1
    rows = [json.loads(line)[2] or 1 for line in (tmp_path / "callers").read_text().splitlines()]
    assert max(rows) > 1, "some of them ran together"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_call_that_hangs_holds_up_no_other(tmp_path: Path) -> None:
    (tmp_path / "gated.py").write_text(GATED)
    with serving(tmp_path, "gated.py", "--workers", "2") as served:
        url = f"{served.connection.url}/Evaluate"

        def call(session: requests.Session, x: float) -> object:
            answer = session.post(url, json={"name": "gated", "input": [[x]], "config": {}})
            return answer.json().get("output")

        def calls_of(number: int) -> list[object]:
            with requests.Session() as session:
                return [call(session, float(8 * n + number)) for n in range(100)]

        def hang() -> object:
            with requests.Session() as session:
                return call(session, -1.0)

        call(requests.Session(), 1.0)  # its run time is known from here on
        with ThreadPoolExecutor(9) as threads:
            found = [threads.submit(calls_of, number) for number in range(8)]
            hangs = threads.submit(hang)
            for number, future in enumerate(found):
                assert future.result(LIMIT_S) == [[[2.0 * (8 * n + number)]] for n in range(100)]
            assert not hangs.done()
            (tmp_path / "gate").touch()
            assert hangs.result(LIMIT_S) == [[-2.0]]


@pytest.mark.timeout(120)
def test_a_point_that_hangs_holds_up_no_other_of_its_map(tmp_path: Path) -> None:
    (tmp_path / "gated.py").write_text(GATED)
    with serving(tmp_path, "gated.py", "--workers", "3") as served:
        for target in (served.folder, served.connection.url):
            (tmp_path / "gate").unlink(missing_ok=True)
            with farm.connect(target) as client:
                model = client.model("gated")
                for x in range(3):  # its run time is known from here on
                    model(float(x))
                points = [float(n) for n in range(500)]
                points[3] = points[250] = -1.0
                found = model.as_completed(points, in_flight=500)
                first = [next(found) for _ in range(498)]
                assert {index for index, _ in first} == set(range(500)) - {3, 250}
                assert all(y[0] == 2.0 * index for index, y in first)
                (tmp_path / "gate").touch()
                assert {index for index, _ in found} == {3, 250}
