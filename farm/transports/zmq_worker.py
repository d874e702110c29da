"""The worker's end of the ZeroMQ transport: a DEALER that dials in, and the loop around a Runner.

The main thread runs the models and does nearly all the talking. While a model runs, a second
thread, the listener, looks after the socket every now and then: it hands back what has not begun,
describes models, and sends answers that wait. The socket belongs to whoever holds the lock.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import zmq

from farm.call import Call, Result, WorkerInfo
from farm.errors import InvalidRequest, Unavailable
from farm.protocols import wire
from farm.protocols.wire import Buffer, Kind
from farm.scheduler.state import needs_no_slot
from farm.transports.connection import Connection
from farm.transports.zmq import set_heartbeat
from farm.worker.run import Runner

log = logging.getLogger(__name__)

HOLD_ANSWERS_S = 0.0005
"""While more calls wait here, answers wait at most this long to share a message."""

LISTEN_EVERY_S = (0.02, 0.2)
"""How often the listener looks at the socket: at the beginning of a run, and when it is long."""

ASK_AFTER_SILENCE_S = 3.0
"""The dispatcher probes each second; after this much silence the worker asks if it is known."""

EXIT_ORPHANED = 75
"""Exit status of a worker that ends itself because its dispatcher is gone (EX_TEMPFAIL)."""

OnStart = Callable[[Sequence[int]], None]


def dial(
    context: zmq.Context[zmq.Socket[bytes]],
    connection: Connection,
    routing_id: str,
    *,
    heartbeat_s: float = 5.0,
) -> zmq.Socket[bytes]:
    """A DEALER connected to the dispatcher, with the keys of the connection file."""
    socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    socket.set(zmq.ROUTING_ID, routing_id.encode())
    socket.set(zmq.LINGER, 2000)
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    set_heartbeat(socket, heartbeat_s)
    if connection.server_key:
        socket.curve_serverkey = connection.server_key.encode()
        socket.curve_publickey = connection.client_public.encode()
        socket.curve_secretkey = connection.client_secret.encode()
    socket.connect(connection.endpoint)
    return socket


def receive(socket: zmq.Socket[bytes]) -> list[Buffer] | None:
    """The frames of the next message, large ones not copied; None when there is none now."""
    try:
        frames: list[Buffer] = [socket.recv(zmq.NOBLOCK)]
    except zmq.Again:
        return None
    while socket.get(zmq.RCVMORE):
        frames.append(socket.recv(zmq.NOBLOCK, copy=False).buffer)
    return frames


class WorkerHost:
    """Dials in, joins, and answers calls with a Runner until drained.

    on_start: gets the ids of the tasks about to run, and an empty list when nothing runs.
    lost_after_s: silence of the dispatcher after which the worker ends itself.
    """

    def __init__(
        self,
        runner: Runner,
        connection: Connection,
        info: WorkerInfo,
        *,
        on_start: OnStart | None = None,
        lost_after_s: float = 60.0,
        heartbeat_s: float = 5.0,
    ) -> None:
        self._runner = runner
        self._info = info
        self._endpoint = connection.endpoint
        self._on_start = on_start
        self._lost_after_s = lost_after_s
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = dial(self._context, connection, info.name, heartbeat_s=heartbeat_s)
        self._wake_read, self._wake_write = os.pipe()
        self._drain_asked = False
        # Under the lock, like the socket.
        self._lock = threading.Lock()
        self._waiting: dict[int, Call] = {}
        self._answers: list[tuple[int, wire.Outcome]] = []
        self._answers_since = 0.0
        self._busy = False
        self._draining = False
        self._join_due = True
        self._joined = False
        self._heard_at = time.monotonic()
        self._asked_at = 0.0
        # The listener's.
        self._look = threading.Event()
        self._closing = threading.Event()

    def drain(self) -> None:
        """End soon: finish what runs, hand back the rest, say goodbye. Safe in signal handlers."""
        self._drain_asked = True
        os.write(self._wake_write, b"d")

    def run(self) -> None:
        """Serve until drained. Raises Unavailable when the dispatcher cannot be reached."""
        listener = threading.Thread(target=self._listen, name="listener", daemon=True)
        listener.start()
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake_read, zmq.POLLIN)
        ended_at = time.perf_counter()
        try:
            while True:
                with self._lock:
                    self._attend()
                    if self._draining:
                        self._put(Kind.LEAVE, "drained")
                        return
                    batch = list(self._waiting.items())
                    self._busy = bool(batch)
                if not batch:
                    self._check_reachable()
                    for source, _ in poller.poll(1000):
                        if source == self._wake_read:
                            os.read(self._wake_read, 1)
                    continue
                if not self._look.is_set():
                    self._look.set()
                self._run(batch, time.perf_counter() - ended_at)
                ended_at = time.perf_counter()
        finally:
            self._closing.set()
            self._look.set()
            listener.join(1.0)
            self._socket.close()
            self._context.term()
            os.close(self._wake_read)
            os.close(self._wake_write)

    # Running

    def _run(self, batch: list[tuple[int, Call]], idle_s: float) -> None:
        ids = [task_id for task_id, _ in batch]

        def claim(positions: Sequence[int]) -> list[int]:
            with self._lock:
                if self._draining or self._drain_asked:
                    return []
                return [i for i in positions if self._waiting.pop(ids[i], None) is not None]

        def started(positions: Sequence[int]) -> None:
            if self._on_start is not None:
                self._on_start([ids[i] for i in positions])

        for outcomes in self._runner.run([call for _, call in batch], started, claim):
            now = time.perf_counter()
            with self._lock:
                if not self._answers:
                    self._answers_since = now
                for i, outcome in outcomes:
                    if idle_s >= 0.0 and isinstance(outcome, Result):
                        outcome = replace(outcome, idle_s=idle_s)
                    self._answers.append((ids[i], outcome))
                if now - self._answers_since >= HOLD_ANSWERS_S:
                    self._send_answers()
            idle_s = -1.0
        if self._on_start is not None:
            self._on_start(())
        with self._lock:
            self._send_answers()
            self._busy = False

    # The socket; all of these hold the lock

    def _attend(self) -> None:
        """Read all messages and act on them; join and drain if that is due."""
        while (frames := receive(self._socket)) is not None:
            self._heard_at = time.monotonic()
            try:
                self._received(wire.decode(frames))
            except InvalidRequest as error:
                log.error("message from the dispatcher: %s", error)
        if self._join_due and not self._busy:
            self._join_due = False
            self._joined = False
            self._put(Kind.JOIN, self._info.to_json())
        if self._drain_asked and not self._draining:
            self._draining = True
            self._put(Kind.RESIZE, 0)
        if self._draining and self._waiting:
            self._hand_back(list(self._waiting))
        now = time.monotonic()
        silent_s = now - self._heard_at
        if silent_s > ASK_AFTER_SILENCE_S and now - self._asked_at > ASK_AFTER_SILENCE_S:
            self._asked_at = now
            self._put(Kind.PROBE)

    def _received(self, message: wire.Message) -> None:
        if message.kind is Kind.CALLS:
            for task_id, call in wire.decode_calls(message)[1]:
                if needs_no_slot(call.operation):
                    self._answers.append((task_id, self._runner.execute([call])[0]))
                else:
                    self._waiting[task_id] = call
            self._send_answers()
        elif message.kind is Kind.TAKE_BACK:
            self._send_answers()
            self._hand_back(message.data)
        elif message.kind is Kind.JOIN_AGAIN:
            if self._joined:  # else the JOIN is under way
                self._waiting.clear()  # the dispatcher has given these to others
                self._join_due = True
        elif message.kind is Kind.WELCOME:
            self._joined = True
        elif message.kind is Kind.STOP:
            self._drain_asked = True

    def _hand_back(self, task_ids: Sequence[int]) -> None:
        back = [i for i in task_ids if self._waiting.pop(i, None) is not None]
        self._put(Kind.TAKEN_BACK, back)

    def _send_answers(self) -> None:
        if self._answers:
            self._send(wire.encode_answers(self._answers))
            self._answers = []

    def _put(self, kind: Kind, data: object = None) -> None:
        self._send(wire.encode(kind, data))

    def _send(self, frames: list[Buffer]) -> None:
        self._socket.send_multipart(frames, copy=len(frames) == 1)

    # While a model runs

    def _listen(self) -> None:
        pause_s = LISTEN_EVERY_S[0]
        while not self._closing.is_set():
            self._look.wait()
            self._closing.wait(pause_s)
            with self._lock:
                if self._closing.is_set():
                    return
                if not self._busy:
                    self._look.clear()
                    pause_s = LISTEN_EVERY_S[0]
                    continue
                self._attend()
                self._send_answers()
            pause_s = min(1.2 * pause_s, LISTEN_EVERY_S[1])
            try:
                self._check_reachable()
            except Unavailable as error:
                log.error("%s", error)
                # The model may run for hours yet and nobody waits for what it finds.
                os._exit(EXIT_ORPHANED)

    def _check_reachable(self) -> None:
        silent_s = time.monotonic() - self._heard_at
        if silent_s > self._lost_after_s:
            raise Unavailable(
                f"no word from the dispatcher at {self._endpoint} for {silent_s:.0f} s; "
                "is it running, and is the connection file current?"
            )


class Reporter:
    """A supervisor's own line to the dispatcher: says why a worker died, hears when to stop."""

    def __init__(self, connection: Connection, name: str) -> None:
        """`name` is unique for this supervisor, like `node3/4411`."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = dial(self._context, connection, f"supervisor/{name}")
        self._stop_asked = False
        self._send(None)

    def lost(
        self,
        worker: str,
        reason: str,
        *,
        running: Sequence[int] | None,
        time_limit: bool = False,
    ) -> None:
        """Worker `worker` died, or is about to be killed, while it ran the tasks `running`."""
        self._send(
            {
                "worker": worker,
                "reason": reason,
                "running": None if running is None else list(running),
                "time_limit": time_limit,
            }
        )

    def stop_asked(self) -> bool:
        """Whether the dispatcher has asked for everything to end."""
        while (frames := receive(self._socket)) is not None:
            self._stop_asked |= wire.decode(frames).kind is Kind.STOP
        return self._stop_asked

    def _send(self, data: object) -> None:
        self._socket.send_multipart(wire.encode(Kind.LOST, data))

    def close(self) -> None:
        """Close; what was said in the last two seconds still leaves."""
        self._socket.close()
        self._context.term()
