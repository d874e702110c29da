"""Serves KServe v2: REST on the HTTP port, and gRPC if the farm has a port for it."""

from __future__ import annotations

from farm.bodies.held import HeldBytes
from farm.encoding.json_numbers import NonFinite
from farm.http.asgi import Application
from farm.http.request import Handler
from farm.machine.memory import usable_memory
from farm.protocols.kserve.dialect import OPEN
from farm.protocols.kserve.grpc.descriptors import DESCRIPTORS
from farm.protocols.kserve.grpc.endpoint import KServeGrpc
from farm.protocols.kserve.repository import Repository
from farm.protocols.kserve.rest.endpoint import KServeEndpoint
from farm.protocols.kserve.rest.endpoint_stream import KServeStreams
from farm.protocols.kserve.rest.paths import is_below, is_stream, needs_model
from farm.protocols.kserve.shared_memory.endpoint_carrier import Carrier
from farm.protocols.kserve.shared_memory.regions import Regions
from farm.protocols.site import Endpoints, Site

SHARE_OF_MEMORY = 4
"""Inputs read from shared memory may use 1 / SHARE_OF_MEMORY of the memory, as bodies may."""


def serve(site: Site) -> Endpoints:
    """Return the endpoints; unloading a model over REST or gRPC unloads it for both."""
    backend, readers = site.backend, site.readers
    dialect = OPEN if site.options is None else site.options
    repository, non_finite = Repository(backend, dialect), NonFinite(site.settings.non_finite)
    regions = Regions()
    carrier = Carrier(
        regions,
        readers,
        most_bytes=site.settings.max_body_bytes,
        held=HeldBytes(site.settings.max_held_bytes or usable_memory() // SHARE_OF_MEMORY),
    )
    whole = KServeEndpoint(
        backend,
        repository,
        non_finite=non_finite,
        readers=readers,
        dialect=dialect,
        regions=regions,
        carrier=carrier,
    )
    streams = KServeStreams(
        backend,
        repository,
        non_finite=non_finite,
        readers=readers,
        dialect=dialect,
        carrier=carrier,
    )
    streamed = Application(streams, streams.error_body)

    def find(path: str) -> Handler | Application | None:
        if not is_below(path):
            return None
        return streamed if is_stream(path) else whole

    def grpc() -> KServeGrpc:
        return KServeGrpc(backend, repository, readers, dialect, regions, carrier)

    return Endpoints(
        find=find,
        grpc=grpc,
        grpc_descriptors=DESCRIPTORS,
        waits=needs_model,
        close=carrier.close,
    )
