"""Serves models to clients that send lines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from farm.errors import FarmError, InvalidInput, ModelNotFound
from farm.machine.addresses import read_host_port, shown
from farm.protocols.interface import Endpoints, Listening, Site
from farm.settings import Settings
from farm_line.codec import decode, encode, encode_sizes

LONGEST_LINE = 1 << 16
"""Bytes; a client that sends a longer line gets an error and is disconnected."""


def read_address(values: Mapping[str, Any], settings: Settings) -> tuple[str, int] | None:
    """Return the address in `--line`, or None without the option. Raises SettingsError."""
    text = values["line"]
    if text is None:
        return None
    risk = "" if settings.insecure else "may call the models, as lines have no token"
    said = f"line is {text!r}"
    return read_host_port(text, said=said, expected="HOST:PORT", risk=risk, auth=settings.auth)


def serve(site: Site) -> Endpoints:
    """Return the endpoints: a listener at the address of the options."""
    return Endpoints(listener=LineServer(site) if site.options else None)


class LineServer:
    """Serves one address; answers the lines of each client in order."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()
        self._busy: set[asyncio.Task[None]] = set()  # those that wait for an answer

    async def start(self) -> Listening:
        """Listen."""
        host, port = self._site.options
        self._server = await asyncio.start_server(self._come, host, port, limit=LONGEST_LINE)
        address = shown(host, self._server.sockets[0].getsockname()[1])
        return Listening(address, [f"models for clients that send lines at {address}"])

    async def stop(self, grace_s: float) -> None:
        """Accept no more clients, and wait at most `grace_s` seconds for the open ones."""
        if self._server is None:
            return
        self._server.close()
        for client in self._clients - self._busy:
            client.cancel()
        if self._busy:
            await asyncio.wait(self._busy, timeout=grace_s)
        for client in self._clients:
            client.cancel()

    async def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            access = self._site.open_access
            refused = access.refusal(access.peer(writer))
            if refused is not None:
                writer.write(f"error: {refused}\n".encode())
                return
            with contextlib.suppress(ConnectionError):
                await self._serve(task, reader, writer)
        finally:
            self._clients.discard(task)
            writer.close()

    async def _serve(
        self,
        task: asyncio.Task[None],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        while self._server is not None and self._server.is_serving():
            try:
                line = await reader.readline()
            except ValueError:
                error = InvalidInput(f"a line is longer than {LONGEST_LINE} bytes")
                writer.write(encode(error))
                return
            if not line:
                return
            self._busy.add(task)
            try:
                writer.write(await self._answer(line.decode(errors="replace")))
                await writer.drain()
            finally:
                self._busy.discard(task)

    async def _answer(self, line: str) -> bytes:
        backend = self._site.backend
        try:
            name, *numbers = line.split() or [""]
            info = backend.models().get(name)
            if info is None:
                known = ", ".join(backend.models())
                raise ModelNotFound(f"there is no model {name!r}; the models are {known}")
            return (
                encode(await backend.submit(decode(line, info))) if numbers else encode_sizes(info)
            )
        except FarmError as error:
            return encode(error)
