"""The ZeroMQ transport at the dispatcher's end: one ROUTER to which workers and clients dial in.

Liveness without a thread in the worker: libzmq answers heartbeats by itself, even while a model
holds the GIL, and with ROUTER_MANDATORY a send to a peer that is gone fails. So small probes to
workers find the dead ones; a supervisor, which sees its child die, usually says so first and why.
A connection that breaks and comes back within a moment is not seen so, but may have taken messages
with it: CHECK asks each busy worker now and then whether it holds what it should.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

import zmq
import zmq.auth.thread

from farm.errors import Unavailable
from farm.protocols.wire import Buffer
from farm.scheduler.lull import Lull
from farm.transports.connection import Connection, is_loopback
from farm.transports.zmq_socket import has_message, receive, send, set_heartbeat

if TYPE_CHECKING:
    from farm.dispatcher import Dispatcher
    from farm.transports.peers import Peers

PROBE_EVERY_S = 0.2
"""How often busy workers are probed; a worker killed with SIGKILL is found within this."""

IDLE_PROBE_TURNS = 5
"""Idle workers are probed, and busy ones checked, every so many turns; both learn that we live."""

MESSAGES_PER_TURN = 200
"""Messages read before the event loop gets its turn again."""

LARGEST_FRAME = 4 * 1024**3
"""A peer that sends a larger frame is cut off: nobody fills the dispatcher's memory by mistake."""


class _RoutedLine:
    """A peer of the ROUTER, known by its routing id; it has no state of its own."""

    __slots__ = ("_put", "name")

    def __init__(self, name: bytes, put: Callable[[bytes, list[Buffer]], bool]) -> None:
        self.name = name
        self._put = put

    def send(self, frames: list[Buffer]) -> bool:
        """Send a message without waiting; False when the peer is not there."""
        return self._put(self.name, frames)


class ZmqListener:
    """Binds the ROUTER; `endpoint` is the address for others once made.

    bind: `tcp://HOST:*` or with a port. host: the name by which others reach this machine, told
    in `endpoint` when all interfaces are bound; its host name unless said.
    keys: as of `connection.new_keys`; None on loopback only.
    heartbeat_s: silence after which libzmq takes a host for dead.
    Raises Unavailable when the address cannot be bound.
    """

    def __init__(
        self,
        bind: str = "tcp://127.0.0.1:*",
        *,
        host: str = "",
        keys: Connection | None = None,
        heartbeat_s: float = 5.0,
    ) -> None:
        encrypted = keys is not None and bool(keys.server_key)
        if not encrypted and bind.startswith("tcp:") and not is_loopback(_host_of(bind)):
            raise ValueError(f"{bind} can be reached from other machines, so it needs keys")
        self._context = zmq.Context()
        self._authenticator: zmq.auth.thread.ThreadAuthenticator | None = None
        self._router: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._router.set(zmq.ROUTER_MANDATORY, 1)
        self._router.set(zmq.ROUTER_HANDOVER, 1)
        self._router.set(zmq.LINGER, 500)
        self._router.set(zmq.SNDHWM, 0)
        self._router.set(zmq.RCVHWM, 0)
        self._router.set(zmq.BACKLOG, 1024)
        self._router.set(zmq.MAXMSGSIZE, LARGEST_FRAME)
        self._router.set(zmq.IPV6, int("[" in bind))
        set_heartbeat(self._router, heartbeat_s)
        if keys is not None and encrypted:
            self._encrypt(keys)
        try:
            self._router.bind(bind)
        except zmq.ZMQError as error:
            self._close_socket()
            self._context.term()
            raise Unavailable(f"cannot listen at {bind}: {error}") from None
        self.endpoint = _advertised(self._router.get_string(zmq.LAST_ENDPOINT), host)
        self._fd = int(self._router.get(zmq.FD))
        # State of the running transport; only its own methods change it, on the loop.
        self._lines: dict[bytes, _RoutedLine] = {}
        self._turn = 0
        self._timer: asyncio.TimerHandle | None = None
        self._look_is_due = False

    def _encrypt(self, keys: Connection) -> None:
        self._authenticator = zmq.auth.thread.ThreadAuthenticator(self._context)
        self._authenticator.start()
        allowed = keys.client_public.encode()

        class OneKey:
            def callback(self, domain: str, key: bytes) -> bool:
                return bool(key == allowed)

        self._authenticator.configure_curve_callback(credentials_provider=OneKey())
        self._router.curve_server = True
        self._router.curve_publickey = keys.server_key.encode()
        self._router.curve_secretkey = keys.server_secret.encode()

    def start(self, dispatcher: Dispatcher, peers: Peers) -> None:
        """Begin, on the running loop."""
        self._dispatcher = dispatcher
        self._peers = peers
        self._loop = asyncio.get_running_loop()
        self._lull = Lull(dispatcher)
        self._loop.add_reader(self._fd, self._look)
        self._probe()
        self._look_soon()

    async def close(self) -> None:
        """Close the socket; what was sent in the last half second may still leave."""
        self._loop.remove_reader(self._fd)
        if self._timer is not None:
            self._timer.cancel()
        self._close_socket()
        # Terminating waits for the linger time, which must not hold up the loop.
        await self._loop.run_in_executor(None, self._context.term)

    def _close_socket(self) -> None:
        self._router.close()
        if self._authenticator is not None:
            self._authenticator.stop()

    # The socket

    def _put(self, routing_id: bytes, frames: list[Buffer]) -> bool:
        """Send to a peer; False when it is not there."""
        # The descriptor is edge-triggered, and a send, even one that fails, may swallow the edge.
        self._look_soon()
        try:
            send(self._router, [routing_id, *frames])
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        return True

    def _look_soon(self) -> None:
        if not self._look_is_due:
            self._look_is_due = True
            self._loop.call_soon(self._look_again)

    def _look_again(self) -> None:
        self._look_is_due = False
        self._look()

    def _look(self) -> None:
        # While calls come in by other ways it pays to let messages gather.
        if self._router.closed:
            return
        lull = self._lull.is_now()
        if not has_message(self._router):
            return
        if lull:
            self._read()
        else:
            self._look_soon()

    def _read(self) -> None:
        was_due, self._look_is_due = self._look_is_due, True  # at the end, after all that is sent
        try:
            self._dispatcher.act_on(self._read_some)
        finally:
            self._look_is_due = was_due
            if has_message(self._router):
                self._look_soon()

    def _read_some(self) -> None:
        for _ in range(MESSAGES_PER_TURN):
            frames = receive(self._router, small=2)  # the routing id and the head
            if frames is None:
                return
            name = bytes(frames[0])
            line = self._lines.get(name)
            if line is None:
                line = self._lines[name] = _RoutedLine(name, self._put)
            self._peers.received(line, frames[1:])
            if not has_message(self._router):
                return

    def _probe(self) -> None:
        self._turn += 1
        all_of_them = self._turn % IDLE_PROBE_TURNS == 0
        if all_of_them:
            self._lines.clear()  # those of peers that are gone; the others are made again
        self._peers.probe(all_of_them=all_of_them)
        self._timer = self._loop.call_later(PROBE_EVERY_S, self._probe)


def _host_of(endpoint: str) -> str:
    return endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")


def _advertised(endpoint: str, host: str) -> str:
    """The bound address as others may dial it."""
    if _host_of(endpoint) not in ("0.0.0.0", "::"):
        return endpoint
    return f"tcp://{host or socket.gethostname()}:{endpoint.rpartition(':')[2]}"
