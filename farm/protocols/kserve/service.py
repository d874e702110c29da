"""Serves KServe: REST of V1 and V2 on the HTTP port, and gRPC if the farm has a port for it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from farm.bodies.held import HeldBytes
from farm.call import ModelInfo
from farm.encoding.json_numbers import NonFinite
from farm.http1.asgi import Application
from farm.http1.request import Handler
from farm.machine.resources import usable_memory
from farm.protocols.interface import Endpoints, Site
from farm.protocols.kserve.dialect import OPEN
from farm.protocols.kserve.endpoint_inference import Inference
from farm.protocols.kserve.grpc.codec import DESCRIPTORS
from farm.protocols.kserve.grpc.endpoint import KServeGrpc
from farm.protocols.kserve.metadata import metrics_of
from farm.protocols.kserve.repository import Repository
from farm.protocols.kserve.rest.endpoint import KServeEndpoint
from farm.protocols.kserve.rest.endpoint_stream import KServeStreams
from farm.protocols.kserve.rest.endpoint_v1 import KServeV1Endpoint, is_below_v1, v1_needs_model
from farm.protocols.kserve.rest.paths import is_below, is_stream, needs_model
from farm.protocols.kserve.shared_memory.endpoint_carrier import Carrier
from farm.protocols.kserve.shared_memory.regions import Regions

SHARE_OF_MEMORY = 4
"""Inputs read from shared memory may use 1 / SHARE_OF_MEMORY of the memory, as bodies may."""


def serve(site: Site) -> Endpoints:
    """Return the endpoints; unloading a model over REST or gRPC unloads it for both."""
    backend, readers = site.backend, site.readers
    dialect = OPEN if site.options is None else site.options
    repository = Repository(backend, dialect, reuses=site.settings.reuse)
    non_finite = NonFinite(site.settings.non_finite)
    carrier = Carrier(
        Regions(),
        readers,
        most_bytes=site.settings.max_body_bytes,
        held=HeldBytes(site.settings.max_held_bytes or usable_memory() // SHARE_OF_MEMORY),
    )
    inference = Inference(backend, repository, readers, carrier)
    whole = KServeEndpoint(inference, non_finite)
    streams = KServeStreams(inference, non_finite)
    # Triton has no V1: it speaks farm's own dialect.
    of_v1 = KServeV1Endpoint(Inference(backend, repository, readers, carrier, OPEN), non_finite)
    streamed = Application(streams, streams.error_form)

    def find(path: str) -> Handler | Application | None:
        if is_below_v1(path):
            return of_v1
        if not is_below(path):
            return None
        return streamed if is_stream(path) else whole

    def grpc() -> KServeGrpc:
        return KServeGrpc(inference)

    def waits(method: str, path: str, models: Mapping[str, ModelInfo]) -> bool:
        return needs_model(method, path, models) or v1_needs_model(method, path, models)

    return Endpoints(
        find=find,
        grpc=grpc,
        grpc_descriptors=DESCRIPTORS,
        waits=waits,
        metrics=partial(metrics_of, backend.models()),
        close=carrier.close,
    )
