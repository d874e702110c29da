"""The published clients call a farm that knows no model yet: they wait for the first worker.

Its worker may start elsewhere, or here and still load the model.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import kubemo
import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
import umbridge
from graphpipe import remote

import farm
from tests.provision.slurm_stand_in import install
from tests.support.dispatcher_farm import LIMIT_S, Served, farm_command, serving
from tests.support.running_farm import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:numElems is deprecated:DeprecationWarning")

MODEL = """
import farm

class Double(farm.Model):
    inputs, outputs = {"x": 1}, {"y": 1}

    def evaluate(self, inputs, config):
        return 2 * inputs["x"]
"""

GATED = (
    """
import os, time

while not os.path.exists("go"):
    time.sleep(0.01)
if os.path.getsize("go"):
    raise RuntimeError(open("go").read())
"""
    + MODEL
)
"""The model, loaded once the file `go` is there; a text in it is why it cannot be loaded."""

Ask = Callable[..., object]


def umbridge_evaluate(served: Served) -> float:
    return float(umbridge.HTTPModel(served.connection.url, "Double")([[3.0]])[0][0])


def umbridge_models(served: Served) -> list[str]:
    return list(umbridge.supported_models(served.connection.url))


def triton_http(served: Served, model: str = "Double") -> float:
    url = served.connection.url.removeprefix("http://")
    with tritonclient.http.InferenceServerClient(url, network_timeout=LIMIT_S) as client:
        assert client.is_server_live()
        x = tritonclient.http.InferInput("x", [1, 1], "FP64")
        x.set_data_from_numpy(np.array([[3.0]]))
        return float(client.infer(model, [x]).as_numpy("y").item())


def triton_metadata(served: Served, model: str = "Double") -> str:
    url = served.connection.url.removeprefix("http://")
    with tritonclient.http.InferenceServerClient(url, network_timeout=LIMIT_S) as client:
        return str(client.get_model_metadata(model)["inputs"][0]["name"])


def triton_grpc(served: Served, model: str = "Double") -> float:
    with tritonclient.grpc.InferenceServerClient(served.connection.grpc) as client:
        assert client.is_server_live()
        x = tritonclient.grpc.InferInput("x", [1, 1], "FP64")
        x.set_data_from_numpy(np.array([[3.0]]))
        return float(client.infer(model, [x]).as_numpy("y").item())


def graphpipe(served: Served, model: str = "Double") -> float:
    url = f"{served.connection.url}/graphpipe/{model}"
    return float(remote.execute(url, np.array([[3.0]])).item())


def mip(served: Served, model: str = "Double") -> str:
    (address,) = served.connection.addresses["mip"]
    return str(kubemo.Client().inference(address, ((kubemo.Text("[3.0]"),),))[0][0].decode())


def farm_http(served: Served, model: str = "Double") -> object:
    url = f"{served.connection.url}/farm/models/{model}/evaluate"
    answer = requests.post(url, json={"inputs": [[3.0]]}, timeout=LIMIT_S)
    if answer.status_code != 200:
        raise requests.HTTPError(answer.text)
    return answer.json()["outputs"]


def native(served: Served, model: str = "Double") -> float:
    with farm.connect(served.folder) as client:
        return float(client.model(model)(3.0)[0])


def native_call(served: Served, model: str = "Double") -> float:
    with farm.connect(served.folder) as client:
        call = farm.Call(model, farm.Operation.EVALUATE, (np.array([3.0]),))
        return float(client.submit(call).result(LIMIT_S).outputs[0][0])


ASK: dict[Ask, object] = {
    umbridge_evaluate: 6.0,
    umbridge_models: ["Double"],
    triton_http: 6.0,
    triton_metadata: "x",
    triton_grpc: 6.0,
    graphpipe: 6.0,
    mip: "[6.0]",
    farm_http: [[6.0]],
    native: 6.0,
    native_call: 6.0,
}


IN_OTHER_WORDS: dict[Ask, str] = {
    umbridge_evaluate: r"not supported by server! Supported models are: \[\]",
    mip: "responded with error code",
}
"""What these clients say: one looks the name up in the list of models, one shows no text."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "double.py").write_text(MODEL)
    (tmp_path / "gated.py").write_text(GATED)
    return tmp_path


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(len(ASK) + 2) as threads:
        yield threads


def cold(
    folder: Path, *options: str, models: Sequence[str] = ("--workers", "0")
) -> contextlib.AbstractContextManager[Served]:
    mip_at = ("--mip", "Double=127.0.0.1:0")
    return serving(folder, *models, "--grpc-port", "0", *mip_at, *options, cold=True)


def worker(folder: Path) -> contextlib.AbstractContextManager[object]:
    """A worker that joins from elsewhere."""
    return farm_command("worker", "double.py", "--to", "run/farm.json", cwd=folder)


@contextlib.contextmanager
def loaded(folder: Path) -> Iterator[None]:
    """The farm's own worker loads its model."""
    (folder / "go").touch()
    yield


def waiting(served: Served) -> int:
    """Return the number of requests that wait for a model."""
    with farm.connect(served.folder) as client:
        return int(client.status()["requests_for_models"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("models", "comes"), [(("--workers", "0"), worker), (("gated.py", "--workers", "2"), loaded)]
)
def test_first_calls_wait_for_the_first_worker(
    folder: Path,
    pool: ThreadPoolExecutor,
    models: Sequence[str],
    comes: Callable[[Path], contextlib.AbstractContextManager[object]],
) -> None:
    with cold(folder, models=models) as served:
        url = served.connection.url
        asked: list[Future[object]] = [pool.submit(ask, served) for ask in ASK]
        wait_until(lambda: waiting(served) == len(ASK), "all requests wait")
        assert requests.get(f"{url}/v2/health/live", timeout=LIMIT_S).status_code == 200
        assert requests.get(f"{url}/v2/health/ready", timeout=LIMIT_S).status_code == 400
        with tritonclient.grpc.InferenceServerClient(served.connection.grpc) as client:
            assert client.is_server_live()
            assert not client.is_server_ready()
        unknown = pool.submit(
            requests.post,
            f"{url}/Evaluate",
            json={"name": "plate", "input": [[1.0]]},
            timeout=LIMIT_S,
        )
        wait_until(lambda: waiting(served) == len(ASK) + 1, "the unknown name waits too")
        with comes(folder):
            assert [future.result(LIMIT_S) for future in asked] == list(ASK.values())
            assert unknown.result(LIMIT_S).status_code == 400
            assert "no model 'plate' is served here" in unknown.result().text
            wait_until(lambda: waiting(served) == 0, "nobody waits")


@pytest.mark.slow
def test_a_farm_that_cannot_load_its_model_answers_those_who_wait_and_ends(
    folder: Path, pool: ThreadPoolExecutor
) -> None:
    with cold(folder, models=["gated.py"]) as served:
        asked = {ask: pool.submit(ask, served) for ask in ASK}
        info = pool.submit(requests.get, f"{served.connection.url}/Info", timeout=LIMIT_S)
        wait_until(lambda: waiting(served) == len(ASK) + 1, "all requests wait")
        (folder / "go").write_text("no licence")
        _, errors = served.process.communicate(timeout=LIMIT_S)
        for ask, future in asked.items():
            if ask is umbridge_models:
                assert future.result(LIMIT_S) == []
            else:
                said = IN_OTHER_WORDS.get(ask, "no licence")
                if ask is umbridge_evaluate:  # it asks once more, when the farm may have ended
                    said = "not supported by server|Connection"
                with pytest.raises(Exception, match=said):
                    future.result(LIMIT_S)
        assert info.result(LIMIT_S).json()["models"] == []
        assert served.process.returncode == 2
        assert errors.splitlines()[-1].startswith("farm: error: loading ")
        assert "raised RuntimeError: no licence" in errors.splitlines()[-1]
        assert "Traceback" not in errors


def test_after_the_start_timeout_each_client_gets_an_error_in_its_form(
    folder: Path, pool: ThreadPoolExecutor
) -> None:
    text = "no model is known yet: the farm waits for its first worker"
    with cold(folder, "--start-timeout", "0.5") as served:
        asked = {ask: pool.submit(ask, served) for ask in ASK}
        for ask, future in asked.items():
            if ask is umbridge_models:
                assert future.result(LIMIT_S) == []
            else:
                with pytest.raises(Exception, match=IN_OTHER_WORDS.get(ask, text)):
                    future.result(LIMIT_S)
        body = {"name": "Double", "input": [[3.0]]}
        answer = requests.post(f"{served.connection.url}/Evaluate", json=body, timeout=LIMIT_S)
        assert answer.status_code == 503
        assert answer.json()["error"] == {"type": "Unavailable", "message": text}
        assert answer.headers["retry-after"] == "1"
        with farm.connect(served.folder) as client:
            told = {(reason.kind, reason.text) for reason in client.failures()}
            assert ("Unavailable", text) in told


def test_a_client_that_leaves_is_forgotten_and_a_farm_stops_while_others_wait(
    folder: Path, pool: ThreadPoolExecutor
) -> None:
    with cold(folder, "--grace", "0.1") as served:
        host, port = served.connection.url.removeprefix("http://").split(":")
        body = b'{"name": "Double", "input": [[3.0]]}'
        head = b"POST /Evaluate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        with socket.create_connection((host, int(port))) as client:
            client.sendall(head % len(body) + body)
            wait_until(lambda: waiting(served) == 1, "the request waits")
        wait_until(lambda: waiting(served) == 0, "nobody waits")
        for ask in ASK:
            pool.submit(ask, served)
        wait_until(lambda: waiting(served) == len(ASK), "all requests wait")
        status, _, _ = served.stop()
        assert status == 0


LATER = """
import os, time

if "SLURM_JOB_ID" not in os.environ:
    raise RuntimeError("only jobs have the licence")
while not os.path.exists("licence"):
    time.sleep(0.02)

import farm

class Triple(farm.Model):
    inputs, outputs = {"x": 1}, {"y": 1}

    def evaluate(self, inputs, config):
        return 3 * inputs["x"]

class Sum(farm.Model):
    inputs, outputs = {"x": 200000}, {"y": 1}

    def evaluate(self, inputs, config):
        return inputs["x"].sum(keepdims=True)
"""
"""A model that only a job can describe, and only once the test lets it."""

TWO_KINDS = """
host = "127.0.0.1"

[[workers]]
name = "small"
models = ["double.py"]

[[workers]]
name = "licensed"
models = ["later.py:Triple", "later.py:Sum"]
"""


def umbridge_by_name(served: Served, name: str = "Triple", size: int = 1) -> requests.Response:
    """Evaluate a model that /Info does not list yet, which the published client refuses to do."""
    url = f"{served.connection.url}/Evaluate"
    return requests.post(url, json={"name": name, "input": [[1.0] * size]}, timeout=LIMIT_S)


@pytest.mark.slow
def test_names_of_a_kind_that_is_not_described_wait_while_others_are_answered(
    folder: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{install(folder / 'bin')}:{os.environ['PATH']}")
    (folder / "later.py").write_text(LATER)
    (folder / "plan.toml").write_text(TWO_KINDS)
    mip_at = ("--mip", "Triple=127.0.0.1:0")
    options = ("--cluster", "plan.toml", "--grpc-port", "0", "--no-supervise", *mip_at)
    with serving(folder, *options) as served:
        wait_until(lambda: umbridge_models(served) == ["Double"], "the kind that can be described")
        named = [ask for ask in ASK if ask not in (umbridge_evaluate, umbridge_models)]
        asked = [pool.submit(ask, served, "Triple") for ask in named]
        asked += [
            pool.submit(lambda: umbridge_by_name(served).json()["output"]),
            pool.submit(lambda: umbridge_by_name(served, "Sum", 200_000).json()["output"]),
        ]
        unknown = pool.submit(umbridge_by_name, served, "plate")
        wait_until(lambda: waiting(served) == len(asked) + 1, "all requests wait")
        assert umbridge_evaluate(served) == 6.0
        (folder / "licence").touch()
        values = [9.0, "x", 9.0, 9.0, "[9.0]", [[9.0]], 9.0, 9.0, [[3.0]], [[200_000.0]]]
        assert [future.result(LIMIT_S) for future in asked] == values
        answer = unknown.result(LIMIT_S)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "ModelNotFound")
        wait_until(lambda: waiting(served) == 0, "nobody waits")


@pytest.mark.slow
def test_a_name_that_nobody_describes_is_refused_in_time_with_the_reason(
    folder: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{install(folder / 'bin')}:{os.environ['PATH']}")
    (folder / "later.py").write_text(LATER)
    (folder / "plan.toml").write_text(TWO_KINDS)
    options = ("--cluster", "plan.toml", "--no-supervise", "--start-timeout", "1")
    with serving(folder, *options) as served:
        wait_until(lambda: umbridge_models(served) == ["Double"], "the kind that can be described")
        answers = {
            200_000: pool.submit(umbridge_by_name, served, "Sum", 200_000),
            1: pool.submit(umbridge_by_name, served),
        }
        for answer in (future.result(LIMIT_S) for future in answers.values()):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            message = answer.json()["error"]["message"]
            assert "is served here; the models are 'Double'; but waiting for workers" in message
            assert "kind licensed" in message
        with pytest.raises(Exception, match="but waiting for workers of kind licensed"):
            triton_http(served, "Triple")
        with pytest.raises(Exception, match="but waiting for workers of kind licensed"):
            graphpipe(served, "Triple")
