"""Processing of messages from workers, supervisors and native clients, for any transport.

A listener accepts connections and passes each message on with its `PeerLine`. This module decodes
the message and informs the dispatcher; the dispatcher's decisions go back on the line of the worker
concerned.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from farm.call import Buffer, Call, WorkerInfo
from farm.errors import FarmError, InvalidInput, InvalidRequest, LossCause
from farm.scheduler.state import ENDS_ABOUT_S, TaskId, WorkerId
from farm.sequences import SequenceId
from farm.transports.agenda import Agenda, Steps
from farm.transports.identity import name_in
from farm.transports.native_clients import PROBE, NativeClients
from farm.wire import bounds as wire_bounds
from farm.wire import messages as wire
from farm.wire.messages import Kind, Message, encode_ended
from farm.wire.usage import decode_usage

if TYPE_CHECKING:
    from farm.dispatcher.dispatcher import Dispatcher

log = logging.getLogger(__name__)

SUPERVISOR_GRACE_S = 0.3
"""Wait for a supervisor to report a reason before an unreachable worker is given up."""

GROUP_GRACE_S = 10.0
"""The same for a group of MPI ranks: its supervisor reports when the launcher has ended.

That of Open MPI takes more than a second.
"""

KILLED_KNOWN = 1000
"""Killed workers, each with a name of its own, that are remembered so that none joins again."""

PROBES_AT_ONCE = 400
"""Maximum number of workers probed in one step, so that thousands hold up nothing else."""

BACK_WITHIN_S = 10.0
"""Time for peers to reconnect after this process was suspended (SIGSTOP, a machine that swaps):
they closed their connections because their heartbeats were not answered.
"""

WARNINGS, WARN_AGAIN_S = 20, 60.0
"""At most 20 refused messages are logged per 60 s."""


class PeerLine(Protocol):
    """The dispatcher's end of the connection to one peer.

    name: the peer's identity (`identity.py`), unique to it.
    is_client: whether it may call models; otherwise it is a worker or a supervisor.
    may_come_back: the connection may break, lose messages and be restored unnoticed. So the peer is
    probed, and the calls it holds are checked.
    """

    name: bytes
    is_client: bool
    may_come_back: bool

    def send(self, frames: list[Buffer]) -> bool:
        """Send a message without waiting; return False if the peer is not reachable."""

    def rest(self) -> Iterable[Sequence[Buffer]]:
        """Return the messages that have arrived but were not read yet."""

    def close(self) -> None:
        """End the line because the peer is dead. Not for a line that may come back."""


class Listener(Protocol):
    """Accepts connections of peers; passes received messages and ended lines to `Peers`."""

    def start(self, dispatcher: Dispatcher, peers: Peers) -> None:
        """Start on the running loop."""

    async def close(self) -> None:
        """Release all resources."""


class _JoinedWorker:
    """The state of a worker that has joined."""

    def __init__(self, line: PeerLine, life: str, info: WorkerInfo) -> None:
        self.name = WorkerId(info.name)
        self.line = line
        self.life = life
        self.slots = info.slots
        self.last_slots = 0
        self.ends_at = info.ends_at
        self.grace_s = GROUP_GRACE_S if "ranks" in info.labels else SUPERVISOR_GRACE_S
        # Tasks that it should hold, each with the number of CHECKs sent before it.
        self.out: dict[TaskId, int] = {}
        self.checks = 0
        self.heard = 0  # messages in which it answered or recalled calls
        # Set while it cannot be reached; it is offered no slots then.
        self.given_up: asyncio.TimerHandle | None = None

    def offered(self) -> tuple[int, int]:
        """Return the slots that it offers now, and those for its sequences while it drains."""
        return (0, 0) if self.given_up is not None else (self.slots, self.last_slots)

    def resized(self, data: object) -> None:
        """Note the slots that it offers, and those for its sequences while it drains.

        data: of a RESIZE. Raises InvalidRequest.
        """
        found: list[Any] = data if isinstance(data, list) else [data, 0]
        if [type(each) for each in found] != [int, int] or min(found) < 0:
            raise InvalidRequest(f"RESIZE expects a number of slots, got {str(data)[:100]}")
        self.slots, self.last_slots = found

    def check(self) -> list[int]:
        """Return the data of a CHECK: its number as a negative id, and the tasks."""
        self.checks += 1
        return [-self.checks, *self.out]

    def give_up_at(self, timer: asyncio.TimerHandle | None) -> None:
        """Give it up then, unless it is reached before; None: it is reached, or gone."""
        if self.given_up is not None:
            self.given_up.cancel()
        self.given_up = timer

    def missing(self, said: Sequence[int]) -> list[TaskId]:
        """Return the tasks that the worker should hold but, by its answer to a CHECK, does not.

        The answer contains the CHECK's number as a negative id, which no task has. Tasks sent after
        that CHECK, such as a call that had been recalled, are not compared.
        """
        check = -min(said, default=0)
        ids = [task_id for i in said if self.out.get(task_id := TaskId(i), check) < check]
        for task_id in ids:
            self.out.pop(task_id, None)
        return ids

    def is_reclaimed(self) -> bool:
        """Whether it was draining because its machine is taken away early.

        This is how SLURM ends jobs that are cancelled or preempted. In contrast, a job at the end
        of its time limit may have had a call too long for any job, which must not be retried for
        ever.
        """
        before_end = self.ends_at is None or time.time() < self.ends_at - ENDS_ABOUT_S
        return self.slots == 0 and before_end


class _JoinedWorkers(dict[WorkerId, _JoinedWorker]):
    """The workers that have joined, by their names.

    by_line: the same by the names of their lines. killed: those that must not join again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_line: dict[bytes, _JoinedWorker] = {}
        self.killed: deque[WorkerId] = deque(maxlen=KILLED_KNOWN)

    def add(self, peer: _JoinedWorker) -> None:
        self[peer.name] = self.by_line[peer.line.name] = peer

    def remove(self, peer: _JoinedWorker) -> None:
        del self[peer.name], self.by_line[peer.line.name]


class _RefusalLog:
    """Logs errors of peers, rate-limited so that no peer can fill the log."""

    def __init__(self) -> None:
        self._count = 0
        self._since = 0.0

    def add(self, line: PeerLine, text: str) -> None:
        now = time.monotonic()
        if now - self._since > WARN_AGAIN_S:
            self._count, self._since = 0, now
        self._count += 1
        if self._count <= WARNINGS:
            log.warning("peer %s: %s", name_in(line.name), text)
        elif self._count == WARNINGS + 1:
            log.warning("more messages are refused; for a minute they are not logged")


class Peers:
    """The transport for all peers that use farm's own messages, over one or more listeners.

    is_own: whether the farm itself started a worker; the joining of any other worker is logged.
    behind: the names of lines with messages that still wait: read no more from these.
    """

    behind: Container[Hashable]

    def __init__(
        self, *listeners: Listener, is_own: Callable[[WorkerInfo], bool] = lambda info: True
    ) -> None:
        self._listeners = listeners
        self._is_own = is_own
        # State of the running transport; only its own methods change it, on the loop.
        self._workers = _JoinedWorkers()
        self._supervisors: dict[bytes, PeerLine] = {}
        self._to_probe: deque[_JoinedWorker] = deque()  # in this round
        self._traffic = {"received": 0, "sent": 0}  # bytes of calls, and of all that peers send
        self._patient_until = 0.0
        self._refusals = _RefusalLog()

    # The dispatcher's interface: Transport

    def start(self, dispatcher: Dispatcher) -> None:
        """Start on the running loop."""
        self._dispatcher = dispatcher
        dispatcher.add_part("messages", self._traffic.copy)
        self._agenda = Agenda(dispatcher.turns)
        self.behind = self._agenda.waiting
        self._clients = NativeClients(dispatcher, self._agenda, self._traffic)
        for listener in self._listeners:
            listener.start(dispatcher, self)

    def send(self, worker: WorkerId, tasks: Sequence[tuple[TaskId, Call]]) -> None:
        """Send tasks to a worker; a task that cannot be encoded is answered with InvalidInput."""
        peer = self._workers[worker]
        try:
            frames = wire.encode_calls(tasks)
        except TypeError as error:
            if len(tasks) > 1:  # find the task at fault
                for task in tasks:
                    self.send(worker, [task])
                return
            refusal: FarmError = InvalidInput(f"the call cannot be sent: {error}")
            asyncio.get_running_loop().call_soon(
                self._dispatcher.finished, worker, [(tasks[0][0], refusal)]
            )
            return
        if peer.line.send(frames):
            out, checks = peer.out, peer.checks
            for task_id, _ in tasks:
                out[task_id] = checks
        else:
            self._unreachable(peer)
            ids = [task_id for task_id, _ in tasks]
            asyncio.get_running_loop().call_soon(self._dispatcher.recalled, worker, ids)
        self._traffic["sent"] += sum(map(len, frames))

    def recall(self, worker: WorkerId, tasks: Sequence[TaskId]) -> None:
        """Recall tasks from a worker."""
        peer = self._workers[worker]
        if not peer.line.send(wire.encode(Kind.RECALL, tasks)):
            self._unreachable(peer)
            asyncio.get_running_loop().call_soon(self._dispatcher.recalled, worker, [])

    def end_stream(self, worker: WorkerId, task: TaskId) -> None:
        """Tell a worker that the answers to a task are not needed any more."""
        self._workers[worker].line.send(wire.encode(Kind.END_STREAM, [task]))

    def end_sequence(self, worker: WorkerId, model: str, sequence: SequenceId) -> None:
        """Tell a worker that it needs the state of a sequence no more."""
        self._workers[worker].line.send(encode_ended([(model, sequence)]))

    def drain(self, worker: str) -> bool:
        """Ask a worker to leave after its running calls; its supervisor starts no other one.

        False if it is not here.
        """
        peer = self._workers.get(WorkerId(worker))
        return peer is not None and peer.line.send(wire.encode(Kind.STOP))

    def restart(self, worker: str, supervisor: str) -> bool:
        """Have a supervisor kill a worker of its own and start another; False if it is away."""
        line = self._supervisors.get(f"supervisor:{supervisor}".encode())
        return line is not None and line.send(wire.encode(Kind.RESTART, [worker]))

    def stop_workers(self) -> None:
        """Ask every worker and supervisor to drain and exit."""
        for line in [*self._supervisors.values(), *(p.line for p in self._workers.values())]:
            line.send(wire.encode(Kind.STOP))

    async def close(self) -> None:
        """Close the listeners, which wait up to half a second until sent messages have left."""
        for peer in list(self._workers.values()):
            self._forget(peer)
        self._clients.close()
        for listener in self._listeners:
            await listener.close()

    # Messages from peers

    def received(self, line: PeerLine, frames: Sequence[Buffer]) -> None:
        """Process a message; an invalid one is refused without effect on other peers.

        Call it within `LoopTurns.act_on`.
        """
        self._traffic["received"] += sum(map(len, frames))
        if line.name in self.behind or self._agenda.left <= 0:
            self._agenda.add(line.name, self._later(line, frames))
        elif (rest := self._begin(line, frames)) is not None:
            self._agenda.add(line.name, rest)
        else:
            self._agenda.did(1)

    def _later(self, line: PeerLine, frames: Sequence[Buffer]) -> Steps:
        yield from self._begin(line, frames) or (1,)

    def _begin(self, line: PeerLine, frames: Sequence[Buffer]) -> Steps | None:
        """Process a message; return what is left of a long one."""
        try:
            if line.is_client and frames and len(frames[0]) > wire_bounds.QUICK_BYTES:
                wire_bounds.check(frames[0])
            receive = self._clients.received if line.is_client else self._received
            rest = receive(line, wire.decode(frames))
        except Exception as error:
            self._failed(line, error)
            return None
        return None if rest is None else self._go_on(line, rest)

    def _go_on(self, line: PeerLine, rest: Steps) -> Steps:
        try:
            yield from rest
        except Exception as error:
            self._failed(line, error)

    def _failed(self, line: PeerLine, error: Exception) -> None:
        """Refuse a message. Its errors must not stop the processing of others."""
        if isinstance(error, InvalidRequest):
            self._refusals.add(line, error.message)
            line.send(wire.encode(Kind.REFUSED, error.message))
        else:
            text = "peer %s: a message that cannot be acted on"
            log.error(text, name_in(line.name), exc_info=error)

    def _received(self, line: PeerLine, message: Message) -> Steps | None:
        kind = message.kind
        joined = self._workers.by_line.get(line.name)
        if kind is Kind.JOIN:
            self._joined(line, message)
        elif kind is Kind.LOST:
            self._lost(line, message)
        elif joined is not None and kind is Kind.ANSWERS:
            return self._answered(joined.name, joined, message)
        elif joined is not None:
            self._said(joined, message)
        elif kind is not Kind.LEAVE:
            line.send(wire.encode(Kind.JOIN_AGAIN))
            # Late answers of a worker that was given up: used if the task is still open.
            worker = WorkerId(name_in(line.name))
            if kind is Kind.ANSWERS and worker not in self._workers:
                return self._answered(worker, None, message)
        return None

    def _answered(
        self, worker: WorkerId, peer: _JoinedWorker | None, message: Message
    ) -> Steps | None:
        pieces = wire.decode_some_answers(message)
        if not isinstance(pieces, list):
            return self._finished_some(worker, peer, pieces)
        self._finished(worker, peer, pieces[0], heard=1)
        return None

    def _finished_some(
        self, worker: WorkerId, peer: _JoinedWorker | None, pieces: Iterable[wire.Answers]
    ) -> Steps:
        for answers in pieces:
            yield self._finished(worker, peer, answers, heard=0)
        self._finished(worker, peer, [], heard=1)

    def _finished(
        self, worker: WorkerId, peer: _JoinedWorker | None, some: wire.Answers, *, heard: int
    ) -> int:
        answers: list[Any] = some  # of tasks
        if peer is not None:
            peer.heard += heard
            for task_id, outcome in answers:
                if isinstance(outcome, FarmError) or not outcome.more:
                    peer.out.pop(task_id, None)
        self._dispatcher.finished(worker, answers)
        return len(answers)

    def _said(self, peer: _JoinedWorker, message: Message) -> None:
        """Process a message from a worker that has joined."""
        worker, kind = peer.name, message.kind
        if kind is Kind.RECALLED:
            ids = [TaskId(i) for i in wire.decode_ids(message)]
            for task_id in ids:
                peer.out.pop(task_id, None)
            peer.heard += 1
            self._dispatcher.recalled(worker, ids)
        elif kind is Kind.MISSING:
            ids = peer.missing(wire.decode_ids(message))
            if ids:
                self._dispatcher.went_missing(worker, ids)
        elif kind is Kind.RESIZE:
            peer.resized(message.data)
            self._dispatcher.worker_resized(worker, *peer.offered())
        elif kind is Kind.PROBE and message.data is not None:
            used = decode_usage(message.data)
            for tell in self._dispatcher.on_used:
                tell(worker, used)
        elif kind is Kind.LEAVE:
            data = message.data  # why, and in how many messages it answered or recalled calls
            if not isinstance(data, list) or [type(each) for each in data] != [str, int]:
                raise InvalidRequest(
                    f"malformed LEAVE message: expected a reason and a number, got {data!r}"
                )
            reason, told = data
            self._forget(peer)
            # If one of its messages was lost, it may have run tasks that it seems to hold.
            self._dispatcher.worker_left(worker, reason, drained=told == peer.heard)

    def _joined(self, line: PeerLine, message: Message) -> None:
        life, info = wire.decode_join(message)
        worker = WorkerId(info.name)
        if worker != name_in(line.name):
            raise InvalidRequest(f"worker {worker!r} joins as {name_in(line.name)!r}")
        known = self._workers.get(worker)
        if known is not None and known.line.name != line.name:
            raise InvalidRequest(f"worker {worker!r} is here already, by another connection")
        if worker in self._workers.killed:  # its supervisor reports that before it kills it
            return
        line.send(wire.encode(Kind.WELCOME, life))
        if known is None or known.life != life:  # otherwise our WELCOME was late, or lost
            if known is not None:
                self._forget(known)
            self._workers.add(_JoinedWorker(line, life, info))
            self._dispatcher.worker_joined(info, self)
            if not self._is_own(info):
                text = f"process {info.pid} on {info.host}, which this farm did not start"
                log.warning("worker %s joined: %s", worker, text)
                self._dispatcher.note("from elsewhere", worker, text)

    def _lost(self, supervisor: PeerLine, message: Message) -> None:
        """Process a supervisor's message: it joins, or reports the death of one of its workers."""
        loss = wire.decode_loss(message)
        self._supervisors[supervisor.name] = supervisor
        if loss is None:
            return
        worker = WorkerId(loss.worker)
        self._workers.killed.append(worker)
        peer = self._workers.get(worker)
        if peer is None:
            return
        # Messages sent before it died count: read the answers under way before the loss.
        for frames in peer.line.rest():
            self.received(peer.line, frames)
        self._agenda.finish(peer.line.name)
        if self._workers.get(worker) is not peer:
            return  # it has left
        cause = loss.cause
        is_end = cause is LossCause.STOPPED and self._dispatcher.stages.closed  # of the farm itself
        if peer.is_reclaimed() and not is_end and cause is not LossCause.TIME_LIMIT:
            cause = LossCause.RECLAIMED
        self._forget(peer)
        # Do not wait for end of file: a child of the model may hold the other end open.
        peer.line.close()
        self._dispatcher.worker_left(
            worker,
            loss.reason,
            running=None if loss.running is None else map(TaskId, loss.running),
            row=loss.row,
            cause=cause,
            detail=loss.detail,
        )

    # Lines

    def ended(self, line: PeerLine) -> None:
        """Remove a peer whose line is gone, after all its messages were received."""
        if line.is_client:
            self._clients.ended(line)
        elif self._supervisors.get(line.name) is line:
            del self._supervisors[line.name]
        elif (known := self._worker_of(line)) is not None:
            self._unreachable(known)

    def is_full(self, line: PeerLine, full: bool) -> None:
        """Offer the peer no slots while its send queue is full."""
        if (known := self._worker_of(line)) is not None:
            self._dispatcher.worker_full(known.name, full)

    def _worker_of(self, line: PeerLine) -> _JoinedWorker | None:
        known = self._workers.by_line.get(line.name)
        return known if known is not None and known.line is line else None

    def probe(self, *, all_of_them: bool) -> bool:
        """Probe busy workers whose lines may come back, so that sending to a lost one fails.

        all_of_them: probe every peer, and check which tasks the busy workers hold. Returns whether
        the round is complete; otherwise the next call goes on with it, and has the same argument.
        """
        if not self._to_probe:
            self._to_probe = deque(self._workers.values())
            if all_of_them:
                self._clients.probe(patient=asyncio.get_running_loop().time() < self._patient_until)
                for name, line in list(self._supervisors.items()):
                    if line.may_come_back and not line.send(PROBE):
                        del self._supervisors[name]
        sent = 0
        while self._to_probe and sent < PROBES_AT_ONCE:
            peer = self._to_probe.popleft()
            if not (peer.line.may_come_back and (all_of_them or peer.out)):
                continue
            if self._workers.get(peer.name) is not peer:
                continue
            sent += 1
            check = all_of_them and peer.out
            if not peer.line.send(wire.encode(Kind.CHECK, peer.check()) if check else PROBE):
                self._unreachable(peer)
            elif peer.given_up is not None:
                peer.give_up_at(None)
                self._dispatcher.worker_resized(peer.name, *peer.offered())
        return not self._to_probe

    def was_away(self) -> None:
        """Let peers reconnect after this process was suspended for longer than they wait."""
        log.warning("the front door did not run for a while; its peers have time to come back")
        self._patient_until = asyncio.get_running_loop().time() + BACK_WITHIN_S

    def _unreachable(self, peer: _JoinedWorker) -> None:
        if peer.given_up is None:
            peer.give_up_at(
                asyncio.get_running_loop().call_later(peer.grace_s, self._give_up, peer)
            )
            self._dispatcher.worker_resized(peer.name, 0)

    def _give_up(self, peer: _JoinedWorker) -> None:
        wait_s = self._patient_until - asyncio.get_running_loop().time()
        if wait_s > 0.0:
            peer.give_up_at(asyncio.get_running_loop().call_later(wait_s, self._give_up, peer))
            return
        self._agenda.finish(peer.line.name)
        if self._workers.get(peer.name) is peer:
            self._forget(peer)
            reason = "its connection was lost"
            cause = LossCause.RECLAIMED if peer.is_reclaimed() else LossCause.UNKNOWN
            self._dispatcher.worker_left(peer.name, reason, cause=cause)

    def _forget(self, peer: _JoinedWorker) -> None:
        self._workers.remove(peer)
        peer.give_up_at(None)
