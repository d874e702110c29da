"""Minimal servers, which show the cost that no server can avoid.

    python benchmarks/bare.py echo|relay ANSWER      prints its port; ANSWER: a file with the answer

`echo` accepts connections and requests on uvloop and answers each with the same bytes. `relay` lets
another process answer, over ZeroMQ, as is necessary for a model that may crash or compute. It
parses only the length of a request; it has no queue, no checks, no scheduler and no model.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvloop
import zmq

Address = tuple[str, int]


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


class Relay:
    """Passes requests to a worker process and returns its answers."""

    def __init__(self, answer: str) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context().socket(zmq.DEALER)
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        command = [sys.executable, __file__, "worker", answer, str(port)]
        self._worker = subprocess.Popen(command)
        self._asking: dict[bytes, Caller] = {}
        self._asked = 0
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(int(self._socket.get(zmq.FD)), self._look)

    def ask(self, caller: Caller, request: bytearray) -> None:
        self._asked += 1
        name = b"%d" % self._asked
        self._asking[name] = caller
        self._socket.send(name, zmq.SNDMORE)
        self._socket.send(bytes(request))
        self._loop.call_soon(self._look)  # the descriptor only signals edges

    def _look(self) -> None:
        while int(self._socket.get(zmq.EVENTS)) & int(zmq.POLLIN):
            name = self._socket.recv()
            self._asking.pop(name).answer(self._socket.recv(copy=False).buffer)

    def close(self) -> None:
        self._worker.kill()
        self._worker.wait()


def work(answer: bytes, port: int) -> None:
    """The worker process."""
    socket: zmq.Socket[bytes] = zmq.Context().socket(zmq.DEALER)
    socket.connect(f"tcp://127.0.0.1:{port}")
    while True:
        name = socket.recv()
        socket.recv(copy=False)
        socket.send(name, zmq.SNDMORE)
        socket.send(answer)


async def serve(kind: str, answer: str, data: bytes) -> None:
    """Serve until the parent closes the pipe; answer: the file with `data`."""
    loop = asyncio.get_running_loop()
    relay = Relay(answer) if kind == "relay" else None
    ask = relay.ask if relay else lambda caller, _: caller.answer(data)
    server = await loop.create_server(lambda: Caller(ask), "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    if relay:
        relay.close()


@contextlib.contextmanager
def bare_server(kind: str, answer: bytes) -> Iterator[Address]:
    """Run such a server for the duration of the block."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(answer)
        file.flush()
        command = [sys.executable, __file__, kind, file.name]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdout is not None
            yield "127.0.0.1", int(process.stdout.readline())
            process.communicate()


if __name__ == "__main__":
    data = Path(sys.argv[2]).read_bytes()
    if sys.argv[1] == "worker":
        work(data, int(sys.argv[3]))
    else:
        uvloop.run(serve(sys.argv[1], sys.argv[2], data))
