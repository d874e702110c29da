"""The interface between a farm and its protocols: services it offers, endpoints it receives.

A descriptor's `serve` is a function from a Site to an Endpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from starlette.types import ASGIApp

from farm.bodies.readers import READS_HERE, Reads
from farm.call import ModelInfo
from farm.dispatcher.call_statistics import ModelStatistics
from farm.dispatcher.dispatcher import Dispatcher
from farm.grpc.call import Service
from farm.http1.access import Access
from farm.http1.asgi import Application
from farm.http1.request import Handler
from farm.settings import Settings


@dataclass(frozen=True, slots=True)
class Site:
    """One farm, as its protocols see it.

    backend: runs calls and knows the models. access: access rules; open_access: the same for
    protocols whose messages have no token. settings: of the farm; options: of the protocol, from
    its `check`. readers: decode and encode long messages in processes of their own.
    """

    backend: Dispatcher
    access: Access
    open_access: Access
    settings: Settings
    options: Any = None
    readers: Reads = READS_HERE


Waits = Callable[[str, str, Mapping[str, ModelInfo]], bool]


class Listening(NamedTuple):
    """The result of starting a listener. address: for farm.json; lines: printed to the user."""

    address: str | Mapping[str, str]
    lines: Sequence[str]


class ProtocolListener(Protocol):
    """Serves a protocol at addresses of its own."""

    async def start(self) -> Listening:
        """Listen. Raises Unavailable or SettingsError; the farm then calls `stop` too."""

    async def stop(self, grace_s: float) -> None:
        """Accept nothing new, let running requests end within `grace_s` seconds, fail the rest."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The endpoints of one protocol.

    paths: handlers of exactly these HTTP paths. find: returns the handler or application of another
    path, or None if the path does not belong to this protocol. root: answers POST at /.
    otherwise: answers all remaining paths; only one protocol has it. grpc: creates methods for the
    farm's gRPC port, called if there is one; grpc_descriptors: a serialized FileDescriptorSet of
    their services, for server reflection. listener: serves at addresses of its own. waits: from
    method, path and the known models to whether the handler's request waits for more of these.
    check: raises SettingsError if the options do not fit the farm's models, once these are known.
    metrics: lines of /metrics, from a snapshot's queues, the statistics, and the type of counters.
    close: releases the protocol's resources when the farm stops. hurry: makes running requests end
    now, when the farm stops at once.
    """

    paths: Mapping[str, Handler] = field(default_factory=dict)
    find: Callable[[str], Handler | Application | None] | None = None
    root: Handler | None = None
    otherwise: ASGIApp | None = None
    grpc: Callable[[], Service] | None = None
    grpc_descriptors: bytes = b""
    listener: ProtocolListener | None = None
    waits: Waits | None = None
    check: Callable[[Mapping[str, ModelInfo]], None] | None = None
    metrics: Callable[[Any, Mapping[str, ModelStatistics], str], Iterable[str]] | None = None
    close: Callable[[], None] | None = None
    hurry: Callable[[], None] | None = None
