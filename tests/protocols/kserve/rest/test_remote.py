"""Models of KServe v2 servers: another farm's door, and omissions of other servers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from farm.call import TensorInfo
from farm.errors import InvalidInput, ModelFailed, ModelNotFound, Unavailable
from farm.model import Model
from farm.protocols.kserve.rest.remote import KserveModel, models_at
from farm.worker.loader import LoadError, load_models
from tests.protocols.models import NET, SERVED, answered
from tests.support.front_door import Door, front_door
from tests.worker.scripted import Scripted, scripted


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with front_door(SERVED) as opened:
        yield opened


@pytest.fixture(scope="module")
def models(door: Door) -> dict[str, Model]:
    return models_at(door.url)


def test_a_server_says_what_its_models_are(models: dict[str, Model]) -> None:
    assert sorted(models) == ["a b/c", "double", "net"]
    assert models["double"].inputs == {"x": TensorInfo("x", (2,))}
    assert models["double"].outputs["total"] == TensorInfo("total", ())
    assert [m.max_batch for m in (models["double"], models["net"])] == [1, 8]
    assert models["a b/c"].inputs == {"text": TensorInfo("text", (-1,), "bytes")}


def test_values_come_over_bit_for_bit(models: dict[str, Model]) -> None:
    x = np.array([1 / 3, -np.inf])
    y, total = answered(models["double"], x)
    assert y.tobytes() == (2 * x).tobytes()
    assert (total.shape, float(total)) == ((), -np.inf)
    (length,) = answered(models["a b/c"], np.array([b"\xff\x00", b"", b"abc"], object))
    assert length.tolist() == [2, 0, 3]


def test_rows_go_in_one_request(models: dict[str, Model]) -> None:
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    NET.rows.clear()
    (y,) = answered(models["net"], x, rows=5)
    assert y.dtype == np.float32
    assert y[:, 0].tolist() == x.sum(axis=1).tolist()
    assert NET.rows == [5]


def test_what_a_call_gets_wrong_is_told_by_its_kind(models: dict[str, Model]) -> None:
    with pytest.raises(ModelFailed, match=r"status 500: .*no mesh"):
        answered(models["double"], [1001.0, 0.0])
    with pytest.raises(InvalidInput, match=r"double at http://.* takes no config, got \{'n': 1\}"):
        answered(models["double"], [1.0, 0.0], config='{"n":1}')


def test_ways_to_name_them(door: Door) -> None:
    port = door.address[1]
    assert len(load_models([f"kserve+{door.url}"])) == 3
    assert list(load_models([f"other=net@kserve+{door.url}"])) == ["other"]
    assert list(load_models([f"a b/c@kserve+{door.url}"])) == ["a b/c"]
    with pytest.raises(LoadError, match=rf"none@kserve\+http://127.0.0.1:{port}: .*status 404"):
        load_models([f"none@kserve+{door.url}"])


# --- omissions of other servers ---------------------------------------------------------------

METADATA = {
    "name": "m",
    "inputs": [{"name": "x", "datatype": "FP64", "shape": [-1, 2]}],
    "outputs": [{"name": "y", "datatype": "FP64", "shape": [-1, 1]}],
}
ANSWER = {"outputs": [{"name": "y", "datatype": "FP64", "shape": [1, 1], "data": [7.5]}]}


def other_server(**changes: Any) -> dict[str, tuple[int, Any]]:
    """Return MLServer's answers: no configuration, JSON even if raw tensors were requested."""
    return {
        "/v2/models/m": (200, METADATA),
        "/v2/models/m/config": (404, {"detail": "Not Found"}),
        "/v2/models/m/infer": (200, ANSWER),
    } | changes


def test_without_a_configuration_rows_go_one_by_one() -> None:
    with scripted(other_server()) as server:
        model = KserveModel(server.url, "m")
        assert (model.max_batch, model.inputs) == (1, {"x": TensorInfo("x", (2,))})
        (y,) = answered(model, [1.0, 2.0])
        assert y.tolist() == [7.5]
        assert sent(server)["inputs"][0]["shape"] == [1, 2]
        answered(model, [1.0, 2.0])
        assert len(server.connections) == 1, "the connection is used again"


def test_a_user_may_say_how_many_rows_it_takes() -> None:
    answer = {"outputs": [ANSWER["outputs"][0] | {"shape": [2, 1], "data": [1.0, 2.0]}]}
    with scripted(other_server(**{"/v2/models/m/infer": (200, answer)})) as server:
        model = KserveModel(server.url, "m", max_batch=4)
        (y,) = answered(model, np.ones((2, 2)), rows=2)
        assert y.tolist() == [[1.0], [2.0]]
        assert sent(server)["inputs"][0]["shape"] == [2, 2]


def test_a_configuration_without_batches_leaves_the_shapes_alone() -> None:
    config = {"/v2/models/m/config": (200, {"max_batch_size": 0})}
    with scripted(other_server(**config)) as server:
        model = KserveModel(server.url, "m")
        assert model.inputs == {"x": TensorInfo("x", (-1, 2))}
        (y,) = answered(model, np.ones((1, 2)))
        assert y.tolist() == [[7.5]]
        assert sent(server)["inputs"][0]["shape"] == [1, 2]


@pytest.mark.parametrize(("repeatable", "times"), [(True, 2), (False, 1)])
def test_an_inference_that_must_not_run_twice_is_asked_for_once(
    repeatable: bool, times: int
) -> None:
    with scripted(other_server(**{"/v2/models/m/infer": (200, None)})) as server:
        model = KserveModel(server.url, "m")
        model.repeatable = repeatable
        before = len(server.requests)
        with pytest.raises(Unavailable, match="does not answer"):
            answered(model, [1.0, 2.0])
        assert len(server.requests) - before == times


def test_a_server_that_lists_no_models_needs_a_name_and_may_be_gone() -> None:
    with scripted({"/v2/repository/index": (404, {"detail": "Not Found"})}) as server:
        said = r"which one: MODEL@kserve\+http://127.0.0.1"
        with pytest.raises(ModelNotFound, match=said):
            models_at(server.url)
    with socket.socket() as bound:  # nobody else gets its port, and it does not listen
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(Unavailable, match="does not answer"):
            models_at(f"http://127.0.0.1:{bound.getsockname()[1]}")


def sent(server: Scripted) -> Any:
    """Return the JSON of the last request."""
    head, body = server.requests[-1]
    return json.loads(body[: int(head["inference-header-content-length"])])
