"""Experiments served on a loop, and a client of AEPsych's messages that sees every byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.experiment.ask.fitters import Fitters
from farm.experiment.host import Experiments
from farm.http1.access import Access
from farm.protocols.aepsych.codec import MAX_MESSAGE_BYTES
from farm.protocols.aepsych.service import TIMEOUTS, AepsychServer, AepsychTimeouts
from tests.support.coroutines import LIMIT_S

CONFIG: dict[str, dict[str, Any]] = {
    "common": {
        "parnames": ["x", "y"],
        "outcome_types": ["continuous"],
        "strategy_names": ["begin", "go_on"],
    },
    "x": {"par_type": "continuous", "lower_bound": 0, "upper_bound": 1},
    "y": {"par_type": "continuous", "lower_bound": -5, "upper_bound": 5},
    # Random points need no library that is slow to load.
    "begin": {"generator": "RandomGenerator", "min_asks": 3},
    "go_on": {"generator": "RandomGenerator", "min_asks": 1000},
}
"""An experiment of two strategies."""

SETUP = {"config_dict": CONFIG}


def request(kind: str, message: Mapping[str, Any] | None = None) -> bytes:
    """Return a message as the Python client writes it."""
    return json.dumps({"type": kind, "message": message or {}}).encode()


def tell(config: Mapping[str, Any], outcome: Any) -> dict[str, Any]:
    """Return the contents of a tell for a point."""
    return {"config": config, "outcome": outcome}


class Client:
    """One connection; answers are split by their braces alone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._unread = ""

    def send(self, data: bytes) -> None:
        """Send without waiting."""
        self.writer.write(data)

    async def ask(self, kind: str, message: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return its answer."""
        self.send(request(kind, message))
        return await self.answer()

    async def answer(self) -> dict[str, Any]:
        """Return the next answer."""
        while True:
            with contextlib.suppress(ValueError):
                value, end = json.JSONDecoder().raw_decode(self._unread)
                self._unread = self._unread[end:]
                assert isinstance(value, dict)
                return value
            data = await asyncio.wait_for(self.reader.read(1 << 16), LIMIT_S)
            assert data, f"the connection ended after {self._unread!r}"
            self._unread += data.decode("ascii")

    async def rest(self) -> str:
        """Return everything received until the connection ends."""
        data = await asyncio.wait_for(self.reader.read(), LIMIT_S)
        return self._unread + data.decode("ascii")

    def close(self) -> None:
        """Disconnect."""
        self.writer.close()


@dataclass
class Served:
    """Experiments at an address of this machine."""

    experiments: Experiments
    server: AepsychServer
    fitters: Fitters
    port: int
    clients: list[Client] = field(default_factory=list)

    async def connect(self) -> Client:
        """Return a new client."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24))
        self.clients.append(client)
        return client

    async def set_up(self) -> Client:
        """Return a new client with its own experiment."""
        client = await self.connect()
        assert "strat_id" in await client.ask("setup", SETUP)
        return client


@asynccontextmanager
async def asked(
    journal: Path,
    *,
    max_bytes: int = MAX_MESSAGE_BYTES,
    timeouts: AepsychTimeouts = TIMEOUTS,
    in_processes: bool = False,
    access: Access | None = None,
) -> AsyncIterator[Served]:
    """Serve experiments for the duration of the block. in_processes: in worker processes."""
    fitters = Fitters(in_processes=in_processes)
    experiments = Experiments(journal, fitters=fitters)
    await experiments.start()
    server = AepsychServer(
        experiments,
        access=access or Access("t0ken"),
        max_bytes=max_bytes,
        timeouts=timeouts,
    )
    address = await server.start()
    served = Served(experiments, server, fitters, int(address.rpartition(":")[2]))
    try:
        yield served
    finally:
        for client in served.clients:
            client.writer.transport.abort()
        await server.stop(0.0)
        await experiments.stop()
