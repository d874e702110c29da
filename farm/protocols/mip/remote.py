"""The model of a running MIP server: KubeMo's own, or another farm."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from typing import Any

from farm.call import BYTES, Call, Operation, TensorInfo
from farm.declared import Tensors
from farm.encoding.tensors import LONGEST_ANSWER, longest_answer
from farm.errors import FarmError, InvalidInput, InvalidOutput, Unavailable
from farm.machine.listener import CONNECT_RETRIES, CONNECT_TIMEOUT_S, SOCKET_OPTIONS
from farm.model import Config, Inputs, Model, info_of
from farm.protocols.mip.calls import decode_result, encode_call
from farm.protocols.mip.packets import HEAD, PING, PacketKind, decode_head, error_of

ONE_TEXT: Tensors = {"text": TensorInfo("text", (1,), BYTES)}
"""Default inputs and outputs of a model: one text or one image file."""

FORM = re.compile(r"mip://(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:/]+)):(?P<port>\d+)/?")

PIECE = 1 << 20
"""Bytes read at once, so that memory grows with the received bytes, not with the announced size."""


def models_at(url: str, name: str | None = None) -> dict[str, Model]:
    """Return the model of a running MIP server, with one text or image, under this name.

    url: `mip://host:port` or `mip+unix:/path`. Raises Unavailable if nothing answers there, and
    other FarmErrors if it is another kind of server.
    """
    model = MipModel(url, name=name or "mip")
    return {model.name: model}


class MipModel(Model):
    """The model behind a MIP server.

    url: `mip://host:port` or `mip+unix:/path`. inputs, outputs: the protocol cannot report them;
        by default each is one value, a text or an image file, as bytes. Tensors of numbers are sent
        as JSON lists.
    max_batch: entries per request. KubeMo's server takes more than one only if its model has as
        many outputs as inputs.

    Each call has its own connection, because KubeMo's server answers only one per connection.
    Raises FarmErrors if the server does not answer, or does not answer in this protocol.
    """

    def __init__(
        self,
        url: str,
        *,
        inputs: Tensors = ONE_TEXT,
        outputs: Tensors = ONE_TEXT,
        name: str = "mip",
        max_batch: int = 1,
    ) -> None:
        self._server = Server(url)
        self.name = name
        self.description = f"{name} at {url}"
        self.inputs = inputs
        self.outputs = outputs
        self.max_batch = max_batch
        self._info = info_of(self, {})
        self._server.ask(PING, PacketKind.PING)

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        """Return the server's outputs; all rows go in one request."""
        if config:
            raise InvalidInput(f"model {self.description} takes no config, got {config}")
        arrays = tuple(inputs.values())
        rows = len(arrays[0]) if self.max_batch > 1 else None
        call = Call(self.name, Operation.EVALUATE, arrays, rows=rows)
        most = longest_answer(self._info, rows)
        payload = self._server.ask(encode_call(call, self._info), PacketKind.INFERENCE, most)
        return list(decode_result(payload, self._info, rows).outputs)


class Server:
    """A server by URL, with a connection for each request; threads may share it."""

    def __init__(self, url: str) -> None:
        """Raises Unavailable if the URL is not valid."""
        self.url = url.strip()
        tcp = FORM.fullmatch(self.url)
        self._address: tuple[str, int] | str
        if tcp is not None:
            self._address = tcp["v6"] or tcp["host"], int(tcp["port"])
        elif self.url.startswith("mip+unix:/"):
            self._address = self.url.removeprefix("mip+unix:").removeprefix("//")
        else:
            raise Unavailable(
                f"{url!r} is not the address of a server; expected mip://host:port or "
                "mip+unix:/path"
            )

    def ask(self, packet: bytes, kind: PacketKind, most: int = LONGEST_ANSWER) -> bytes:
        """Return the payload of the answer. Raises the error in the answer, or Unavailable.

        most: bytes of the payload; a longer one raises InvalidOutput.
        """
        try:
            with self._connected() as connection:
                # A server may refuse a packet before it has received all of it: then its answer
                # counts.
                with contextlib.suppress(ConnectionError):
                    connection.sendall(packet)
                head = decode_head(_received(connection, HEAD.size), kind)
                if head.size > most:
                    text = f"its answer has {head.size} bytes; it can have at most {most}"
                    raise InvalidOutput(text)
                payload = _received(connection, head.size)
        except OSError as error:
            raise self._silent(error.strerror or str(error)) from error
        except EOFError as error:
            raise self._silent(str(error)) from error
        except InvalidOutput as error:
            raise InvalidOutput(f"{self.url}: {error.message}") from None
        if head.kind is PacketKind.ERROR:
            refused: FarmError = error_of(head.subtype, payload, self.url)
            raise refused
        return payload

    def _silent(self, why: str) -> Unavailable:
        return Unavailable(f"the model server {self.url} does not answer: {why}")

    def _connected(self) -> socket.socket:
        """Return a new connection; retries for 1.5 s, in case the server is restarting."""
        for attempt in range(CONNECT_RETRIES):
            try:
                return self._connect()
            except (ConnectionRefusedError, FileNotFoundError):
                time.sleep(0.1 * 2**attempt)
        return self._connect()

    def _connect(self) -> socket.socket:
        if isinstance(self._address, str):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(self._address)
            except OSError:
                connection.close()
                raise
            return connection
        connection = socket.create_connection(self._address, timeout=CONNECT_TIMEOUT_S)
        connection.settimeout(None)
        for option in SOCKET_OPTIONS:
            connection.setsockopt(*option)
        return connection


def _received(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(min(size, PIECE))
        if not part:
            raise EOFError("it closed the connection before its answer was whole")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
