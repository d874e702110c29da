"""Admission of peers by their keys: the answers to libzmq's questions about handshakes.

libzmq asks in the process for each connection (ZAP, ZMQ RFC 27). The event loop answers: a thread
for it would get the interpreter every few milliseconds while the loop is busy, and in a storm of
joins most handshakes would then time out, and be begun again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import zmq
import zmq.utils.z85

from farm.transports.zmq.socket import has_message

_ADDRESS = "inproc://zeromq.zap.01"
_VERSION = b"1.0"

ANSWERS_PER_TURN = 50
"""Handshakes admitted per event-loop iteration."""


def answer(question: Sequence[bytes], keys: Mapping[str, bytes]) -> list[bytes]:
    """Return the reply to a question: 200 for the key of its domain, 400 otherwise.

    keys: the public key, 32 bytes, of each domain. Frames as in ZMQ RFC 27.
    """
    version, request, domain, _, _, mechanism, *credentials = question
    key = keys.get(domain.decode(errors="replace"))
    if version == _VERSION and mechanism == b"CURVE" and key is not None and credentials == [key]:
        return [_VERSION, request, b"200", b"OK", b"", b""]
    return [_VERSION, request, b"400", b"unknown key", b"", b""]


class Admission:
    """Answers libzmq's questions in one context.

    keys: the public key of each domain in Z85 (ZMQ RFC 32). Exists before the sockets of its
    context are bound and until they are closed: libzmq admits every peer if there is no answer.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Mapping[str, str]) -> None:
        self._keys = {domain: zmq.utils.z85.decode(key) for domain, key in keys.items()}
        self._socket = context.socket(zmq.REP)
        self._socket.set(zmq.LINGER, 0)
        self._socket.bind(_ADDRESS)
        self._fd = int(self._socket.get(zmq.FD))
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Answer on the running loop; until then handshakes wait."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._look)
        self._loop.call_soon(self._look)

    def _look(self) -> None:
        if self._socket.closed or self._loop is None:
            return
        for _ in range(ANSWERS_PER_TURN):
            # Asked again after each answer: the descriptor is edge-triggered.
            if not has_message(self._socket):
                return
            question = self._socket.recv_multipart(zmq.NOBLOCK)
            self._socket.send_multipart(answer(question, self._keys), zmq.NOBLOCK)
        self._loop.call_soon(self._look)

    def close(self) -> None:
        """Stop; the context's sockets must be closed."""
        if self._loop is not None:
            self._loop.remove_reader(self._fd)
        self._socket.close()
