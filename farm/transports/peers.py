"""What workers, supervisors and native clients say to the dispatcher, whatever carries it.

A listener accepts connections and passes each message on with the `Line` that it came by. Here the
message is understood, the dispatcher is told, and what the dispatcher decides goes back on the
line of the worker concerned.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from farm.call import Call, Result, WorkerInfo
from farm.errors import FarmError, InvalidInput, InvalidRequest
from farm.protocols import wire, wire_bounds
from farm.protocols.wire import Buffer, Kind, Message
from farm.scheduler.state import TaskId, WorkerId
from farm.transports.agenda import Agenda, Steps
from farm.transports.identity import name_in
from farm.transports.native_clients import ClientDoor

if TYPE_CHECKING:
    from farm.dispatcher import Dispatcher

log = logging.getLogger(__name__)

SUPERVISOR_GRACE_S = 0.3
"""How long an unreachable worker waits for its supervisor's word on why, before it is given up."""

BACK_WITHIN_S = 10.0
"""How long peers may take to dial again after this process did not run for a while (SIGSTOP, a
machine that swaps): their heartbeats were not answered, so they gave up their connections."""

WARNINGS, WARN_AGAIN_S = 20, 60.0
"""Refused messages that are logged within a minute."""

ENDS_ABOUT_S = 10.0
"""Allowed clock skew between two machines when the end of a job is judged."""


class Line(Protocol):
    """The dispatcher's end of the connection to one peer.

    name: the peer's identity (`identity.py`), which no other peer can have.
    is_client: whether it may call models; else it is a worker's or a supervisor's.
    may_come_back: it may break, lose messages and be there again, and nobody says so. So it is
    probed, and what the peer holds is checked.
    """

    @property
    def name(self) -> bytes: ...

    @property
    def is_client(self) -> bool: ...

    @property
    def may_come_back(self) -> bool: ...

    def send(self, frames: list[Buffer]) -> bool:
        """Send a message without waiting; False when the peer is not there."""

    def rest(self) -> Iterable[Sequence[Buffer]]:
        """The messages that have arrived and were not read yet."""

    def close(self) -> None:
        """End the line: the peer is dead. Not for one that may come back."""


class Listener(Protocol):
    """Accepts connections of peers; tells `Peers` what is received, and that a line has ended."""

    def start(self, dispatcher: Dispatcher, peers: Peers) -> None:
        """Begin, on the running loop."""

    async def close(self) -> None:
        """Let go of every resource."""


class _Peer:
    """A worker that has joined."""

    __slots__ = ("checks", "ends_at", "given_up", "heard", "life", "line", "out", "slots")

    def __init__(self, line: Line, life: str, info: WorkerInfo) -> None:
        self.line = line
        self.life = life
        self.slots = info.slots
        self.ends_at = info.ends_at
        # What it should hold, and how many CHECKs it had been sent before each of these.
        self.out: dict[TaskId, int] = {}
        self.checks = 0
        self.heard = 0  # messages in which it answered calls or handed them back
        # While it cannot be reached; it is offered no slots then.
        self.given_up: asyncio.TimerHandle | None = None

    def offered(self) -> int:
        """The slots that it may be given now."""
        return 0 if self.given_up is not None else self.slots

    def settled(self, ids: Iterable[TaskId]) -> None:
        """The worker has answered these, or hands them back."""
        for task_id in ids:
            self.out.pop(task_id, None)

    def missing(self, said: Sequence[int]) -> list[TaskId]:
        """What the worker should hold and does not, by its answer to a CHECK.

        It says which CHECK it answers by the number of it, below 0, which it cannot hold. What was
        sent after that CHECK, such as a call that had been handed back, is not meant.
        """
        check = -min(said, default=0)
        ids = [task_id for i in said if self.out.get(task_id := TaskId(i), check) < check]
        for task_id in ids:
            self.out.pop(task_id, None)
        return ids

    def is_reclaimed(self) -> bool:
        """Whether it was draining, and its machine is taken away before its time.

        So SLURM ends jobs that are cancelled or give way to others. At the end of its time limit a
        job may have had a call that is too long for any job, which must not run for ever.
        """
        before_end = self.ends_at is None or time.time() < self.ends_at - ENDS_ABOUT_S
        return self.slots == 0 and before_end


class Peers:
    """The transport of everything that speaks farm's own messages, over one or more listeners.

    is_own: whether the farm itself has started a worker; every other one that joins is an event.
    """

    def __init__(
        self, *listeners: Listener, is_own: Callable[[WorkerInfo], bool] = lambda info: True
    ) -> None:
        self._listeners = listeners
        self._is_own = is_own
        # State of the running transport; only its own methods change it, on the loop.
        self._workers: dict[WorkerId, _Peer] = {}
        self._by_line: dict[bytes, tuple[WorkerId, _Peer]] = {}
        self._supervisors: dict[bytes, Line] = {}
        self._patient_until = 0.0
        self._warned = 0
        self._warned_in = 0.0

    # The dispatcher's side of it: Transport

    def start(self, dispatcher: Dispatcher) -> None:
        """Begin, on the running loop."""
        self._dispatcher = dispatcher
        self._loop = asyncio.get_running_loop()
        self._agenda = Agenda(dispatcher.act_on)
        self._clients = ClientDoor(dispatcher, self._agenda)
        for listener in self._listeners:
            listener.start(dispatcher, self)

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
        peer = self._workers[worker]
        ids = [task_id for task_id, _ in tasks]
        if peer.line.send(frames):
            peer.out.update(dict.fromkeys(ids, peer.checks))
        else:
            self._unreachable(worker, peer)
            self._loop.call_soon(self._dispatcher.taken_back, worker, ids)

    def take_back(self, worker: WorkerId, tasks: Sequence[TaskId]) -> None:
        """Ask for tasks back."""
        peer = self._workers[worker]
        if not peer.line.send(wire.encode(Kind.TAKE_BACK, tasks)):
            self._unreachable(worker, peer)
            self._loop.call_soon(self._dispatcher.taken_back, worker, [])

    def end_stream(self, worker: WorkerId, task: TaskId) -> None:
        """Let a worker end a stream."""
        self._workers[worker].line.send(wire.encode(Kind.END_STREAM, [task]))

    def stop_workers(self) -> None:
        """Ask every worker and supervisor to drain and end."""
        for line in [*self._supervisors.values(), *(p.line for p in self._workers.values())]:
            line.send(wire.encode(Kind.STOP))

    async def close(self) -> None:
        """Close the listeners; what was sent in the last half second may still leave."""
        for worker in list(self._workers):
            self._forget(worker)
        self._clients.close()
        for listener in self._listeners:
            await listener.close()

    # What the peers say

    def received(self, line: Line, frames: Sequence[Buffer]) -> None:
        """Act on a message; one that means nothing is refused and harms nobody else.

        Call within `Dispatcher.act_on`.
        """
        self._agenda.add(line.name, self._steps(line, frames))

    def _steps(self, line: Line, frames: Sequence[Buffer]) -> Steps:
        try:
            if line.is_client and frames:
                wire_bounds.check(frames[0])
            yield from self._received(line, wire.decode(frames))
        except InvalidRequest as error:
            self._warn(line, error.message)
            line.send(wire.encode(Kind.REFUSED, error.message))
        except Exception:
            # One message that we cannot cope with must not stop all others.
            log.exception("peer %s: a message that cannot be acted on", name_in(line.name))

    def _warn(self, line: Line, text: str) -> None:
        """Log what a peer did wrong, within bounds: no peer fills the log."""
        now = self._loop.time()
        if now - self._warned_in > WARN_AGAIN_S:
            self._warned, self._warned_in = 0, now
        self._warned += 1
        if self._warned <= WARNINGS:
            log.warning("peer %s: %s", name_in(line.name), text)
        elif self._warned == WARNINGS + 1:
            log.warning("more messages are refused; for a minute they are not logged")

    def _received(self, line: Line, message: Message) -> Steps:
        if line.is_client:
            return self._clients.received(line, message)
        kind = message.kind
        joined = self._by_line.get(line.name)
        if kind is Kind.JOIN:
            self._joined(line, message)
        elif kind is Kind.LOST:
            self._lost(line, message)
        elif joined is not None and kind is Kind.ANSWERS:
            return self._answered(*joined, message)
        elif joined is not None:
            self._said(*joined, message)
        elif kind is Kind.ANSWERS:
            line.send(wire.encode(Kind.JOIN_AGAIN))
            # Late ones, of a worker that was given up: used if nobody else has answered by now.
            worker = WorkerId(name_in(line.name))
            if worker not in self._workers:
                return self._answered(worker, None, message)
        elif kind is not Kind.LEAVE:
            line.send(wire.encode(Kind.JOIN_AGAIN))
        return iter(())

    def _answered(self, worker: WorkerId, peer: _Peer | None, message: Message) -> Steps:
        for some in wire.decode_some_answers(message):
            answers = [(TaskId(i), outcome) for i, outcome in some]
            if peer is not None:
                peer.settled([i for i, outcome in answers if not _goes_on(outcome)])
            self._dispatcher.finished(worker, answers)
            yield len(answers)
        if peer is not None:
            peer.heard += 1

    def _said(self, worker: WorkerId, peer: _Peer, message: Message) -> None:
        """Act on what a worker says that has joined."""
        kind = message.kind
        if kind is Kind.TAKEN_BACK:
            ids = [TaskId(i) for i in wire.decode_ids(message)]
            peer.settled(ids)
            peer.heard += 1
            self._dispatcher.taken_back(worker, ids)
        elif kind is Kind.MISSING:
            ids = peer.missing(wire.decode_ids(message))
            if ids:
                self._dispatcher.went_missing(worker, ids)
        elif kind is Kind.RESIZE:
            if type(message.data) is not int or message.data < 0:
                raise InvalidRequest(f"RESIZE wants a number of slots, got {message.data!r}")
            peer.slots = message.data
            self._dispatcher.worker_resized(worker, peer.offered())
        elif kind is Kind.LEAVE:
            reason, told = _goodbye(message)
            self._forget(worker)
            # If something that it said was lost, it may have run what it seems to hold.
            self._dispatcher.worker_left(worker, reason, drained=told == peer.heard)

    def _joined(self, line: Line, message: Message) -> None:
        life, info = wire.decode_join(message)
        worker = WorkerId(info.name)
        if worker != name_in(line.name):
            raise InvalidRequest(f"worker {worker!r} joins as {name_in(line.name)!r}")
        known = self._workers.get(worker)
        if known is not None and known.line.name != line.name:
            raise InvalidRequest(f"worker {worker!r} is here already, by another connection")
        line.send(wire.encode(Kind.WELCOME, life))
        if known is None or known.life != life:  # else our welcome was late, or lost
            self._forget(worker)
            peer = self._workers[worker] = _Peer(line, life, info)
            self._by_line[line.name] = worker, peer
            self._dispatcher.worker_joined(info, self)
            if not self._is_own(info):
                self._note_stranger(info)

    def _note_stranger(self, info: WorkerInfo) -> None:
        text = f"process {info.pid} on {info.host}, which this farm did not start"
        log.warning("worker %s joined: %s", info.name, text)
        self._dispatcher.note("from elsewhere", info.name, text)

    def _lost(self, supervisor: Line, message: Message) -> None:
        """A supervisor's word: it is there, or one of its workers died."""
        loss = wire.decode_loss(message)
        self._supervisors[supervisor.name] = supervisor
        peer = None if loss is None else self._workers.get(WorkerId(loss.worker))
        if loss is None or peer is None:
            return
        worker = WorkerId(loss.worker)
        # What it wrote before it died counts: an answer on its way is not overtaken by the loss.
        for frames in peer.line.rest():
            self.received(peer.line, frames)
        self._agenda.finish(peer.line.name)
        if self._workers.get(worker) is not peer:
            return  # it has left
        reclaimed = peer.is_reclaimed() and not loss.time_limit
        self._forget(worker)
        # Not left to its end of file: a child of the model may hold the other end open.
        peer.line.close()
        self._dispatcher.worker_left(
            worker,
            loss.reason,
            running=None if loss.running is None else map(TaskId, loss.running),
            row=loss.row,
            time_limit=loss.time_limit,
            reclaimed=reclaimed,
        )

    # Lines

    def is_behind(self, line: Line) -> bool:
        """Whether messages that came by this line are still to be acted on: read no more yet."""
        return self._agenda.waits(line.name)

    def ended(self, line: Line) -> None:
        """The line is gone, and everything that it brought was received."""
        if line.is_client:
            self._clients.ended(line)
        elif self._supervisors.get(line.name) is line:
            del self._supervisors[line.name]
        elif (known := self._worker_of(line)) is not None:
            self._unreachable(*known)

    def is_full(self, line: Line, full: bool) -> None:
        """So much is queued for the peer that it is given nothing to do until it has read it."""
        if (known := self._worker_of(line)) is not None:
            self._dispatcher.worker_full(known[0], full)

    def _worker_of(self, line: Line) -> tuple[WorkerId, _Peer] | None:
        known = self._by_line.get(line.name)
        return known if known is not None and known[1].line is line else None

    def probe(self, *, all_of_them: bool) -> None:
        """Probe busy workers whose lines may come back, so that a send to one that is gone fails.

        all_of_them: probe every peer, and check what the busy workers hold.
        """
        for worker, peer in list(self._workers.items()):
            if not peer.line.may_come_back:
                continue
            if all_of_them and peer.out:
                peer.checks += 1
                reached = peer.line.send(wire.encode(Kind.CHECK, [-peer.checks, *peer.out]))
            elif all_of_them or peer.out:
                reached = peer.line.send(_PROBE)
            else:
                continue
            if not reached:
                self._unreachable(worker, peer)
            elif peer.given_up is not None:
                self._reachable(worker, peer)
        if all_of_them:
            self._clients.probe(patient=self._loop.time() < self._patient_until)
            there = self._supervisors.items()
            self._supervisors = {
                name: line for name, line in there if not line.may_come_back or line.send(_PROBE)
            }

    def was_away(self) -> None:
        """This process did not run for longer than peers wait: let them come back."""
        log.warning("the front door did not run for a while; its peers have time to come back")
        self._patient_until = self._loop.time() + BACK_WITHIN_S

    def _unreachable(self, worker: WorkerId, peer: _Peer) -> None:
        if peer.given_up is None:
            peer.given_up = self._loop.call_later(SUPERVISOR_GRACE_S, self._give_up, worker, peer)
            self._dispatcher.worker_resized(worker, 0)

    def _reachable(self, worker: WorkerId, peer: _Peer) -> None:
        assert peer.given_up is not None
        peer.given_up.cancel()
        peer.given_up = None
        self._dispatcher.worker_resized(worker, peer.offered())

    def _give_up(self, worker: WorkerId, peer: _Peer) -> None:
        wait_s = self._patient_until - self._loop.time()
        if wait_s > 0.0:
            peer.given_up = self._loop.call_later(wait_s, self._give_up, worker, peer)
            return
        self._agenda.finish(peer.line.name)
        if self._workers.get(worker) is peer:
            self._forget(worker)
            reason = "its connection was lost"
            self._dispatcher.worker_left(worker, reason, reclaimed=peer.is_reclaimed())

    def _forget(self, worker: WorkerId) -> None:
        peer = self._workers.pop(worker, None)
        if peer is None:
            return
        del self._by_line[peer.line.name]
        if peer.given_up is not None:
            peer.given_up.cancel()


_PROBE = wire.encode(Kind.PROBE)


def _goes_on(outcome: wire.Outcome) -> bool:
    """Whether this is one of several answers to a task, and more follow."""
    return isinstance(outcome, Result) and outcome.more


def _goodbye(message: Message) -> tuple[str, int]:
    """Why a worker goes, and in how many messages of this life it answered or handed back calls.

    Raises InvalidRequest.
    """
    data = message.data
    if not isinstance(data, list) or [type(each) for each in data] != [str, int]:
        raise InvalidRequest(
            f"malformed LEAVE message: expected a reason and a number, got {data!r}"
        )
    return data[0], data[1]
