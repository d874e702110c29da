"""The paths of KServe's V1 protocol."""

from __future__ import annotations

import pytest

from farm.bodies.unpacking import Refused
from farm.protocols.kserve.rest.endpoint_v1 import is_below_v1, v1_needs_model, v1_route_of
from farm.protocols.kserve.rest.paths import RestEndpoint, Route

READY, PREDICT = RestEndpoint.MODEL_READY, RestEndpoint.INFER


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("GET", "/v1/models", Route(RestEndpoint.MODELS)),
        ("HEAD", "/v1/models?x=1", Route(RestEndpoint.MODELS)),
        ("GET", "/v1/models/m", Route(READY, "m")),
        ("GET", "/v1/models/a%2Fb", Route(READY, "a/b")),
        ("GET", "/v1/models/a/b", Route(READY, "a/b")),
        ("GET", "/v1/models/a:b", Route(READY, "a:b")),
        ("GET", "/v1/models/m/versions/2", Route(READY, "m", "2")),
        ("POST", "/v1/models/m:predict", Route(PREDICT, "m")),
        ("POST", "/v1/models/m:predict?x", Route(PREDICT, "m")),
        ("POST", "/v1/models/m%3Apredict", Route(PREDICT, "m")),
        ("POST", "/v1/models/a:b:predict", Route(PREDICT, "a:b")),
        ("POST", "/v1/models/a/b%20c:predict", Route(PREDICT, "a/b c")),
        ("POST", "/v1/models/m/versions/2:predict", Route(PREDICT, "m", "2")),
        ("POST", "/v1/models/m:explain", Route(RestEndpoint.NOT_OFFERED, "m")),
        ("POST", "/v1/models/m:regress", Route(RestEndpoint.NOT_OFFERED, "m")),
    ],
)
def test_routes(method: str, path: str, route: Route) -> None:
    assert v1_route_of(method, path) == route


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1", 404),
        ("GET", "/v1/", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/v1/other", 404),
        ("POST", "/v1/models/m:guess", 404),
        ("POST", "/v1/models/:predict", 405),
        ("POST", "/v1/models/m", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/v1/models/m:predict", 405),
        ("DELETE", "/v1/models/m:predict", 405),
    ],
)
def test_paths_and_methods_that_are_not_there(method: str, path: str, status: int) -> None:
    with pytest.raises(Refused) as caught:
        v1_route_of(method, path)
    assert caught.value.status == status


def test_what_is_below() -> None:
    assert all(map(is_below_v1, ("/v1", "/v1/models", "/v1?x")))
    assert not any(map(is_below_v1, ("/v10", "/v2/v1", "/", "/V1")))


def test_only_predictions_wait_for_a_model() -> None:
    assert v1_needs_model("POST", "/v1/models/m:predict", ["n"])
    assert not v1_needs_model("POST", "/v1/models/m:predict", ["m"])
    assert not v1_needs_model("POST", "/v1/models/m:explain", ["n"])
    assert not v1_needs_model("GET", "/v1/models/m", ["n"])
    assert not v1_needs_model("POST", "/v1/x", ["n"])
    assert not v1_needs_model("POST", "/v2/models/m/infer", ["n"])
