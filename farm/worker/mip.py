"""A model behind a running MIP server: KubeMo's own, another farm."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from typing import Any

from farm.call import BYTES, Call, Operation, TensorInfo
from farm.errors import FarmError, InvalidInput, InvalidOutput, Unavailable
from farm.model import Config, Inputs, Model, Tensors, info_of
from farm.protocols.mip import HEAD, PING, Head, Kind, decode_head, error_of
from farm.protocols.mip_calls import decode_result, encode_call
from farm.worker.http import CONNECT_RETRIES, CONNECT_TIMEOUT_S, SOCKET_OPTIONS

ONE_TEXT: Tensors = {"text": TensorInfo("text", (1,), BYTES)}
"""What a model that says nothing else takes and gives: a text, or an image file."""

FORM = re.compile(r"mip://(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:/]+)):(?P<port>\d+)/?")

PIECE = 1 << 20
"""Bytes read at once, so that an answer takes memory as it comes and not as it is announced."""


def models_at(url: str, name: str | None = None) -> dict[str, Model]:
    """The model of a running MIP server: of one text or image, under this name.

    url: `mip://host:port` or `mip+unix:/path`. Raises Unavailable when nothing answers there, and
    other FarmErrors when it is another kind of server.
    """
    model = MipModel(url, name=name or "mip")
    return {model.name: model}


class MipModel(Model):
    """A model in front of a MIP server.

    url: `mip://host:port` or `mip+unix:/path`. inputs, outputs: the protocol has no way to ask for
        them; unless said they are one value, a text or an image file, as bytes. Tensors of numbers
        travel as JSON lists.
    max_batch: entries of one request. KubeMo's server takes more than one only if its model has as
        many outputs as inputs.

    Each call has its own connection, as KubeMo's server answers only one on each. Raises
    FarmErrors when the server does not answer, or not so.
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
        self._server.ask(PING, Kind.PING)

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        """The server's outputs, of all rows in one request."""
        if config:
            raise InvalidInput(f"model {self.description} takes no config, got {config}")
        arrays = tuple(inputs.values())
        rows = len(arrays[0]) if self.max_batch > 1 else None
        call = Call(self.name, Operation.EVALUATE, arrays, rows=rows)
        payload = self._server.ask(encode_call(call, self._info), Kind.INFERENCE)
        return list(decode_result(payload, self._info, rows).outputs)


class Server:
    """A server by URL, which is asked over a connection for each question; threads may share it."""

    def __init__(self, url: str) -> None:
        """Raises Unavailable when the URL is none."""
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

    def ask(self, packet: bytes, kind: Kind) -> bytes:
        """The payload of the answer. Raises the error that the answer is, or Unavailable."""
        try:
            with self._connected() as connection:
                # Who refuses a packet may do so before it has come: then its answer counts.
                with contextlib.suppress(ConnectionError):
                    connection.sendall(packet)
                head = decode_head(_received(connection, HEAD.size), kind)
                payload = _received(connection, head.size)
        except OSError as error:
            raise self._silent(error.strerror or str(error)) from error
        except EOFError as error:
            raise self._silent(str(error)) from error
        except InvalidOutput as error:
            raise InvalidOutput(f"{self.url}: {error.message}") from None
        return self._checked(head, payload)

    def _checked(self, head: Head, payload: bytes) -> bytes:
        if head.kind is Kind.ERROR:
            error: FarmError = error_of(head.subtype, payload, self.url)
            raise error
        return payload

    def _silent(self, why: str) -> Unavailable:
        return Unavailable(f"the model server {self.url} does not answer: {why}")

    def _connected(self) -> socket.socket:
        """A fresh connection; tried for 1.5 s, for a server that starts anew."""
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
