"""AEPsych at an address: clients ask experiments for points and tell them what came out.

Every client has its session; its requests are answered one after another, each with one write.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from farm.errors import FarmError
from farm.experiment.host import Experiments
from farm.protocols.aepsych import (
    MAX_MESSAGE_BYTES,
    Fault,
    Framer,
    Request,
    encode_answer,
    encode_error,
    read_long,
    read_value,
)
from farm.protocols.json_stream import Long
from farm.server.access import Access
from farm.server.address import read_host_port, shown
from farm.server.body import HEAVY_BYTES
from farm.server.door import INTERNAL_ERROR
from farm.server.listener import BACKLOG, listen
from farm.server.readers import READS_HERE, Mistake, Readers, Reads
from farm.server.reading import carried_out
from farm.server.turns import Turns
from farm.settings import Auth
from farm.worker.open_files import allow_many_open_files

logger = logging.getLogger(__name__)

RISK = "may use the experiments, as AEPsych's messages know no token; take 127.0.0.1"

AT_ONCE = 64 * 1024
"""Bytes read at a time; of a client that sends ahead twice as many are taken, and no more."""

QUICK_BYTES = 4 * 1024
"""More than this is looked at in a turn of the loop of its own: 64 KiB take two milliseconds, and
many clients may send as much at once."""

LAST_WORDS_S = 1.0
"""How long answers on their way may take once everything else has ended."""

STOPPED = "the server shut down before it could answer"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client may take. message_s: between two pieces of a message; answer_s: to take
    an answer in; drain_s: to stop sending, when what it sends cannot be understood any more.
    Between messages it may be silent for ever.
    """

    message_s: float = 300.0
    answer_s: float = 300.0
    drain_s: float = 1.0


PATIENCE = Patience()


def read_address(text: str, *, insecure: bool, auth: Auth = "other-users") -> tuple[str, int]:
    """What `--aepsych` says. Raises SettingsError when it is no address.

    And when others than this machine could come in, or `auth` asks for a token, which the protocol
    has not, unless that is wanted.
    """
    return read_host_port(
        text,
        said=f"aepsych is {text!r}",
        expected="HOST:PORT, port 0 for a free one",
        risk="" if insecure else RISK,
        auth=auth,
    )


class AepsychServer:
    """Experiments at one address: `start` listens, `stop` ends in order."""

    def __init__(
        self,
        experiments: Experiments,
        *,
        access: Access,
        host: str = "127.0.0.1",
        port: int = 5555,
        max_bytes: int = MAX_MESSAGE_BYTES,
        readers: Reads | None = None,
        patience: Patience = PATIENCE,
    ) -> None:
        """port: 0 picks a free one; max_bytes: of the largest message.

        readers: read long messages; None: processes of this server's own.
        """
        self._own_readers = Readers() if readers is None else None
        self._readers = readers or self._own_readers or READS_HERE
        self._experiments = experiments
        self._access = access
        self._host = host
        self._port = port
        self._limit = max_bytes
        self._patience = patience
        self._server: asyncio.Server | None = None
        self._clients: dict[asyncio.Task[None], _Client] = {}

    @property
    def clients(self) -> int:
        """How many are connected."""
        return len(self._clients)

    async def start(self) -> str:
        """Listen; gives `host:port`. Raises Unavailable when it cannot be had."""
        allow_many_open_files()
        Framer()  # the first one compiles patterns, for which nobody should wait later
        self._turns = Turns(asyncio.get_running_loop(), 1)
        listener = listen(self._host, self._port, port_option="with --aepsych, port")
        self._port = listener.getsockname()[1]
        self._server = await asyncio.start_server(
            self._come, sock=listener, limit=AT_ONCE, backlog=BACKLOG
        )
        return shown(self._host, self._port)

    async def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # it came as the server stopped
            writer.transport.abort()
            return
        framer = Framer(self._limit, HEAVY_BYTES)
        client = _Client(
            self._experiments, reader, writer, framer, self._patience, self._readers, self._turns
        )
        refused = self._access.refusal(self._access.peer(writer))
        task = asyncio.current_task()
        assert task is not None
        self._clients[task] = client
        try:
            await client.serve(refused)
        finally:
            del self._clients[task]

    async def stop(self, grace_s: float = 10.0) -> None:
        """Take nothing new, let what runs end within `grace_s` seconds, answer the rest so."""
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


class _Client:
    """One connection. busy: a request is at work; last: the connection ends after it."""

    def __init__(
        self,
        experiments: Experiments,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        framer: Framer,
        patience: Patience,
        readers: Reads,
        turns: Turns,
    ) -> None:
        self._readers = readers
        self._turns = turns
        self.busy = False
        self.last = False
        self._experiments = experiments
        self._session = experiments.session()
        self._reader = reader
        self._writer = writer
        self._framer = framer
        self._patience = patience

    async def serve(self, refused: str | None = None) -> None:
        """Answer requests until either end has enough. refused: why none is, in which case."""
        try:
            if refused:
                self.last = True
                await self._send(encode_error(refused, None))
            while not self.last and (request := await self._next()) is not None:
                self.busy = True
                await self._send(await self._answer(request))
                self.busy = False
                await asyncio.sleep(0)  # whoever has sent a thousand requests is not alone here
            if self.last:
                await self._part()
        except (OSError, TimeoutError) as error:
            logger.debug("a client of the experiments is gone: %s", error)
            self.abort()
        except asyncio.CancelledError:
            pass  # as `stop` does; the task ends here
        finally:
            self._writer.close()

    def abort(self) -> None:
        """Cut off."""
        self._writer.transport.abort()

    async def _next(self) -> Request | Long | Fault | None:
        """The next request, or what stood there instead; None: the client sends no more."""
        while (request := self._framer.next_or_long()) is None:
            limit_s = self._patience.message_s if self._framer.begun else None
            async with asyncio.timeout(limit_s):
                data = await self._reader.read(AT_ONCE)
            if not data:
                return None
            if len(data) > QUICK_BYTES:
                await self._turns.wait()
            self._framer.feed(data)
        return request

    async def _read(self, long: Long) -> Request | Fault:
        """A long request, which is read elsewhere."""
        peer = self._writer.get_extra_info("peername")
        client = str(peer[0]) if isinstance(peer, tuple) else "unix"
        try:
            value = await carried_out(self._readers, read_long, long.text, client=client)
        except FarmError as error:
            return Fault(error.message, None)
        except asyncio.CancelledError:
            return Fault(STOPPED, None, close=True)
        except Mistake as error:
            logger.error("reading a long request", exc_info=error)
            return Fault(INTERNAL_ERROR, None)
        return read_value(value)

    async def _answer(self, request: Request | Long | Fault) -> bytes:
        if isinstance(request, Long):
            request = await self._read(request)
        if isinstance(request, Fault):
            self.last = self.last or request.close
            return encode_error(request.error, request.received)
        try:
            reply = await self._experiments.handle(self._session, request)
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
        """Raises OSError when the client is gone, TimeoutError when it does not read."""
        if self._writer.is_closing():
            raise ConnectionResetError("it left before its answer")
        self._writer.write(answer)
        async with asyncio.timeout(self._patience.answer_s):
            await self._writer.drain()

    async def _part(self) -> None:
        """Say no more, and let the client finish: to close on what it sends loses the answer."""
        if self._writer.is_closing():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience.drain_s):
                self._writer.write_eof()
                while await self._reader.read(AT_ONCE):
                    pass
