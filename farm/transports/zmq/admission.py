"""Admission of peers by their keys, and a bound on connections whose key is not proved yet.

libzmq asks in the process for each connection (ZAP, ZMQ RFC 27). The event loop answers: a thread
for it would get the interpreter every few milliseconds while the loop is busy, and in a storm of
joins most handshakes would then time out, and be begun again.

libzmq accepts whatever connects. It could stop only by giving up its listening socket, and with it
all connections accepted there. So the kernel does it: while too many connections have not proved
their key, a filter drops requests to connect. Their programs repeat them, the first time after a
second. Where there are no such filters, outside Linux, only time and the backlog bound them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import resource
import struct
from collections.abc import Mapping, Sequence
from socket import IPPROTO_TCP, SOL_SOCKET, socket

import zmq
import zmq.utils.z85

from farm.transports.zmq.line import has_message

_ADDRESS = "inproc://zeromq.zap.01"
_VERSION = b"1.0"

ANSWERS_PER_TURN = 50
"""Handshakes admitted per event-loop iteration."""

MOST_UNPROVED = 512
"""Connections to one ROUTER without a proved key; at most a sixteenth of the open files."""

HANDSHAKE_S = 3
"""Time to prove a key: four messages, so that the most distant network is fast enough."""

EVENTS_PER_TURN = 200
"""Events of connections read per event-loop iteration."""

_ACCEPTED, _PROVED = int(zmq.Event.ACCEPTED), int(zmq.Event.HANDSHAKE_SUCCEEDED)
_WATCHED = _ACCEPTED | _PROVED | int(zmq.Event.DISCONNECTED)
_EVENT = struct.Struct("=Hi")  # its kind, and the descriptor if it names one: zmq_socket_monitor(3)
_DEFER_ACCEPT, _ATTACH_FILTER, _DETACH_FILTER = 9, 26, 27  # tcp(7), socket(7)
_DROP = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))
"""A program for a filter: return, with no byte of the packet."""


def answer(question: Sequence[bytes], keys: Mapping[str, bytes]) -> list[bytes]:
    """Return the reply to a question: 200 for the key of its domain, 400 otherwise.

    keys: the public key, 32 bytes, of each domain. Frames as in ZMQ RFC 27.
    """
    version, request, domain, _, _, mechanism, *credentials = question
    key = keys.get(domain.decode(errors="replace"))
    if version == _VERSION and mechanism == b"CURVE" and key is not None and credentials == [key]:
        return [_VERSION, request, b"200", b"OK", b"", b""]
    return [_VERSION, request, b"400", b"unknown key", b"", b""]


class _Read:
    """A socket whose messages the event loop takes, `most` per iteration."""

    def __init__(self, read: zmq.Socket[bytes], most: int) -> None:
        self._socket = read
        self._most = most
        self._fd = int(read.get(zmq.FD))
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Take messages on the running loop; until then they wait."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._look)
        self._loop.call_soon(self._look)

    def _look(self) -> None:
        if self._socket.closed or self._loop is None:
            return
        for _ in range(self._most):
            # Asked again after each message: the descriptor is edge-triggered.
            if not has_message(self._socket):
                return
            self._take(self._socket.recv_multipart(zmq.NOBLOCK), self._loop.time())
        self._loop.call_soon(self._look)

    def _take(self, frames: list[bytes], now: float) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Stop."""
        if self._loop is not None:
            self._loop.remove_reader(self._fd)
        self._socket.close()


class Admission(_Read):
    """Answers libzmq's questions in one context.

    keys: the public key of each domain in Z85 (ZMQ RFC 32). Exists before the sockets of its
    context are bound and until they are closed: libzmq admits every peer if there is no answer.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Mapping[str, str]) -> None:
        self._keys = {domain: zmq.utils.z85.decode(key) for domain, key in keys.items()}
        replies = context.socket(zmq.REP)
        replies.set(zmq.LINGER, 0)
        replies.bind(_ADDRESS)
        super().__init__(replies, ANSWERS_PER_TURN)

    def _take(self, frames: list[bytes], now: float) -> None:
        self._socket.send_multipart(answer(frames, self._keys), zmq.NOBLOCK)


class Valve(_Read):
    """Counts the unproved connections of a ROUTER, and shuts its listening socket if they are many.

    Exists before the ROUTER is bound. shut: whether requests to connect are dropped.
    """

    def __init__(self, router: zmq.Socket[bytes], listening: socket) -> None:
        """listening: a duplicate of the ROUTER's socket, which the valve closes."""
        self.shut = False
        # Open connections by their descriptors, with the time until which they have to prove their
        # key; and how many of them have done so, which is not reported by descriptor.
        self._young: dict[int, float] = {}
        self._proved = 0
        self.most = min(MOST_UNPROVED, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 16)
        self.listening = listening
        self._let_in()  # the front door before may have ended while its valve was shut
        self.listening.listen(self.most // 2)
        with contextlib.suppress(OSError):
            # A connection is none before its first bytes, which each end sends at once.
            self.listening.setsockopt(IPPROTO_TCP, _DEFER_ACCEPT, HANDSHAKE_S)
        router.set(zmq.HANDSHAKE_IVL, HANDSHAKE_S * 1000)
        address = f"inproc://connections-{listening.fileno()}"
        router.monitor(address, _WATCHED)
        events: zmq.Socket[bytes] = router.context.socket(zmq.PAIR)
        events.set(zmq.RCVHWM, 0)  # libzmq's thread never waits for the loop
        events.connect(address)
        super().__init__(events, EVENTS_PER_TURN)
        self._router = router

    @property
    def unproved(self) -> int:
        """The number of open connections that have not proved their key."""
        return len(self._young) - self._proved

    def close(self) -> None:
        """Stop, before the ROUTER is closed. A second call does nothing."""
        if self._socket.closed:
            return
        self._let_in()  # for the next front door
        self.listening.close()
        self._router.monitor(None, 0)
        super().close()

    def _take(self, frames: list[bytes], now: float) -> None:
        event, descriptor = _EVENT.unpack(frames[0])
        if event == _ACCEPTED:
            self._young[descriptor] = now + HANDSHAKE_S + 1
        elif event == _PROVED:
            self._proved += 1
        else:
            self._young.pop(descriptor, None)
        # What is still open after its time has proved its key.
        while self._young and self._young[first := next(iter(self._young))] < now:
            del self._young[first]
            self._proved -= 1
        self._proved = max(0, min(self._proved, len(self._young)))
        if self.shut and self.unproved <= self.most // 2:
            self._let_in()
        elif not self.shut and self.unproved >= self.most:
            self._keep_out()

    def _keep_out(self) -> None:
        program = struct.pack("@HP", 1, ctypes.addressof(_DROP))
        with contextlib.suppress(OSError):
            self.listening.setsockopt(SOL_SOCKET, _ATTACH_FILTER, program)
        self.shut = True

    def _let_in(self) -> None:
        with contextlib.suppress(OSError):  # no filter is there
            self.listening.setsockopt(SOL_SOCKET, _DETACH_FILTER, 0)
        self.shut = False
