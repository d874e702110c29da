"""One worker made of several MPI ranks: rank 0 passes each model call on, and all ranks run it.

Every rank is a Member whose main thread waits for work in ZeroMQ, which costs no processor time;
ranks that wait in MPI spin. Only the models call MPI. In the process of rank 0 a second thread runs
the Hub: it sends the work, receives every member's reply, and detects stuck members.

    host thread of rank 0      Hub ── evaluate(x) ──► Member of rank 0, 1, 2 ...    (main threads)
                                   ◄── done, failed ──
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zmq
from zmq.utils.monitor import recv_monitor_message

from farm.call import Array, Operation
from farm.declared import Tensors
from farm.errors import FarmError, ModelFailed, TimeLimitExceeded, error_named
from farm.functions import ForwardingModel
from farm.machine.private import short_folder
from farm.machine.resources import allow_many_open_files
from farm.model import Config, Inputs, Model, operations_of
from farm.wire.arrays import ArrayWriter, array_at
from farm.worker.runner import named
from farm.worker.running import context, fields, runs_for

STUCK_AFTER_S = 3.0
"""After a rank has failed, the others have this long to return; longer means stuck in MPI."""

HEARD_WITHIN_S = 10.0
"""A rank that failed ends the group if rank 0 does not acknowledge the failure within this time."""

LOOK_EVERY_S = 1.0
"""How often the hub checks that all members are alive while they run something."""

MEET_WITHIN_S = 60.0
"""Time for all ranks to connect to rank 0."""

HEARTBEAT_S = 5.0

ARE_YOU_THERE = b""
"""A probe from the hub to a member; also the first message of a member."""

HEARD = b"heard"
"""The hub's acknowledgement of a failure: no model hung in MPI holds rank 0's interpreter."""

GOODBYE = b"goodbye"

GOODBYE_S = 5.0
"""Time for a member to finish its current work when the group ends."""

FOLLOW_AFTER_S = 0.3
"""Delay before a rank follows another that ended: the supervisor must see who was first."""

EXIT_RANK_LOST = 76
"""Exit status of a rank that ends itself because another rank of its group is gone."""

Context = zmq.Context["zmq.Socket[bytes]"]


@dataclass(frozen=True, slots=True)
class Meeting:
    """The address at which the members of a group connect; rank 0 distributes it through MPI.

    token: secret part of each member's name at the hub; keys: CurveZMQ keys of the hub (public)
    and of its members (public, secret) if the ranks are on several hosts, else empty.
    """

    address: str
    size: int
    token: str
    keys: tuple[bytes, bytes, bytes] | None = None

    def name(self, rank: int) -> bytes:
        """Return the name of one member at the hub, which is secret outside the group."""
        return f"{self.token}/{rank}".encode()


class Hub:
    """Rank 0's line to all members, including itself; for one thread.

    time_limit_s: time limit of one piece of work; None: no limit. broken: some rank is stuck,
    and the group has to end. on_broken is called before the error is raised.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        on_broken: Callable[[], None] = lambda: None,
        on_following: Callable[[], None] = lambda: None,
    ) -> None:
        """hosts: the host of each rank; on_following: called before ending with a lost rank."""
        allow_many_open_files()  # a connection for each rank
        self.broken = False
        self.on_broken = on_broken
        self._on_following = on_following
        self.time_limit_s: float | None = None
        self._size = len(hosts)
        self._serial = 0
        self._folder = ""
        self._context: Context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._socket.set(zmq.ROUTER_MANDATORY, 1)
        self._socket.set(zmq.LINGER, 1000)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.set(zmq.RCVHWM, 0)
        _set_heartbeat(self._socket)
        self.meeting = self._bind(local=len(set(hosts)) == 1)

    def _bind(self, *, local: bool) -> Meeting:
        token = secrets.token_hex(16)
        if local:
            # Only the folder's owner can access it, so no keys are needed.
            self._folder = tempfile.mkdtemp(prefix="farm-", dir=short_folder())
            address = f"ipc://{self._folder}/ranks"
            self._socket.bind(address)
            return Meeting(address, self._size, token)
        public, secret = zmq.curve_keypair()
        member_public, member_secret = zmq.curve_keypair()
        self._socket.set(zmq.CURVE_SERVER, 1)
        self._socket.set(zmq.CURVE_PUBLICKEY, public)
        self._socket.set(zmq.CURVE_SECRETKEY, secret)
        port = self._socket.bind_to_random_port("tcp://*")
        address = f"tcp://{socket.gethostname()}:{port}"
        return Meeting(address, self._size, token, (public, member_public, member_secret))

    def meet(self) -> None:
        """Wait until every member has connected. Raises ModelFailed naming those that do not."""
        try:
            self._wait_for_members()
        finally:
            if self._folder:  # connections stay; nothing is left on disk when we are killed
                shutil.rmtree(self._folder)

    def _wait_for_members(self) -> None:
        ranks = {self.meeting.name(rank): rank for rank in range(self._size)}
        limit = time.monotonic() + MEET_WITHIN_S
        while ranks:
            if not self._socket.poll(max(0, int(1000 * (limit - time.monotonic())))):
                missing = ", ".join(map(str, sorted(ranks.values())))
                raise ModelFailed(
                    f"ranks {missing} did not reach rank 0 at {self.meeting.address} within "
                    f"{MEET_WITHIN_S:g} s; can its host be reached by that name?"
                )
            ranks.pop(self._socket.recv_multipart()[0], None)

    def execute(self, what: str, model: str = "", arguments: Sequence[Any] = ()) -> None:
        """Have every member do this, and wait until all have.

        Raises the error of the first rank to fail, as a FarmError that names it; TimeLimitExceeded.
        If a member is gone, this process ends, and another worker retries the call.
        """
        if self.broken:
            raise ModelFailed("the ranks of this group are stuck; it is about to end")
        self._serial += 1
        about = context() if fields() else {}  # for the ranks' logs
        frames = encode(self._serial, what, model, arguments, about)
        # Rank 0, in this process, is last: from then on its model may hold the interpreter.
        for rank in reversed(range(self._size)):
            self._send(rank, frames)
        self._collect()

    def _send(self, rank: int, frames: Sequence[Any]) -> None:
        try:
            self._socket.send_multipart([self.meeting.name(rank), *frames], copy=True)
        except zmq.ZMQError:
            self._on_following()
            end_group(f"rank {rank} of the group is gone")

    def _collect(self) -> None:
        waiting = set(range(self._size))
        ranks = {self.meeting.name(rank): rank for rank in waiting}
        failures: dict[int, FarmError] = {}
        began = time.monotonic()
        limit = None if self.time_limit_s is None else began + self.time_limit_s
        stuck_at: float | None = None
        while waiting:
            now = time.monotonic()
            if stuck_at is not None and now >= stuck_at:
                raise self._stuck(failures, waiting)
            if limit is not None and now >= limit:
                self._break()
                raise TimeLimitExceeded(f"time limit of {self.time_limit_s:g} s")
            due = min(t for t in (now + LOOK_EVERY_S, limit, stuck_at) if t is not None)
            if not self._socket.poll(1 + int(1000 * (due - now))):
                for rank in waiting:
                    self._send(rank, [ARE_YOU_THERE])  # fails if that member is gone
                continue
            name, *rest = self._socket.recv_multipart()
            if name not in ranks or not rest[0]:
                continue
            serial, failure = json.loads(rest[0])
            if serial != self._serial:
                continue
            waiting.discard(ranks[name])
            if failure is not None:
                self._send(ranks[name], [HEARD])
                failures[ranks[name]] = error_named(*failure)
                stuck_at = stuck_at or time.monotonic() + STUCK_AFTER_S
        if failures:
            raise self._failed(failures)

    def _failed(self, failures: Mapping[int, FarmError], also: str = "") -> FarmError:
        """Return the failure of the first rank that reported one; its detail has the others'."""
        rank, first = next(iter(failures.items()))
        detail = "\n".join(
            f"rank {r} of {self._size}:\n{error.detail or error.message}"
            for r, error in failures.items()
        )
        message = f"rank {rank} of {self._size}: {first.message}{also}"
        return error_named(type(first).__name__, message, detail)

    def _stuck(self, failures: Mapping[int, FarmError], waiting: set[int]) -> FarmError:
        self._break()
        ranks = ", ".join(map(str, sorted(waiting)))
        return self._failed(failures, f" (ranks that did not return and were ended: {ranks})")

    def _break(self) -> None:
        self.broken = True
        self.on_broken()

    def end(self) -> None:
        """Let every member return. The hub closes last: members take its end for rank 0's death."""
        waiting = {self.meeting.name(rank) for rank in range(self._size)}
        for rank in reversed(range(self._size)):
            self._send(rank, encode(0, "end", "", ()))
        while waiting and self._socket.poll(int(1000 * GOODBYE_S)):
            name, words = self._socket.recv_multipart()
            if words == GOODBYE:
                waiting.discard(name)
        self._socket.close()
        self._context.term()


class Member:
    """One rank's end: runs the hub's requests in the thread that calls `serve`."""

    def __init__(
        self, meeting: Meeting, rank: int, on_following: Callable[[], None] = lambda: None
    ) -> None:
        """on_following: called before this process ends because rank 0 is gone."""
        self.value: Any = None
        """Result of the last piece of work; rank 0's is the answer."""
        self._on_following = on_following
        self._context: Context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._socket.set(zmq.ROUTING_ID, meeting.name(rank))
        self._socket.set(zmq.LINGER, 1000)
        self._socket.set(zmq.RCVHWM, 0)
        _set_heartbeat(self._socket)
        if meeting.keys is not None:
            hub, public, secret = meeting.keys
            self._socket.set(zmq.CURVE_SERVERKEY, hub)
            self._socket.set(zmq.CURVE_PUBLICKEY, public)
            self._socket.set(zmq.CURVE_SECRETKEY, secret)
        events = zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED
        monitor = self._socket.get_monitor_socket(events)
        self._watch = threading.Thread(target=self._watch_hub, args=(monitor,), daemon=True)
        self._watch.start()
        self._socket.connect(meeting.address)
        self._socket.send(ARE_YOU_THERE)

    def _watch_hub(self, monitor: zmq.Socket[bytes]) -> None:
        # The main thread may be in MPI, waiting for a rank 0 that no longer exists.
        with monitor:
            event = recv_monitor_message(monitor)["event"]
        if event == zmq.EVENT_DISCONNECTED:
            self._on_following()
            end_group("rank 0 of the group is gone")

    def serve(self, execute: Callable[[str, str, Sequence[Any]], Any]) -> None:
        """Run the hub's requests until the hub ends the group.

        execute: does one piece of work, given operation, name of the model and arguments.
        """
        while True:
            frames = self._socket.recv_multipart()
            if frames[0] == ARE_YOU_THERE:
                continue
            serial, what, model, arguments, about = decode(frames)
            if what == "end":
                break
            failure = None
            if about:
                runs_for(about)
            try:
                self.value = execute(what, model, arguments)
            except BaseException as error:  # a model may raise SystemExit: only its call fails
                own = error.__traceback__.tb_next if error.__traceback__ else None
                known = named(error.with_traceback(own and own.tb_next))
                failure = type(known).__name__, known.message, known.detail
            if about:
                runs_for({})
            del arguments, frames
            self._socket.send(json.dumps([serial, failure]).encode())
            if failure is not None and not self._is_heard():
                # Rank 0 waits for this rank in MPI and holds the interpreter.
                end_group(f"rank 0 is stuck; here the model failed: {failure[2] or failure[1]}")
        # While the hub is alive: disabling a monitor that has ended would block for ever.
        self._socket.disable_monitor()
        self._watch.join()
        self._socket.send(GOODBYE)
        self._socket.close()
        self._context.term()

    def _is_heard(self) -> bool:
        """Whether the hub acknowledges in time; an earlier acknowledgement does not count."""
        limit = time.monotonic() + HEARD_WITHIN_S
        while self._socket.poll(max(0, int(1000 * (limit - time.monotonic())))):
            if self._socket.recv_multipart() == [HEARD]:
                return True
        return False


class GroupModel(ForwardingModel):
    """In the process of rank 0: a model that all ranks of the group run together.

    Rank 0 alone describes it and says what a run costs, which needs no other ranks.
    """

    def __init__(self, name: str, model: Model, hub: Hub, member: Member) -> None:
        self.like(model)
        self.operations = operations_of(model) - {Operation.STREAM}
        self._served_as = name
        self._model = model
        self._hub = hub
        self._member = member

    def describe(self, config: Config) -> tuple[Tensors, Tensors]:
        """Return the description by rank 0's model."""
        return self._model.describe(config)

    def cost(self, inputs: Inputs, config: Config) -> Any:
        """Return the expected run time of an evaluation, by rank 0's model."""
        return self._model.cost(inputs, config)  # type: ignore[attr-defined]  # optional

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return rank 0's value, once all ranks have returned."""
        self._hub.execute(method, self._served_as, arguments)
        return self._member.value


def end_group(why: str) -> None:
    """End this process at once; its launcher or its supervisor ends the others."""
    print(f"farm: {why}", file=sys.stderr, flush=True)
    time.sleep(FOLLOW_AFTER_S)
    os._exit(EXIT_RANK_LOST)


def _set_heartbeat(sock: zmq.Socket[bytes]) -> None:
    milliseconds = int(1000 * HEARTBEAT_S)
    sock.set(zmq.HEARTBEAT_IVL, milliseconds // 3)
    sock.set(zmq.HEARTBEAT_TIMEOUT, milliseconds)
    sock.set(zmq.HEARTBEAT_TTL, milliseconds)


# --- messages ---------------------------------------------------------------------------------
# The arguments of a model's method: integers, arrays, Inputs and a config.


def encode(
    serial: int,
    what: str,
    model: str,
    arguments: Sequence[Any],
    about: Mapping[str, str] | None = None,
) -> list[Any]:
    """Return the frames of a piece of work: a JSON header, the small arrays, each large array.

    about: the calls that it belongs to, for logs, if they have ids.
    """
    arrays = ArrayWriter()

    def told(argument: Any) -> Any:
        if isinstance(argument, np.ndarray):
            return {"array": arrays.put(argument)}
        if isinstance(argument, Inputs):
            return {"inputs": [[name, arrays.put(array)] for name, array in argument.items()]}
        return {"plain": argument}

    what_with = [told(argument) for argument in arguments]
    header = json.dumps([serial, what, model, what_with, about or {}])
    return [header.encode(), b"".join(arrays.inline), *arrays.large]


def decode(frames: Sequence[bytes]) -> tuple[int, str, str, list[Any], dict[str, str]]:
    """Return the values that `encode` wrote; arrays are writable copies."""
    serial, what, model, told, about = json.loads(frames[0])

    def array(where: Any) -> Array:
        return np.array(array_at(frames[1:], 0, where))

    def argument(told: dict[str, Any]) -> Any:
        if "array" in told:
            return array(told["array"])
        if "inputs" in told:
            return Inputs((name, array(where)) for name, where in told["inputs"])
        return told["plain"]

    return serial, what, model, [argument(each) for each in told], about
