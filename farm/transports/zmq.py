"""The ZeroMQ transport at the dispatcher's end: one ROUTER to which workers and clients dial in.

Liveness without a thread in the worker: libzmq answers heartbeats by itself, even while a model
holds the GIL, and with ROUTER_MANDATORY a send to a peer that is gone fails. So small probes to
workers find the dead ones; a supervisor, which sees its child die, usually says so first and why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import zmq
import zmq.auth.thread

from farm.call import Call, WorkerInfo
from farm.errors import InvalidRequest
from farm.protocols import wire
from farm.protocols.wire import Buffer, Kind, Message
from farm.scheduler.state import TaskId, WorkerId
from farm.transports.connection import Connection
from farm.transports.zmq_clients import CLIENT_PREFIX, ClientDoor

if TYPE_CHECKING:
    from farm.dispatcher import Dispatcher

log = logging.getLogger(__name__)

PROBE_EVERY_S = 0.2
"""How often busy workers are probed; a worker killed with SIGKILL is found within this."""

IDLE_PROBE_TURNS = 5
"""Idle workers are probed every so many turns: it tells them that the dispatcher lives."""

SUPERVISOR_GRACE_S = 0.3
"""How long an unreachable worker waits for its supervisor's word on why, before it is given up."""

MESSAGES_PER_TURN = 200
"""Messages read before the event loop gets its turn again."""


class _Peer:
    """A worker as the transport sees it."""

    __slots__ = ("given_up", "out", "routing_id")

    def __init__(self, routing_id: bytes) -> None:
        self.routing_id = routing_id
        self.out: set[TaskId] = set()
        self.given_up: asyncio.TimerHandle | None = None


class ZmqTransport:
    """Binds the ROUTER; `endpoint` is its address once made.

    bind: `tcp://HOST:*` or with a port. keys: as of `connection.new_keys`, or None on loopback.
    heartbeat_s: silence after which libzmq takes a host for dead.
    """

    def __init__(
        self,
        bind: str = "tcp://127.0.0.1:*",
        *,
        keys: Connection | None = None,
        heartbeat_s: float = 5.0,
    ) -> None:
        self._context = zmq.Context()
        self._authenticator: zmq.auth.thread.ThreadAuthenticator | None = None
        self._router: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._router.set(zmq.ROUTER_MANDATORY, 1)
        self._router.set(zmq.ROUTER_HANDOVER, 1)
        self._router.set(zmq.LINGER, 500)
        self._router.set(zmq.SNDHWM, 0)
        self._router.set(zmq.RCVHWM, 0)
        self._router.set(zmq.BACKLOG, 1024)
        set_heartbeat(self._router, heartbeat_s)
        if keys is not None and keys.server_key:
            self._encrypt(keys)
        self._router.bind(bind)
        self.endpoint = self._router.get_string(zmq.LAST_ENDPOINT)
        self._fd = int(self._router.get(zmq.FD))
        # State of the running transport; only its own methods change it, on the loop.
        self._peers: dict[WorkerId, _Peer] = {}
        self._supervisors: set[bytes] = set()
        self._turn = 0
        self._timer: asyncio.TimerHandle | None = None
        self._read_is_due = False

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

    # The dispatcher's side of it: Transport

    def start(self, dispatcher: Dispatcher) -> None:
        """Begin, on the running loop."""
        self._dispatcher = dispatcher
        self._loop = asyncio.get_running_loop()
        self._clients = ClientDoor(dispatcher, self._loop, self._put)
        self._loop.add_reader(self._fd, self._read)
        self._probe()
        self._read_soon()

    def send(self, worker: WorkerId, tasks: Sequence[tuple[TaskId, Call]]) -> None:
        """Send tasks to a worker."""
        peer = self._peers[worker]
        peer.out.update([task_id for task_id, _ in tasks])
        if not self._put(peer.routing_id, wire.encode_calls(tasks)):
            self._unreachable(worker, peer)

    def take_back(self, worker: WorkerId, tasks: Sequence[TaskId]) -> None:
        """Ask for tasks back."""
        peer = self._peers[worker]
        if not self._put(peer.routing_id, wire.encode(Kind.TAKE_BACK, tasks)):
            self._unreachable(worker, peer)

    def stop_workers(self) -> None:
        """Ask every worker and supervisor to drain and end."""
        for routing_id in [*self._supervisors, *(p.routing_id for p in self._peers.values())]:
            self._put(routing_id, wire.encode(Kind.STOP))

    async def close(self) -> None:
        """Close the socket; what was sent in the last half second may still leave."""
        self._loop.remove_reader(self._fd)
        if self._timer is not None:
            self._timer.cancel()
        for peer in self._peers.values():
            if peer.given_up is not None:
                peer.given_up.cancel()
        self._clients.close()
        self._router.close()
        if self._authenticator is not None:
            self._authenticator.stop()
        # Terminating waits for the linger time, which must not hold up the loop.
        await asyncio.get_running_loop().run_in_executor(None, self._context.term)

    # The socket

    def _put(self, routing_id: bytes, frames: list[Buffer]) -> bool:
        """Send to a peer; False when it is not there."""
        try:
            if len(frames) == 1:
                self._router.send_multipart([routing_id, frames[0]], zmq.NOBLOCK)
            else:
                self._router.send_multipart([routing_id, *frames], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        # The descriptor is edge-triggered and a send may have swallowed the edge.
        if not self._read_is_due and int(self._router.get(zmq.EVENTS)) & zmq.POLLIN:
            self._read_soon()
        return True

    def _read_soon(self) -> None:
        self._read_is_due = True
        self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._read_is_due = False
        router = self._router
        if router.closed:
            return
        for _ in range(MESSAGES_PER_TURN):
            try:
                frames: list[Buffer] = [router.recv(zmq.NOBLOCK)]
            except zmq.Again:
                return
            while router.get(zmq.RCVMORE):
                # The routing id and the head are small; large arrays follow and are not copied.
                if len(frames) < 2:
                    frames.append(router.recv(zmq.NOBLOCK))
                else:
                    frames.append(router.recv(zmq.NOBLOCK, copy=False).buffer)
            routing_id = bytes(frames[0])
            try:
                self._received(routing_id, wire.decode(frames[1:]))
            except InvalidRequest as error:
                log.warning("peer %r: %s", routing_id, error)
        self._read_soon()

    # What the peers say

    def _received(self, routing_id: bytes, message: Message) -> None:
        kind = message.kind
        if routing_id.startswith(CLIENT_PREFIX):
            self._clients.received(routing_id, message)
            return
        worker = WorkerId(routing_id.decode("utf-8", "replace"))
        peer = self._peers.get(worker)
        if kind is Kind.ANSWERS:
            answers = wire.decode_answers(message)
            if peer is not None:
                peer.out.difference_update([task_id for task_id, _ in answers])
            self._dispatcher.finished(
                worker, [(TaskId(task_id), outcome) for task_id, outcome in answers]
            )
        elif kind is Kind.JOIN:
            self._joined(worker, routing_id, message.data)
            return
        elif kind is Kind.LOST:
            self._lost(routing_id, message.data)
            return
        elif kind is Kind.TAKEN_BACK and peer is not None:
            ids = _task_ids(message.data)
            peer.out.difference_update(ids)
            self._dispatcher.taken_back(worker, ids)
        elif kind is Kind.RESIZE and peer is not None and isinstance(message.data, int):
            self._dispatcher.worker_resized(worker, message.data)
        elif kind is Kind.LEAVE and peer is not None:
            self._forget(worker)
            self._dispatcher.worker_left(worker, str(message.data), drained=True)
            return
        if peer is None and kind is not Kind.LEAVE:
            self._put(routing_id, wire.encode(Kind.JOIN_AGAIN))

    def _joined(self, worker: WorkerId, routing_id: bytes, data: Any) -> None:
        try:
            info = WorkerInfo.from_json(data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidRequest(f"malformed JOIN message: {error!r}") from None
        if info.name != worker:
            raise InvalidRequest(f"worker {info.name!r} joins under the routing id {worker!r}")
        self._forget(worker)
        self._peers[worker] = _Peer(routing_id)
        self._put(routing_id, wire.encode(Kind.WELCOME))
        self._dispatcher.worker_joined(info, self)

    def _lost(self, supervisor: bytes, data: Any) -> None:
        """A supervisor's word: one of its workers died; without a worker it introduces itself."""
        self._supervisors.add(supervisor)
        if data is None:
            return
        try:
            worker = WorkerId(str(data["worker"]))
            running = None if data["running"] is None else _task_ids(data["running"])
            reason, time_limit = str(data["reason"]), bool(data["time_limit"])
        except (KeyError, TypeError) as error:
            raise InvalidRequest(f"malformed LOST message: {error!r}") from None
        if worker in self._peers:
            self._forget(worker)
            self._dispatcher.worker_left(worker, reason, running=running, time_limit=time_limit)

    # Liveness

    def _probe(self) -> None:
        self._turn += 1
        all_of_them = self._turn % IDLE_PROBE_TURNS == 0
        for worker, peer in list(self._peers.items()):
            if (all_of_them or peer.out) and not self._put(peer.routing_id, _PROBE):
                self._unreachable(worker, peer)
        if all_of_them:
            self._clients.probe()
        self._timer = self._loop.call_later(PROBE_EVERY_S, self._probe)

    def _unreachable(self, worker: WorkerId, peer: _Peer) -> None:
        if peer.given_up is None:
            peer.given_up = self._loop.call_later(SUPERVISOR_GRACE_S, self._give_up, worker, peer)

    def _give_up(self, worker: WorkerId, peer: _Peer) -> None:
        if self._peers.get(worker) is peer:
            del self._peers[worker]
            self._dispatcher.worker_left(worker, "its connection was lost")

    def _forget(self, worker: WorkerId) -> None:
        peer = self._peers.pop(worker, None)
        if peer is not None and peer.given_up is not None:
            peer.given_up.cancel()


_PROBE = wire.encode(Kind.PROBE)


def set_heartbeat(socket: zmq.Socket[bytes], heartbeat_s: float) -> None:
    """Let libzmq find out that the other host is gone, within `heartbeat_s` seconds."""
    socket.set(zmq.HEARTBEAT_IVL, max(1, int(heartbeat_s * 1000 / 3)))
    socket.set(zmq.HEARTBEAT_TIMEOUT, max(1, int(heartbeat_s * 1000)))
    socket.set(zmq.HEARTBEAT_TTL, max(1, int(heartbeat_s * 1000)))


def _task_ids(data: Any) -> list[TaskId]:
    if not isinstance(data, list) or not all(isinstance(i, int) for i in data):
        raise InvalidRequest("expected a list of task ids")
    return [TaskId(i) for i in data]
