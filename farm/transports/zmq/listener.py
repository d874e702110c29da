"""The dispatcher's end of the ZeroMQ transport: one ROUTER for workers and one for clients.

They have separate addresses and keys, so that no message of a client can pass for a worker's.

Liveness needs no thread in the worker: libzmq answers heartbeats by itself, even while a model
holds the GIL, and with ROUTER_MANDATORY a send to a lost peer fails. So small probes to workers
detect the dead ones; a supervisor, which sees its child die, usually reports the death first, with
the reason. Probes miss a connection that breaks and is restored within a moment, but messages may
be lost with it: CHECK regularly asks each busy worker whether it holds the tasks it should.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zmq

from farm.call import Buffer
from farm.errors import Unavailable
from farm.machine.keeper_line import keeper
from farm.machine.listener import bound
from farm.machine.resources import allowed_cpus
from farm.transports.connection import Connection
from farm.transports.keys import KeyPair, Keys, new_keys
from farm.transports.zmq.admission import Admission, Valve
from farm.transports.zmq.line import has_message, receive, send, set_heartbeat

if TYPE_CHECKING:
    from socket import socket as Listening

    from farm.dispatcher.dispatcher import Dispatcher
    from farm.transports.peers import Peers

PROBE_EVERY_S = 0.2
"""Interval between probes of busy workers; a worker killed by SIGKILL is noticed within it. Of more
workers than are probed at once, each is probed the less often, so that the cost has a bound.
"""

IDLE_PROBE_TURNS = 5
"""Every n-th probe also goes to idle peers and checks busy workers; all learn that we live."""

MESSAGES_PER_TURN = 200
"""Messages read per event-loop iteration."""

MOST_IO_THREADS = 4

LARGEST_FRAME = 4 * 1024**3
"""A peer that sends a larger frame is disconnected, so that no mistake fills the memory."""


CLIENTS, WORKERS = "clients", "workers"
"""The domains of ZAP (ZMQ RFC 27), each with a key of its own."""


@dataclass(slots=True, eq=False)
class _RoutedLine:
    """A peer of a ROUTER, identified by its routing id; without state of its own."""

    name: bytes
    is_client: bool
    _router: _Router
    may_come_back = True

    def send(self, frames: list[Buffer]) -> bool:
        """Send a message without waiting; return False if the peer is gone."""
        return self._router.put(self.name, frames)

    def rest(self) -> Sequence[Sequence[Buffer]]:
        """Return nothing: ZeroMQ keeps the messages of all peers in one queue."""
        return ()

    def close(self) -> None:
        """Do nothing: libzmq itself detects that a peer is gone."""


class _Router:
    """The ROUTER of a domain: for clients, or for workers and their supervisors.

    Raises Unavailable if the address cannot be bound.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        bind: str,
        server: KeyPair,
        *,
        domain: str,
        heartbeat_s: float,
    ) -> None:
        self._domain = domain
        listening = self._listening(bind)
        self.socket = socket = context.socket(zmq.ROUTER)
        socket.set(zmq.ROUTER_MANDATORY, 1)
        socket.set(zmq.ROUTER_HANDOVER, 1)
        socket.set(zmq.LINGER, 500)
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.set(zmq.MAXMSGSIZE, LARGEST_FRAME)
        socket.set(zmq.IPV6, int("[" in bind))
        set_heartbeat(socket, heartbeat_s)
        socket.set(zmq.ZAP_DOMAIN, domain.encode())
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_PUBLICKEY, server.public.encode())
        socket.set(zmq.CURVE_SECRETKEY, server.secret.encode())
        self._valve = Valve(socket, listening.dup())
        socket.set(zmq.USE_FD, listening.detach())
        try:
            socket.bind(bind)
        except zmq.ZMQError as error:
            self._valve.close()
            socket.close()
            raise Unavailable(f"cannot listen at {bind}: {error}") from None
        self.endpoint = socket.get_string(zmq.LAST_ENDPOINT)
        self._fd = int(socket.get(zmq.FD))
        # State while it runs; only its own methods change it, on the loop.
        self._loop: asyncio.AbstractEventLoop | None = None
        self.lines: dict[bytes, _RoutedLine] = {}
        self._look_is_due = False

    def _listening(self, bind: str) -> Listening:
        """Return a socket that listens for ZeroMQ: that of the front door before, or a new one.

        libzmq can neither hand over a socket of its own, nor stop to accept connections there.
        """
        line = keeper()
        kept = None if line is None else line.take(f"zmq {self._domain}")
        self._is_kept = kept is not None
        if kept is None:
            host, _, port = bind.removeprefix("tcp://").rpartition(":")
            host = "0.0.0.0" if host == "*" else host.strip("[]")
            kept = bound(host, 0 if port == "*" else int(port))
        return kept

    def hand_to_keeper(self) -> None:
        """Let the keeper of this front door hold a new socket, now that it will be used."""
        line = keeper()
        if line is not None and not self._is_kept:
            line.hand(f"zmq {self._domain}", self._valve.listening)

    def start(self, dispatcher: Dispatcher, peers: Peers) -> None:
        """Start on the running loop."""
        self._dispatcher = dispatcher
        self._peers = peers
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._look)
        self._valve.start()
        self._look_soon()

    def close(self) -> None:
        """Close the socket; recently sent messages have half a second to leave."""
        if self._loop is not None:
            self._loop.remove_reader(self._fd)
        self._valve.close()
        self.socket.close()

    def put(self, routing_id: bytes, frames: list[Buffer]) -> bool:
        """Send to a peer; False if it is gone."""
        # The descriptor is edge-triggered, and a send, even a failed one, may consume the edge.
        self._look_soon()
        try:
            send(self.socket, [routing_id, *frames])
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        return True

    def _look_soon(self) -> None:
        if not self._look_is_due and self._loop is not None:
            self._look_is_due = True
            self._loop.call_soon(self._look_again)

    def _look_again(self) -> None:
        self._look_is_due = False
        self._look()

    def _look(self) -> None:
        if self.socket.closed or not has_message(self.socket):
            return
        was_due, self._look_is_due = self._look_is_due, True  # last, after everything is sent
        try:
            self._dispatcher.turns.act_on(self._read_some)
        finally:
            self._look_is_due = was_due
            if has_message(self.socket):
                self._look_soon()

    def _read_some(self) -> None:
        for _ in range(MESSAGES_PER_TURN):
            frames = receive(self.socket, small=2)  # the routing id and the message head
            if frames is None:
                return
            name = bytes(frames[0])
            line = self.lines.get(name)
            if line is None:
                line = _RoutedLine(name, self._domain == CLIENTS, self)
                self.lines[name] = line
            self._peers.received(line, frames[1:])
            if not has_message(self.socket):
                return


def io_threads() -> int:
    """Return how many threads libzmq gets: it spreads connections over them.

    Handshakes and heartbeats of thousands of workers are more than one thread can do.
    """
    return min(MOST_IO_THREADS, max(1, allowed_cpus() // 4))


class ZmqListener:
    """Binds both ROUTERs; `for_clients` and `for_workers` hold their addresses and keys.

    interface: `tcp://HOST`. keys: new ones unless given. clients_port, workers_port: `*` for any.
    heartbeat_s: silence after which libzmq considers a host dead.
    Raises Unavailable if an address cannot be bound.
    """

    def __init__(
        self,
        interface: str = "tcp://127.0.0.1",
        *,
        keys: Keys | None = None,
        clients_port: str = "*",
        workers_port: str = "*",
        heartbeat_s: float = 5.0,
    ) -> None:
        self.keys = keys = keys or new_keys()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads())
        self._admission = Admission(
            self._context, {CLIENTS: keys.clients.public, WORKERS: keys.workers.public}
        )
        self._routers: list[_Router] = []
        self._timer: asyncio.TimerHandle | None = None
        self._turn = 0
        self._probed_at = 0.0
        self._heartbeat_s = heartbeat_s
        try:
            for domain, port in ((CLIENTS, clients_port), (WORKERS, workers_port)):
                router = _Router(
                    self._context,
                    f"{interface}:{port}",
                    keys.server,
                    domain=domain,
                    heartbeat_s=heartbeat_s,
                )
                self._routers.append(router)
        except Unavailable:
            self._close_sockets()
            self._context.term()
            raise
        for router in self._routers:
            router.hand_to_keeper()
        self.for_clients, self.for_workers = (
            Connection(
                router.endpoint,
                server_key=keys.server.public,
                client_public=pair.public,
                client_secret=pair.secret,
            )
            for router, pair in zip(self._routers, (keys.clients, keys.workers), strict=True)
        )

    def start(self, dispatcher: Dispatcher, peers: Peers) -> None:
        """Start on the running loop."""
        self._peers = peers
        self._loop = asyncio.get_running_loop()
        self._admission.start()
        for router in self._routers:
            router.start(dispatcher, peers)
        self._probed_at = self._loop.time()
        self._probe()

    async def close(self) -> None:
        """Close the sockets; recently sent messages have half a second to leave."""
        if self._timer is not None:
            self._timer.cancel()
        self._close_sockets()
        # Terminating waits for the linger time, which must not block the event loop.
        await self._loop.run_in_executor(None, self._context.term)

    def _close_sockets(self) -> None:
        for router in self._routers:
            router.close()
        self._admission.close()

    def _probe(self) -> None:
        now = self._loop.time()
        if now - self._probed_at > self._heartbeat_s / 2:
            self._peers.was_away()
        self._probed_at = now
        all_of_them = (self._turn + 1) % IDLE_PROBE_TURNS == 0
        if self._peers.probe(all_of_them=all_of_them):
            self._turn += 1
            if all_of_them:
                for router in self._routers:
                    router.lines.clear()  # of lost peers; the others are created again on demand
        self._timer = self._loop.call_later(PROBE_EVERY_S, self._probe)
