"""The AEPsych server: clients ask experiments for points and tell them the outcomes.

Every client has a session; its requests are answered one after another, each with one write.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from farm.bodies.body import HEAVY_BYTES
from farm.bodies.readers import READS_HERE, Mistake, Readers, Reads
from farm.bodies.reading import carried_out
from farm.call import Hints
from farm.errors import INTERNAL_ERROR, FarmError
from farm.http1.access import Access
from farm.http1.turns import Turns
from farm.machine.addresses import read_host_port, shown
from farm.machine.listener import BACKLOG, listen
from farm.machine.resources import allow_many_open_files
from farm.protocols.aepsych.codec import (
    MAX_MESSAGE_BYTES,
    AepsychFramer,
    AepsychReply,
    AepsychRequest,
    encode_answer,
    encode_error,
    read_long,
    read_value,
)
from farm.protocols.aepsych.json_stream import Long, StreamFault
from farm.settings import Auth, Settings, SettingsError
from farm.wording import worded

logger = logging.getLogger(__name__)

RISK = "may use the experiments, as AEPsych's messages carry no token; use 127.0.0.1"

AT_ONCE = 64 * 1024
"""Bytes per read."""

QUICK_BYTES = 4 * 1024
"""Longer data is parsed in a later turn of the loop, as many clients may send it at once."""

LAST_WORDS_S = 1.0
"""Seconds for answers that are being sent, after everything else has ended."""

STOPPED = "the server shut down before it could answer"


@dataclass(frozen=True, slots=True)
class AepsychTimeouts:
    """Time limits for a client: between two parts of a message, to read an answer, to stop sending.

    Between messages there is no limit.
    """

    message_s: float = 300.0
    answer_s: float = 300.0
    drain_s: float = 1.0


TIMEOUTS = AepsychTimeouts()


def read_address(text: str, *, insecure: bool, auth: Auth = "other-users") -> tuple[str, int]:
    """Return host and port of the option `--aepsych`. Raises SettingsError if it is not an address.

    Also raises it, unless `insecure`, if other machines could connect, or `auth` requires a token.
    """
    return read_host_port(
        text,
        said=f"aepsych is {text!r}",
        expected="HOST:PORT, port 0 for a free one",
        risk="" if insecure else RISK,
        auth=auth,
    )


@dataclass(frozen=True, slots=True)
class AepsychOptions:
    """The address of the AEPsych server; journal: the file that keeps its experiments.

    None: experiments.db in the run folder.
    """

    host: str
    port: int
    journal: Path | None = None


def read_options(values: Mapping[str, Any], settings: Settings) -> AepsychOptions | None:
    """Return the options `aepsych` and `journal`; None if AEPsych is not served.

    Raises SettingsError, as `read_address` does.
    """
    if values["aepsych"] is None:
        if values["journal"] is not None:
            raise SettingsError("journal is set; expected aepsych, an address, beside it")
        return None
    host, port = read_address(values["aepsych"], insecure=settings.insecure, auth=settings.auth)
    return AepsychOptions(host, port, values["journal"])


class AskAndTell(Protocol):
    """Carries out clients' requests, as `farm.experiment.host.Experiments` does."""

    def session(self) -> Any:
        """Return the state of a new client."""

    async def handle(self, session: Any, request: AepsychRequest) -> AepsychReply:
        """Carry out a request. Raises FarmError, and then nothing has changed."""


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all connections of a server use."""

    experiments: AskAndTell
    timeouts: AepsychTimeouts
    readers: Reads
    turns: Turns


class AepsychServer:
    """Serves experiments at one address: `start` listens, `stop` shuts down in order."""

    def __init__(
        self,
        experiments: AskAndTell,
        *,
        access: Access,
        max_bytes: int = MAX_MESSAGE_BYTES,
        readers: Reads | None = None,
        timeouts: AepsychTimeouts = TIMEOUTS,
    ) -> None:
        """max_bytes: size of the largest message.

        readers: decode long messages; None: this server starts its own reader processes.
        """
        self._own_readers = Readers() if readers is None else None
        self._readers = readers or self._own_readers or READS_HERE
        self._experiments = experiments
        self._access = access
        self._limit = max_bytes
        self._timeouts = timeouts
        self._server: asyncio.Server | None = None
        self._clients: dict[asyncio.Task[None], _AepsychClient] = {}

    @property
    def clients(self) -> int:
        """Number of connected clients."""
        return len(self._clients)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen and return `host:port`. Raises Unavailable if it cannot be bound.

        port: 0 picks a free one.
        """
        allow_many_open_files()
        AepsychFramer()  # the first one compiles patterns, which should not delay a client
        turns = Turns(asyncio.get_running_loop(), 1)
        self._shared = _Shared(self._experiments, self._timeouts, self._readers, turns)
        option = f"with {worded('--aepsych', 'aepsych=')}, port 0"
        listener = listen(host, port, port_option=option)
        self._server = await asyncio.start_server(
            self._come, sock=listener, limit=AT_ONCE, backlog=BACKLOG
        )
        return shown(host, listener.getsockname()[1])

    async def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # the client connected while the server was stopping
            writer.transport.abort()
            return
        framer = AepsychFramer(self._limit, HEAVY_BYTES)
        client = _AepsychClient(self._shared, framer, reader, writer)
        peer = self._access.peer(writer)
        refused = self._access.refusal(peer)
        task = asyncio.current_task()
        assert task is not None
        self._clients[task] = client
        try:
            await client.serve(refused, str(peer))
        finally:
            del self._clients[task]

    async def stop(self, grace_s: float = 10.0) -> None:
        """Take no new requests, let running ones end within `grace_s` seconds, fail the rest."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for task, client in self._clients.items():
            client.last = True
            if not client.busy:
                task.cancel()
        await self._all_gone(grace_s)
        for task in self._clients:
            task.cancel()
        await self._all_gone(LAST_WORDS_S)
        for task, client in self._clients.items():
            client.abort()
            task.cancel()
        await self._all_gone(LAST_WORDS_S)
        if self._own_readers is not None:
            self._own_readers.stop()

    async def _all_gone(self, limit_s: float) -> None:
        if self._clients:
            await asyncio.wait(list(self._clients), timeout=limit_s)


class _AepsychClient:
    """One connection. busy: a request is running; last: the connection closes after it."""

    def __init__(
        self,
        shared: _Shared,
        framer: AepsychFramer,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.busy = False
        self.last = False
        self._shared = shared
        self._session = shared.experiments.session()
        self._framer = framer
        self._reader = reader
        self._writer = writer

    async def serve(self, refused: str | None = None, end: str = "") -> None:
        """Answer requests until either end closes. refused: why the client may not send any."""
        self._hints = Hints(end=end)
        try:
            if refused:
                self.last = True
                await self._send(encode_error(refused, None))
            while not self.last and (request := await self._next()) is not None:
                self.busy = True
                await self._send(await self._answer(request))
                self.busy = False
                # Let other clients in between one client's thousand requests.
                await asyncio.sleep(0)
            if self.last:
                await self._part()
        except (OSError, TimeoutError) as error:
            logger.debug("a client of the experiments is gone: %s", error)
            self.abort()
        except asyncio.CancelledError:
            pass  # `stop` has cancelled it; the task ends here
        finally:
            self._writer.close()

    def abort(self) -> None:
        """Close at once."""
        self._writer.transport.abort()

    async def _next(self) -> AepsychRequest | Long | StreamFault | None:
        """Return the next request or fault; None: the client sends no more."""
        while (request := self._framer.next_or_long()) is None:
            limit_s = self._shared.timeouts.message_s if self._framer.begun else None
            async with asyncio.timeout(limit_s):
                data = await self._reader.read(AT_ONCE)
            if not data:
                return None
            if len(data) > QUICK_BYTES:
                await self._shared.turns.wait()
            self._framer.feed(data)
        return request

    async def _read(self, long: Long) -> AepsychRequest | StreamFault:
        """Decode a long request in a reader process."""
        try:
            readers = self._shared.readers
            value = await carried_out(readers, read_long, long.text, hints=self._hints)
        except FarmError as error:
            return StreamFault(error.message, None)
        except asyncio.CancelledError:
            return StreamFault(STOPPED, None, close=True)
        except Mistake as error:
            logger.error("reading a long request", exc_info=error)
            return StreamFault(INTERNAL_ERROR, None)
        return read_value(value)

    async def _answer(self, request: AepsychRequest | Long | StreamFault) -> bytes:
        if isinstance(request, Long):
            request = await self._read(request)
        if isinstance(request, StreamFault):
            self.last = self.last or request.close
            return encode_error(request.error, request.received)
        try:
            reply = await self._shared.experiments.handle(self._session, request)
            self.last = self.last or reply.close
            return encode_answer(reply.answer)
        except FarmError as error:
            return encode_error(error.message, request.whole)
        except asyncio.CancelledError:
            self.last = True
            return encode_error(STOPPED, request.whole)
        except Exception:
            logger.exception("answering %r", request.type)
            return encode_error(INTERNAL_ERROR, request.whole)

    async def _send(self, answer: bytes) -> None:
        """Send an answer. Raises OSError if the client left, TimeoutError if it does not read."""
        if self._writer.is_closing():
            raise ConnectionResetError("it left before its answer")
        self._writer.write(answer)
        async with asyncio.timeout(self._shared.timeouts.answer_s):
            await self._writer.drain()

    async def _part(self) -> None:
        """Stop sending and let the client finish: closing while it sends would lose the answer."""
        if self._writer.is_closing():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._shared.timeouts.drain_s):
                self._writer.write_eof()
                while await self._reader.read(AT_ONCE):
                    pass
