"""Minimal servers, which show the cost that no server can avoid.

    python benchmarks/bare.py echo|relay ANSWER [PATH]    ANSWER: a file with the answer

`echo` accepts connections and requests on uvloop and answers each with the same bytes. `relay` lets
another process answer, over a unix socket, as is necessary for a model that may crash or compute.
It parses only the length of a request; it has no queue, no checks, no scheduler and no model.
Clients connect to a port, which it prints, or to the unix socket PATH.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvloop

Address = tuple[str, int] | str
"""Host and port, or the path of a unix socket."""

HEAD = struct.Struct("=LL")
"""Before each message between relay and worker: the number of the request, and the length."""


def length_of(data: bytearray) -> int:
    """Return the length of the MIP or HTTP request that starts with `data`; 0: not known yet."""
    if data[:1] == b"\0":
        return 8 + int.from_bytes(data[4:8]) if len(data) >= 8 else 0
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return 0
    at = data.lower().index(b"content-length:", 0, end) + 15
    return end + 4 + int(data[at:end].split(b"\r\n", 1)[0])


class Caller(asyncio.Protocol):
    """One connection, whose requests are passed on whole."""

    def __init__(self, ask: Callable[[Caller, bytearray], None]) -> None:
        self._ask = ask
        self._request = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._request += data
        length = length_of(self._request)
        if length and len(self._request) >= length:
            request, self._request = self._request, bytearray()
            self._ask(self, request)

    def answer(self, data: Any) -> None:
        """Send the answer, if the client is still there."""
        if not self._transport.is_closing():
            self._transport.write(data)


class Relay(asyncio.Protocol):
    """Passes requests to a worker process and returns its answers."""

    def __init__(self) -> None:
        self._asking: dict[int, Caller] = {}
        self._asked = 0
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def ask(self, caller: Caller, request: bytearray) -> None:
        self._asked += 1
        self._asking[self._asked] = caller
        self._transport.write(HEAD.pack(self._asked, len(request)) + request)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= HEAD.size:
            number, length = HEAD.unpack_from(received)
            end = HEAD.size + length
            if len(received) < end:
                return
            self._asking.pop(number).answer(bytes(received[HEAD.size : end]))
            del received[:end]


def work(answer: bytes, descriptor: int) -> None:
    """The worker process."""
    with socket.socket(fileno=descriptor) as there, there.makefile("rb") as requests:
        while head := requests.read(HEAD.size):
            number, length = HEAD.unpack(head)
            requests.read(length)
            there.sendall(HEAD.pack(number, len(answer)) + answer)


def worker(answer: str) -> socket.socket:
    """Start the worker process, which ends with its connection; return our end of that."""
    here, there = socket.socketpair()
    command = [sys.executable, __file__, "worker", answer, str(there.fileno())]
    subprocess.Popen(command, pass_fds=[there.fileno()])
    there.close()
    here.setblocking(False)
    return here


async def serve(kind: str, answer: str, data: bytes, path: str) -> None:
    """Serve until the parent closes the pipe; answer: the file with `data`."""
    loop = asyncio.get_running_loop()
    relay = Relay()
    if kind == "relay":
        await loop.create_unix_connection(lambda: relay, sock=worker(answer))
    ask = relay.ask if kind == "relay" else lambda caller, _: caller.answer(data)
    if path:
        await loop.create_unix_server(lambda: Caller(ask), path, backlog=2048)
        print(path, flush=True)
    else:
        server = await loop.create_server(lambda: Caller(ask), "127.0.0.1", 0, backlog=2048)
        print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


@contextlib.contextmanager
def bare_server(kind: str, answer: bytes, path: str = "") -> Iterator[Any]:
    """Run such a server for the duration of the block; yield its `Address`."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(answer)
        file.flush()
        command = [sys.executable, __file__, kind, file.name, path]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdout is not None
            where = process.stdout.readline().strip()
            yield path or ("127.0.0.1", int(where))
            process.communicate()


if __name__ == "__main__":
    data = Path(sys.argv[2]).read_bytes()
    if sys.argv[1] == "worker":
        work(data, int(sys.argv[3]))
    else:
        uvloop.run(serve(sys.argv[1], sys.argv[2], data, sys.argv[3]))
