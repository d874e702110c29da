"""A line over HTTP to a farm's URL or to any UM-Bridge server.

Connections to a farm are kept alive, and one request with a streamed answer carries many points;
this takes a tenth of the client's time per call (measured). Other servers get a new connection for
each call: the official C++ server answers 40 ms late on a reused connection and closes it after
five calls, and an idle connection blocks its other clients.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

from farm.call import Call, Hints, ModelInfo, Operation, Result, TensorInfo, halves, joined
from farm.client.daemon_pool import DaemonPool
from farm.errors import (
    Cancelled,
    FarmError,
    InvalidOutput,
    InvalidRequest,
    ModelFailed,
    Unavailable,
    UnsupportedFeature,
)
from farm.http.client import JSON, Cancellation, HttpClient, Response
from farm.protocols.points.client import alike, decode_line, encode_points
from farm.protocols.umbridge.client import (
    Headers,
    decode_error,
    decode_info,
    decode_model_info,
    decode_response,
    decode_sizes,
    encode_question,
    encode_request,
)
from farm.protocols.umbridge.codec import Endpoint, Question
from farm.transports.line import Outcome, Receiver

log = logging.getLogger(__name__)

CONNECTIONS_TO_FARM = 64
CONNECTIONS_TO_OTHERS = 8
"""Most connections to other servers. The official servers run one call at a time, or one per core;
the C++ server queues five more, and others wait for TCP retries, which take seconds."""

POINTS_A_REQUEST = 256
BYTES_A_REQUEST = 4 * 1024**2

CONNECT_S = 10.0
"""Timeout of one attempt to connect, in seconds; short, as a user may be waiting."""

BOTH = Operation.VALUE_AND_GRADIENT

Task = tuple[int, Call]


class _Job:
    """The calls of one request, and the cancellation of that request."""

    def __init__(
        self, tasks: Sequence[Task], headers: Mapping[str, str], waiting: Mapping[int, _WaitingTask]
    ) -> None:
        self.headers = headers
        self.cancellation = Cancellation()
        self._tasks = tasks
        self._waiting = waiting

    def tasks(self) -> list[Task]:
        """Return the calls that are neither cancelled nor answered."""
        return [task for task in self._tasks if task[0] in self._waiting]

    def wanted(self) -> bool:
        """Whether any call is neither cancelled nor answered."""
        return bool(self.tasks())


class _WaitingTask(NamedTuple):
    """A call without an outcome, and the receiver of its outcome."""

    receiver: Receiver
    key: Any
    job: _Job


class HttpLine:
    """A line to the server at `url`; threads may share it, processes may not.

    connections: most at a time. Raises Unavailable if there is no answer, InvalidRequest if it is
    another kind of server.
    """

    def __init__(
        self, url: str, *, token: str | None = None, connections: int | None = None
    ) -> None:
        self._client = HttpClient(url, token=token, keep=False, connect_s=CONNECT_S)
        self._pid = os.getpid()
        # Each operation on these is atomic; the thread that pops an entry of `_waiting` settles it.
        self._ids = itertools.count(1)
        self._waiting: dict[int, _WaitingTask] = {}
        self._closed = threading.Event()
        self.is_farm = False
        status, headers, body = self._ask("/farm/models")
        if status in (401, 403):
            raise decode_error(status, headers, body)
        self.is_farm = self._client.keep = status == 200
        if not self.is_farm:
            self._check_language()
        most = connections or (CONNECTIONS_TO_FARM if self.is_farm else CONNECTIONS_TO_OTHERS)
        self._pool = DaemonPool(most, "farm client")
        self._shut_down = weakref.finalize(self, self._pool.shutdown)

    # Queries

    def _check_language(self) -> None:
        try:
            self.names()
        except (InvalidOutput, InvalidRequest, ModelFailed) as error:
            raise InvalidRequest(
                f"{self._client.url} is neither a farm nor a UM-Bridge server: {error.message}"
            ) from None

    def names(self) -> list[str]:
        """Return the names of the served models. Raises FarmError."""
        return list(decode_info(*self._ask(*encode_question(Question(Endpoint.INFO)))))

    def describe(self, model: str, config: str) -> ModelInfo:
        """Return a model's description for a config. Raises FarmError."""
        if self.is_farm:
            path = f"/farm/models/{quote(model)}?config={quote(config)}"
            try:
                return ModelInfo.from_json(self._json(path))
            except (KeyError, TypeError, ValueError) as error:
                raise InvalidRequest(
                    f"the farm's description has an unknown form: {error!r}"
                ) from None
        ask = Question(Endpoint.MODEL_INFO, model)
        return ModelInfo(
            model,
            inputs=self._sizes(Question(Endpoint.INPUT_SIZES, model, config), "in"),
            outputs=self._sizes(Question(Endpoint.OUTPUT_SIZES, model, config), "out"),
            operations=decode_model_info(*self._ask(*encode_question(ask))),
            description=f"{model} at {self._client.url}",
        )

    def _sizes(self, question: Question, prefix: str) -> tuple[TensorInfo, ...]:
        sizes = decode_sizes(question, *self._ask(*encode_question(question)))
        return tuple(TensorInfo(f"{prefix}{i}", (n,)) for i, n in enumerate(sizes))

    def status(self) -> dict[str, Any]:
        """Return workers, queues, rates and percentiles. Raises UnsupportedFeature, Unavailable."""
        if not self.is_farm:
            raise UnsupportedFeature(f"{self._client.url} is not a farm; only farms have a status")
        state: dict[str, Any] = self._json("/farm/status")
        return state

    def _json(self, path: str) -> Any:
        status, headers, body = self._ask(path)
        if status != 200:
            raise decode_error(status, headers, body)
        return orjson.loads(body)

    def _ask(self, path: str, body: bytes = b"") -> tuple[int, Headers, bytes]:
        return self._client.ask(path, body)

    # Calls

    def send(
        self, calls: Sequence[tuple[Any, Call]], hints: Hints, receiver: Receiver
    ) -> Sequence[int]:
        """Send calls, each with a key for its outcome at `receiver`, and return their ids.

        Raises Unavailable if the line is closed.
        """
        if os.getpid() != self._pid:
            raise Unavailable("a client does not survive a fork: connect in each process")
        if self._closed.is_set():
            raise Unavailable("the client is closed")
        headers = self._headers(hints)
        keyed = list(zip(calls, self._ids, strict=False))
        keys = {call_id: key for (key, _), call_id in keyed}
        for tasks in self._requests([(call_id, call) for (_, call), call_id in keyed]):
            job = _Job(tasks, headers, self._waiting)
            for call_id, _ in tasks:
                self._waiting[call_id] = _WaitingTask(receiver, keys[call_id], job)
            self._pool.submit(partial(self._run, job))
        if self._closed.is_set() and self.cancel(keys):  # another thread has just closed it
            raise Unavailable("the client is closed")
        return list(keys)

    def _headers(self, hints: Hints) -> dict[str, str]:
        headers = dict(JSON)
        if self.is_farm:
            if hints.client:
                headers["Farm-Client"] = hints.client
            if hints.chain is not None:
                headers["Farm-Chain"] = hints.chain
            if hints.priority:
                headers["Farm-Priority"] = str(hints.priority)
            if hints.deadline_s is not None:
                headers["Farm-Deadline"] = str(hints.deadline_s)
        return headers

    def _requests(self, tasks: Sequence[Task]) -> Iterator[list[Task]]:
        """Group calls into requests: for a farm, many evaluations of one model and config each."""
        if not self.is_farm:
            yield from ([task] for task in tasks)
            return
        request: list[Task] = []
        size = 0
        for task in tasks:
            call = task[1]
            full = len(request) >= POINTS_A_REQUEST or size >= BYTES_A_REQUEST
            if request and (full or not alike(call, request[0][1])):
                yield request
                request, size = [], 0
            request.append(task)
            size += sum([a.nbytes for a in call.inputs])
            if (wrt := call.derivative) is not None:
                size += sum([v.nbytes for v in (wrt.sens, wrt.vec) if v is not None])
        if request:
            yield request

    def cancel(self, ids: Iterable[int]) -> bool:
        """Cancel calls, which then report no outcome. False if all of them had one already."""
        taken = [w for i in ids if (w := self._waiting.pop(i, None)) is not None]
        for job in {waiting.job for waiting in taken}:
            if not job.wanted():
                job.cancellation.cancel()
        return bool(taken)

    def close(self) -> None:
        """Close all connections; open calls fail with Cancelled."""
        self._closed.set()
        error = Cancelled("the client was closed before the answer came")
        for call_id in list(self._waiting):
            waiting = self._waiting.pop(call_id, None)
            if waiting is not None:
                waiting.receiver.put(waiting.key, error)
                waiting.receiver.flush()
        self._shut_down()
        self._client.close()

    # These methods run on the threads of the pool.

    def _run(self, job: _Job) -> None:
        tasks = job.tasks()
        try:
            if len(tasks) > 1 or (tasks and self.is_farm and tasks[0][1].operation is BOTH):
                self._stream(job, tasks)
            elif tasks:
                self._one(job, *tasks[0])
        except FarmError as error:
            self._settle([(call_id, error) for call_id, _ in tasks])
        except Exception as error:
            log.exception("asking %s", self._client.url)
            failure = Unavailable(f"the client failed: {error!r}")
            self._settle([(call_id, failure) for call_id, _ in tasks])

    def _one(self, job: _Job, call_id: int, call: Call) -> None:
        if call.operation is BOTH:
            result = joined(*[self._asked(job, half) for half in halves(call)])
        else:
            result = self._asked(job, call)
        self._settle([(call_id, result)])

    def _asked(self, job: _Job, call: Call) -> Result:
        path, body = encode_request(call)
        with self._answer(job, path, body) as answer:
            whole = answer.read()
        return decode_response(call, answer.status, answer.headers, whole)

    def _stream(self, job: _Job, tasks: Sequence[Task]) -> None:
        path = f"/farm/models/{quote(tasks[0][1].model)}/evaluate"
        body = encode_points([call for _, call in tasks])
        with self._answer(job, path, body) as answer:
            if answer.status != 200:
                raise decode_error(answer.status, answer.headers, answer.read())
            rest = b""
            for piece in answer.portions():
                *lines, rest = (rest + piece).split(b"\n")
                self._settle([_outcome(line, tasks) for line in lines])
        if job.wanted():
            raise Unavailable(f"{self._client.url} ended its answer before all points were done")

    def _answer(self, job: _Job, path: str, body: bytes) -> AbstractContextManager[Response]:
        return self._client.answer(path, body, job.headers, cancellation=job.cancellation)

    def _settle(self, outcomes: Iterable[tuple[int, Outcome]]) -> None:
        receivers = set()
        for call_id, outcome in outcomes:
            waiting = self._waiting.pop(call_id, None)
            if waiting is not None:
                waiting.receiver.put(waiting.key, outcome)
                receivers.add(waiting.receiver)
        for receiver in receivers:
            receiver.flush()


def _outcome(line: bytes, tasks: Sequence[Task]) -> tuple[int, Outcome]:
    index, outcome = decode_line(line)
    if not 0 <= index < len(tasks):
        raise InvalidRequest(f"the farm answers point {index} of {len(tasks)}")
    return tasks[index][0], outcome
