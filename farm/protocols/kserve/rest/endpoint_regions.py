"""The paths of shared memory: status, register and unregister of its regions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import orjson

from farm.bodies.body import HEAVY_BYTES, HeldBody
from farm.bodies.unpacking import too_large
from farm.errors import InvalidInput
from farm.http.request import Request
from farm.protocols.kserve.rest.codec import decode_object
from farm.protocols.kserve.rest.paths import RestEndpoint, Route
from farm.protocols.kserve.shared_memory.regions import Regions, check_owner, refuse_cuda

NO_REGIONS = b"[]"


def region_handlers(
    regions: Regions,
) -> Mapping[RestEndpoint, Callable[[Route, Request], bytes]]:
    """Return the handlers of the paths; those of CUDA shared memory know no region."""

    def status(route: Route, request: Request) -> bytes:
        check_owner(request.is_owner_here())
        return orjson.dumps(regions.status(route.model))

    def register(route: Route, request: Request) -> bytes:
        check_owner(request.is_owner_here())
        if isinstance(request.body, HeldBody):
            raise too_large(HEAVY_BYTES)
        message = decode_object(request.body)
        for member in ("key", "byte_size"):
            if member not in message:
                raise InvalidInput(f"Shared memory register request has no '{member}' field")
        key, size = message["key"], message["byte_size"]
        regions.register(route.model, key, message.get("offset", 0), size)
        return b""

    def unregister(route: Route, request: Request) -> bytes:
        check_owner(request.is_owner_here())
        regions.unregister(route.model)
        return b""

    def refuse(route: Route, request: Request) -> bytes:
        raise refuse_cuda()

    return MappingProxyType(
        {
            RestEndpoint.REGION_STATUS: status,
            RestEndpoint.REGION_REGISTER: register,
            RestEndpoint.REGION_UNREGISTER: unregister,
            RestEndpoint.CUDA_STATUS: lambda route, request: NO_REGIONS,
            RestEndpoint.CUDA_REGISTER: refuse,
            # Nothing is registered; clients unregister all of both kinds before they begin.
            RestEndpoint.CUDA_UNREGISTER: lambda route, request: b"",
        }
    )
