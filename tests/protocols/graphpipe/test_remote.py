"""Models of GraphPipe servers: another farm's door, and servers of one model at every path."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from farm.call import Call, ModelInfo, Result, TensorInfo
from farm.errors import InvalidInput, ModelFailed, ModelNotFound, Unavailable
from farm.protocols.graphpipe.codec import call_of, decode_request, encode_metadata, encode_result
from farm.protocols.graphpipe.remote import GraphpipeModel, models_at
from farm.worker.loader import LoadError, load_models
from tests.protocols.models import NET, SERVED, answered
from tests.support.front_door import Door, front_door


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with front_door(SERVED) as opened:
        yield opened


def test_a_server_says_what_its_model_is(door: Door) -> None:
    model = GraphpipeModel(f"{door.url}/graphpipe/double")
    assert (model.name, model.max_batch) == ("double", 1)
    assert model.inputs == {"x": TensorInfo("x", (2,))}
    assert model.outputs == {"y": TensorInfo("y", (2,)), "total": TensorInfo("total", ())}
    assert model.description == f"double at {door.url}/graphpipe/double"


def test_values_come_over_bit_for_bit(door: Door) -> None:
    x = np.array([1 / 3, -np.inf])
    y, total = answered(models_at(door.url, "double")["double"], x)
    assert y.tobytes() == (2 * x).tobytes()
    assert (total.shape, float(total)) == ((), -np.inf)
    texts = np.array([b"\xff\x00", b"", b"abc"], object)
    (length,) = answered(models_at(door.url, "a b/c")["a b/c"], texts)
    assert length.tolist() == [2, 0, 3]


def test_rows_go_in_one_request_if_the_user_says_so(door: Door) -> None:
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    url = f"{door.url}/graphpipe/net"
    NET.rows.clear()
    (y,) = answered(GraphpipeModel(url, max_batch=8), x, rows=5)
    assert y[:, 0].tolist() == x.sum(axis=1).tolist()
    assert NET.rows == [5]
    (y,) = answered(GraphpipeModel(url), x[0])
    assert y.tolist() == [3.0]
    assert NET.rows == [5, 1]


def test_a_config_goes_over_and_what_goes_wrong_is_told_by_its_kind(door: Door) -> None:
    model = models_at(door.url, "double")["double"]
    assert answered(model, [1.0, 2.0], config='{"factor":10}')[0].tolist() == [10, 20]
    with pytest.raises(ModelFailed, match=r"code 9: .*no mesh"):
        answered(model, [1001.0, 0.0])
    with pytest.raises(InvalidInput, match="length 3"):
        answered(model, [1.0, 0.0, 0.0])


def test_ways_to_name_them(door: Door) -> None:
    assert list(load_models([f"graphpipe+{door.url}/graphpipe/double"])) == ["double"]
    assert list(load_models([f"net@graphpipe+{door.url}"])) == ["net"]
    assert list(load_models([f"a b/c@graphpipe+{door.url}/"])) == ["a b/c"]
    assert list(load_models([f"other=net@graphpipe+{door.url}"])) == ["other"]
    with pytest.raises(LoadError, match=r"none@graphpipe\+http://.*status 404: no model at"):
        load_models([f"none@graphpipe+{door.url}"])


def test_a_server_that_goes_is_unavailable_and_is_there_again_later(door: Door) -> None:
    with single_server("m") as url:
        model = GraphpipeModel(url)
        assert answered(model, [1.0, 2.0])[0].tolist() == [1.0, 2.0]
    with pytest.raises(Unavailable, match="does not answer"):
        answered(model, [1.0, 2.0])
    with single_server("m", port=int(url.rpartition(":")[2])):
        assert answered(model, [1.0, 2.0])[0].tolist() == [1.0, 2.0]


@contextmanager
def single_server(
    name: str, *, port: int = 0, unanswered: list[Call] | None = None
) -> Iterator[str]:
    """A server with one model at every path, as Go's servers are; it returns its inputs.

    unanswered: requests after which the server disconnects without an answer.
    """
    info = ModelInfo(name, (TensorInfo("x", (2,)),), (TensorInfo("y", (2,)),))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = decode_request(self.rfile.read(int(self.headers["content-length"])))
            if asked is None:
                body = encode_metadata(info)
            else:
                call, wish = call_of(asked, info)
                if unanswered is not None:
                    unanswered.append(call)
                    return
                body = encode_result(wish, info, Result(call.inputs))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("repeatable", "times"), [(True, 2), (False, 1)])
def test_a_call_that_must_not_run_twice_is_asked_for_once(repeatable: bool, times: int) -> None:
    unanswered: list[Call] = []
    with single_server("m", unanswered=unanswered) as url:
        model = GraphpipeModel(url)
        model.repeatable = repeatable
        with pytest.raises(Unavailable, match="does not answer"):
            answered(model, [1.0, 2.0])
    assert len(unanswered) == times


def test_a_server_of_one_model_that_may_say_no_name() -> None:
    with single_server("m") as url:
        assert list(models_at(url)) == list(models_at(url, "m")) == ["m"]
        assert list(load_models([f"other=graphpipe+{url}/any/path"])) == ["other"]
        with pytest.raises(ModelNotFound, match=r"has the model 'm', not 'x'; .*x=graphpipe\+http"):
            models_at(url, "x")
    with single_server("") as url:
        assert list(models_at(url)) == ["graphpipe"]
        assert list(models_at(url, "mine")) == ["mine"]
