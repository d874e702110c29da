"""The ZeroMQ transport at the dispatcher's end: one ROUTER to which workers and clients dial in.

Liveness without a thread in the worker: libzmq answers heartbeats by itself, even while a model
holds the GIL, and with ROUTER_MANDATORY a send to a peer that is gone fails. So small probes to
workers find the dead ones; a supervisor, which sees its child die, usually says so first and why.
A connection that breaks and comes back within a moment is not seen so, but may have taken messages
with it: CHECK asks each busy worker now and then whether it holds what it should.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import zmq
import zmq.auth.thread

from farm.call import Call, Result, WorkerInfo
from farm.errors import FarmError, InvalidInput, InvalidRequest, Unavailable
from farm.protocols import wire
from farm.protocols.wire import Buffer, Kind, Message
from farm.scheduler.lull import Lull
from farm.scheduler.state import TaskId, WorkerId
from farm.transports.connection import Connection, is_loopback
from farm.transports.zmq_clients import CLIENT_PREFIX, ClientDoor
from farm.transports.zmq_socket import has_message, receive, send, set_heartbeat

if TYPE_CHECKING:
    from farm.dispatcher import Dispatcher

log = logging.getLogger(__name__)

PROBE_EVERY_S = 0.2
"""How often busy workers are probed; a worker killed with SIGKILL is found within this."""

IDLE_PROBE_TURNS = 5
"""Idle workers are probed, and busy ones checked, every so many turns; both learn that we live."""

SUPERVISOR_GRACE_S = 0.3
"""How long an unreachable worker waits for its supervisor's word on why, before it is given up."""

MESSAGES_PER_TURN = 200
"""Messages read before the event loop gets its turn again."""

ENDS_ABOUT_S = 10.0
"""So far apart two machines may be about when a job ends."""

LARGEST_FRAME = 4 * 1024**3
"""A peer that sends a larger frame is cut off: nobody fills the dispatcher's memory by mistake."""


class _Peer:
    """A worker as the transport sees it."""

    __slots__ = ("ends_at", "given_up", "life", "out", "routing_id", "slots")

    def __init__(self, routing_id: bytes, life: str, info: WorkerInfo) -> None:
        self.routing_id = routing_id
        self.life = life
        self.slots = info.slots
        self.ends_at = info.ends_at
        self.out: set[TaskId] = set()
        # While it cannot be reached; it is offered no slots then.
        self.given_up: asyncio.TimerHandle | None = None

    def is_reclaimed(self) -> bool:
        """Whether it was draining, and its machine is taken away before its time.

        So SLURM ends jobs that are cancelled or give way to others. At the end of its time limit a
        job may have had a call that is too long for any job, which must not run for ever.
        """
        before_end = self.ends_at is None or time.time() < self.ends_at - ENDS_ABOUT_S
        return self.slots == 0 and before_end


class ZmqTransport:
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
        self._peers: dict[WorkerId, _Peer] = {}
        self._supervisors: set[bytes] = set()
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

    # The dispatcher's side of it: Transport

    def start(self, dispatcher: Dispatcher) -> None:
        """Begin, on the running loop."""
        self._dispatcher = dispatcher
        self._loop = asyncio.get_running_loop()
        self._clients = ClientDoor(dispatcher, self._put)
        self._lull = Lull(dispatcher)
        self._loop.add_reader(self._fd, self._look)
        self._probe()
        self._look_soon()

    def send(self, worker: WorkerId, tasks: Sequence[tuple[TaskId, Call]]) -> None:
        """Send tasks to a worker; one that cannot be sent is answered with InvalidInput."""
        try:
            frames = wire.encode_calls(tasks)
        except TypeError as error:
            if len(tasks) > 1:  # find the guilty
                for task in tasks:
                    self.send(worker, [task])
                return
            refusal: FarmError = InvalidInput(f"the call cannot be sent: {error}")
            self._loop.call_soon(self._dispatcher.finished, worker, [(tasks[0][0], refusal)])
            return
        peer = self._peers[worker]
        ids = [task_id for task_id, _ in tasks]
        if self._put(peer.routing_id, frames):
            peer.out.update(ids)
        else:
            self._unreachable(worker, peer)
            self._loop.call_soon(self._dispatcher.taken_back, worker, ids)

    def take_back(self, worker: WorkerId, tasks: Sequence[TaskId]) -> None:
        """Ask for tasks back."""
        peer = self._peers[worker]
        if not self._put(peer.routing_id, wire.encode(Kind.TAKE_BACK, tasks)):
            self._unreachable(worker, peer)
            self._loop.call_soon(self._dispatcher.taken_back, worker, [])

    def end_stream(self, worker: WorkerId, task: TaskId) -> None:
        """Let a worker end a stream."""
        self._put(self._peers[worker].routing_id, wire.encode(Kind.END_STREAM, [task]))

    def stop_workers(self) -> None:
        """Ask every worker and supervisor to drain and end."""
        for routing_id in [*self._supervisors, *(p.routing_id for p in self._peers.values())]:
            self._put(routing_id, wire.encode(Kind.STOP))

    async def close(self) -> None:
        """Close the socket; what was sent in the last half second may still leave."""
        self._loop.remove_reader(self._fd)
        if self._timer is not None:
            self._timer.cancel()
        for worker in list(self._peers):
            self._forget(worker)
        self._clients.close()
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
            routing_id = bytes(frames[0])
            try:
                self._received(routing_id, wire.decode(frames[1:]))
            except InvalidRequest as error:
                log.warning("peer %r: %s", routing_id, error)
                self._put(routing_id, wire.encode(Kind.REFUSED, error.message))
            except Exception:
                # One message that we cannot cope with must not stop all others.
                log.exception("peer %r: a message that cannot be acted on", routing_id)
            if not has_message(self._router):
                return

    # What the peers say

    def _received(self, routing_id: bytes, message: Message) -> None:
        kind = message.kind
        if routing_id.startswith(CLIENT_PREFIX):
            self._clients.received(routing_id, message)
            return
        worker = WorkerId(routing_id.decode("utf-8", "replace"))
        peer = self._peers.get(worker)
        if kind is Kind.ANSWERS:
            answers = [(TaskId(i), outcome) for i, outcome in wire.decode_answers(message)]
            if peer is not None:
                peer.out.difference_update([i for i, outcome in answers if not _goes_on(outcome)])
            self._dispatcher.finished(worker, answers)
        elif kind is Kind.JOIN:
            self._joined(worker, routing_id, message)
            return
        elif kind is Kind.LOST:
            self._lost(routing_id, message)
            return
        elif peer is not None:
            self._said(worker, peer, message)
            return
        if peer is None and kind is not Kind.LEAVE:
            self._put(routing_id, wire.encode(Kind.JOIN_AGAIN))

    def _said(self, worker: WorkerId, peer: _Peer, message: Message) -> None:
        """Act on what a worker says that has joined."""
        kind = message.kind
        if kind is Kind.TAKEN_BACK or kind is Kind.MISSING:
            ids = [TaskId(i) for i in wire.decode_ids(message)]
            peer.out.difference_update(ids)
            if kind is Kind.TAKEN_BACK:
                self._dispatcher.taken_back(worker, ids)
            else:
                # What was answered meanwhile is not with this worker any more, and passed over.
                self._dispatcher.went_missing(worker, ids)
        elif kind is Kind.RESIZE:
            if type(message.data) is not int or message.data < 0:
                raise InvalidRequest(f"RESIZE wants a number of slots, got {message.data!r}")
            peer.slots = message.data
            if peer.given_up is None:
                self._dispatcher.worker_resized(worker, peer.slots)
        elif kind is Kind.LEAVE:
            self._forget(worker)
            self._dispatcher.worker_left(worker, str(message.data), drained=True)

    def _joined(self, worker: WorkerId, routing_id: bytes, message: Message) -> None:
        life, info = wire.decode_join(message)
        if info.name != worker:
            raise InvalidRequest(f"worker {info.name!r} joins under the routing id {worker!r}")
        known = self._peers.get(worker)
        self._put(routing_id, wire.encode(Kind.WELCOME, life))
        if known is None or known.life != life:  # else our welcome was late, or lost
            self._forget(worker)
            self._peers[worker] = _Peer(routing_id, life, info)
            self._dispatcher.worker_joined(info, self)

    def _lost(self, supervisor: bytes, message: Message) -> None:
        """A supervisor's word: it is there, or one of its workers died."""
        loss = wire.decode_loss(message)
        self._supervisors.add(supervisor)
        if loss is None or loss.worker not in self._peers:
            return
        worker = WorkerId(loss.worker)
        reclaimed = self._peers[worker].is_reclaimed() and not loss.time_limit
        self._forget(worker)
        self._dispatcher.worker_left(
            worker,
            loss.reason,
            running=None if loss.running is None else map(TaskId, loss.running),
            time_limit=loss.time_limit,
            reclaimed=reclaimed,
        )

    # Liveness

    def _probe(self) -> None:
        self._turn += 1
        all_of_them = self._turn % IDLE_PROBE_TURNS == 0
        for worker, peer in list(self._peers.items()):
            if all_of_them and peer.out:
                reached = self._put(peer.routing_id, wire.encode(Kind.CHECK, list(peer.out)))
            elif all_of_them or peer.out:
                reached = self._put(peer.routing_id, _PROBE)
            else:
                continue
            if not reached:
                self._unreachable(worker, peer)
            elif peer.given_up is not None:
                self._reachable(worker, peer)
        if all_of_them:
            self._clients.probe()
            self._supervisors = {s for s in self._supervisors if self._put(s, _PROBE)}
        self._timer = self._loop.call_later(PROBE_EVERY_S, self._probe)

    def _unreachable(self, worker: WorkerId, peer: _Peer) -> None:
        if peer.given_up is None:
            peer.given_up = self._loop.call_later(SUPERVISOR_GRACE_S, self._give_up, worker, peer)
            self._dispatcher.worker_resized(worker, 0)

    def _reachable(self, worker: WorkerId, peer: _Peer) -> None:
        assert peer.given_up is not None
        peer.given_up.cancel()
        peer.given_up = None
        self._dispatcher.worker_resized(worker, peer.slots)

    def _give_up(self, worker: WorkerId, peer: _Peer) -> None:
        if self._peers.get(worker) is peer:
            self._forget(worker)
            reason = "its connection was lost"
            self._dispatcher.worker_left(worker, reason, reclaimed=peer.is_reclaimed())

    def _forget(self, worker: WorkerId) -> None:
        peer = self._peers.pop(worker, None)
        if peer is not None and peer.given_up is not None:
            peer.given_up.cancel()


_PROBE = wire.encode(Kind.PROBE)


def _goes_on(outcome: wire.Outcome) -> bool:
    """Whether this is one of several answers to a task, and more follow."""
    return isinstance(outcome, Result) and outcome.more


def _host_of(endpoint: str) -> str:
    return endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")


def _advertised(endpoint: str, host: str) -> str:
    """The bound address as others may dial it."""
    if _host_of(endpoint) not in ("0.0.0.0", "::"):
        return endpoint
    return f"tcp://{host or socket.gethostname()}:{endpoint.rpartition(':')[2]}"
