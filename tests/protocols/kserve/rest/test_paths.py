"""The routes of the paths below /v2."""

from __future__ import annotations

import pytest

from farm.bodies.unpacking import Refused
from farm.http1.request import Request
from farm.protocols.kserve.rest.paths import (
    LONGEST_REMEMBERED,
    RestEndpoint,
    Route,
    check_method,
    is_below,
    is_stream,
    route_of,
)


def asked(method: str, path: str) -> Request:
    return Request(method, path, {}, b"", "127.0.0.1", "")


@pytest.mark.parametrize(
    ("target", "route"),
    [
        ("/v2", Route(RestEndpoint.SERVER)),
        ("/v2/", Route(RestEndpoint.SERVER)),
        ("/v2?a=b", Route(RestEndpoint.SERVER)),
        ("/v2/health/ready?x", Route(RestEndpoint.READY)),
        ("/v2/models/stats", Route(RestEndpoint.STATISTICS)),
        ("/v2/models/m", Route(RestEndpoint.MODEL, "m")),
        ("/v2/models/m/versions/1", Route(RestEndpoint.MODEL, "m", "1")),
        ("/v2/models/m/versions/1/config", Route(RestEndpoint.CONFIG, "m", "1")),
        ("/v2/models/m/versions/7/infer?q=1", Route(RestEndpoint.INFER, "m", "7")),
        ("/v2/models/m/trace/setting", Route(RestEndpoint.NOT_OFFERED, "m")),
        ("/v2/models/a%20b%2Fc%25/infer", Route(RestEndpoint.INFER, "a b/c%")),
        ("/v2/models/a%20b/c/versions/1/infer", Route(RestEndpoint.INFER, "a b/c", "1")),
        ("/v2/models/a/b", Route(RestEndpoint.MODEL, "a/b")),
        ("/v2/models/infer/infer", Route(RestEndpoint.INFER, "infer")),
        ("/v2/models/ready", Route(RestEndpoint.MODEL, "ready")),
        ("/v2/models/versions/1", Route(RestEndpoint.MODEL, "versions/1")),
        ("/v2/models/%F0%9F%8C%8A", Route(RestEndpoint.MODEL, "🌊")),
        (
            "/v2/models/" + "m" * LONGEST_REMEMBERED,
            Route(RestEndpoint.MODEL, "m" * LONGEST_REMEMBERED),
        ),
        ("/v2/repository/models/a/b/load", Route(RestEndpoint.LOAD, "a/b")),
        ("/v2/repository/models/a%2Fb/unload", Route(RestEndpoint.UNLOAD, "a/b")),
        ("/v2/systemsharedmemory/region/a/b%2F/status", Route(RestEndpoint.REGION_STATUS, "a/b/")),
        ("/v2/systemsharedmemory/unregister", Route(RestEndpoint.REGION_UNREGISTER)),
        ("/v2/cudasharedmemory/region/r/register", Route(RestEndpoint.CUDA_REGISTER, "r")),
    ],
)
def test_paths_lead_somewhere(target: str, route: Route) -> None:
    assert is_below(target)
    assert route_of(target) == route


IN_A_FOLDER = (
    *("/v2/repository/models/m/reload", "/v2/systemsharedmemory"),
    *("/v2/systemsharedmemory/region/status", "/v2/systemsharedmemory/elsewhere/r/status"),
)


@pytest.mark.parametrize("target", ["/v2/nope", "/v2//", "/v2/health", "/v2/Models", *IN_A_FOLDER])
def test_others_lead_nowhere(target: str) -> None:
    with pytest.raises(Refused, match="nothing is at /v2") as caught:
        route_of(target)
    assert caught.value.status == 404
    for other in ("/", "/v22", "/v2x/models", "/V2", "v2", "/v1/models"):
        assert not is_below(other)


def test_streams_are_told_by_their_end() -> None:
    assert is_stream("/v2/models/m/generate_stream")
    assert is_stream("/v2/models/m/versions/1/infer_stream?x=/")
    assert not is_stream("/v2/models/m/infer?x=/generate_stream/")
    assert not is_stream("/v2/models/m/generate")


@pytest.mark.parametrize(
    ("method", "target", "allow"),
    [
        ("GET", "/v2/models/m/infer", "POST"),
        ("PUT", "/v2/models/m/infer", "POST"),
        ("GET", "/v2/repository/index", "POST"),
        ("GET", "/v2/systemsharedmemory/region/r/register", "POST"),
        ("POST", "/v2/systemsharedmemory/status", "GET, HEAD"),
        ("POST", "/v2/models/m", "GET, HEAD"),
        ("POST", "/v2", "GET, HEAD"),
        ("DELETE", "/v2/health/live", "GET, HEAD"),
    ],
)
def test_wrong_methods_hear_the_right_one(method: str, target: str, allow: str) -> None:
    with pytest.raises(Refused, match="is asked with") as caught:
        check_method(route_of(target), asked(method, target))
    assert caught.value.status == 405
    assert dict(caught.value.headers) == {b"allow": allow.encode()}


def test_right_methods_pass_and_a_misspelt_verb_is_no_model() -> None:
    for method, target in (
        ("GET", "/v2"),
        ("HEAD", "/v2/health/ready"),
        ("POST", "/v2/models/m/infer"),
        ("GET", "/v2/logging"),
        ("POST", "/v2/logging"),
    ):
        check_method(route_of(target), asked(method, target))
    with pytest.raises(Refused, match="nothing is at /v2/models/m/infr") as caught:
        check_method(route_of("/v2/models/m/infr"), asked("POST", "/v2/models/m/infr"))
    assert caught.value.status == 404
