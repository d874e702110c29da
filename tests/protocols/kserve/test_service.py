"""The KServe service over both REST and gRPC."""

from __future__ import annotations

from farm.dispatcher.dispatcher import Dispatcher
from farm.http1.access import Access
from farm.http1.asgi import Application
from farm.protocols.interface import Site
from farm.protocols.kserve.grpc.endpoint import KServeGrpc
from farm.protocols.kserve.rest.endpoint import KServeEndpoint
from farm.protocols.kserve.rest.endpoint_v1 import KServeV1Endpoint
from farm.protocols.kserve.service import serve
from farm.settings import Settings
from tests.support.coroutines import on_uvloop


def site() -> Site:
    access = Access(None)
    return Site(Dispatcher([]), access, access, Settings())


def test_streams_are_applications_and_everything_else_below_v2_is_a_door() -> None:
    find = serve(site()).find
    assert find is not None
    assert isinstance(find("/v2/models/double/infer"), KServeEndpoint)
    assert isinstance(find("/v2/models/double/generate_stream?x=1"), Application)
    assert isinstance(find("/v1/models/double:predict"), KServeV1Endpoint)
    assert find("/v20") is None
    assert find("/v10") is None
    assert find("/Info") is None


def test_inference_of_both_versions_waits_for_its_model() -> None:
    waits = serve(site()).waits
    assert waits is not None
    assert waits("POST", "/v1/models/double:predict", {})
    assert waits("POST", "/v2/models/double/infer", {})
    assert not waits("GET", "/v1/models/double", {})


@on_uvloop
async def test_a_model_that_is_unloaded_over_grpc_is_so_over_rest() -> None:
    endpoints = serve(site())
    assert endpoints.find is not None
    assert endpoints.grpc is not None
    door, service = endpoints.find("/v2"), endpoints.grpc()
    assert isinstance(door, KServeEndpoint)
    assert isinstance(service, KServeGrpc)
    assert door._repository is service._repository
