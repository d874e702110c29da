"""Serves KServe: REST of V1 and V2 on the HTTP port, and gRPC if the farm has a port for it."""

from __future__ import annotations

from collections.abc import Mapping

from farm.call import ModelInfo
from farm.encoding.json_numbers import NonFinite
from farm.http.asgi import Application
from farm.http.request import Handler
from farm.protocols.kserve.grpc.endpoint import KServeGrpc
from farm.protocols.kserve.repository import Repository
from farm.protocols.kserve.rest.endpoint import KServeEndpoint
from farm.protocols.kserve.rest.endpoint_stream import KServeStreams
from farm.protocols.kserve.rest.endpoint_v1 import KServeV1Endpoint
from farm.protocols.kserve.rest.paths import is_below, is_stream, needs_model
from farm.protocols.kserve.rest.v1_paths import is_below_v1, v1_needs_model
from farm.protocols.site import Endpoints, Site


def serve(site: Site) -> Endpoints:
    """Return the endpoints; unloading a model over REST or gRPC unloads it for both."""
    backend, readers = site.backend, site.readers
    repository, non_finite = (
        Repository(backend, reuses=site.settings.reuse),
        NonFinite(site.settings.non_finite),
    )
    whole = KServeEndpoint(backend, repository, non_finite=non_finite, readers=readers)
    of_v1 = KServeV1Endpoint(backend, repository, non_finite=non_finite, readers=readers)
    streams = KServeStreams(backend, repository, non_finite=non_finite, readers=readers)
    streamed = Application(streams, streams.error_body)

    def find(path: str) -> Handler | Application | None:
        if is_below_v1(path):
            return of_v1
        if not is_below(path):
            return None
        return streamed if is_stream(path) else whole

    def grpc() -> KServeGrpc:
        return KServeGrpc(backend, repository, readers)

    def waits(method: str, path: str, models: Mapping[str, ModelInfo]) -> bool:
        return needs_model(method, path, models) or v1_needs_model(method, path, models)

    return Endpoints(find=find, grpc=grpc, waits=waits)
