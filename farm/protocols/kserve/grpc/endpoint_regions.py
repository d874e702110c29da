"""The methods of shared memory: status, register and unregister of its regions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from farm.bodies.body import Body
from farm.bodies.unpacking import Refused
from farm.grpc.call import Caller, Unary
from farm.grpc.messages import GrpcFailure
from farm.protocols.kserve.grpc.codec import decode, encode
from farm.protocols.kserve.shared_memory.regions import Regions, check_owner, refuse_cuda

STATUSES = {"Forbidden": "PERMISSION_DENIED", "NotFound": "NOT_FOUND"}
"""The status that answers each kind of refusal; the others of shared memory are ALREADY_EXISTS."""


def failure_of(refused: Refused) -> GrpcFailure:
    """Return the same refusal for a gRPC call."""
    return GrpcFailure(STATUSES.get(refused.kind, "ALREADY_EXISTS"), refused.message)


def region_methods(regions: Regions, short: Callable[[Body], bytes]) -> dict[str, Unary]:
    """Return the methods by name; those of CUDA shared memory know no region.

    short: returns the body of a short message, and raises for a long one.
    """

    def method(name: str, tell: Callable[[Any], Mapping[str, Any]]) -> Unary:
        async def answer(body: Body, caller: Caller) -> bytes:
            asked = decode(f"inference.SystemSharedMemory{name}Request", short(body))
            try:
                check_owner(caller.is_owner_here())
                told = tell(asked)
            except Refused as refused:
                raise failure_of(refused) from None
            return encode(f"inference.SystemSharedMemory{name}Response", told)

        return answer

    def status(asked: Any) -> Mapping[str, Any]:
        return {"regions": {region["name"]: region for region in regions.status(asked.name)}}

    def register(asked: Any) -> Mapping[str, Any]:
        regions.register(asked.name, asked.key, asked.offset, asked.byte_size)
        return {}

    def unregister(asked: Any) -> Mapping[str, Any]:
        regions.unregister(asked.name)
        return {}

    async def refuse(body: Body, caller: Caller) -> bytes:
        raise refuse_cuda()

    async def nothing(body: Body, caller: Caller) -> bytes:
        return b""

    return {
        "SystemSharedMemoryStatus": method("Status", status),
        "SystemSharedMemoryRegister": method("Register", register),
        "SystemSharedMemoryUnregister": method("Unregister", unregister),
        "CudaSharedMemoryStatus": nothing,
        "CudaSharedMemoryRegister": refuse,
        # Nothing is registered; clients unregister all of both kinds before they begin.
        "CudaSharedMemoryUnregister": nothing,
    }
