"""A line over HTTP: to a farm by its URL, or to anybody's UM-Bridge server.

Each thread of a crew has one connection. A farm keeps it open, and gets many points in one request
whose answer streams, at a tenth of the client's time a call (measured). Any other server gets a new
connection for each call: the official C++ one answers 40 ms late on one that is used again and
closes it after five calls, and one that idles holds up everybody else there.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

from farm.call import Call, Hints, ModelInfo, Operation, TensorInfo
from farm.errors import (
    Cancelled,
    FarmError,
    InvalidOutput,
    InvalidRequest,
    ModelFailed,
    Unavailable,
    UnsupportedFeature,
)
from farm.protocols.points_client import decode_line, encode_points
from farm.protocols.umbridge import Endpoint, Question
from farm.protocols.umbridge_client import (
    Headers,
    decode_error,
    decode_info,
    decode_model_info,
    decode_response,
    decode_sizes,
    encode_question,
    encode_request,
)
from farm.transports.crew import Crew
from farm.transports.http_exchange import Address, Exchange
from farm.transports.line import Outcome, Receiver

log = logging.getLogger(__name__)

CONNECTIONS_TO_FARM = 64
CONNECTIONS_TO_OTHERS = 8
"""The official servers run one call at a time, or as many as the processor has cores; the C++ one
lets five more wait and leaves the rest to the network's retries, which take seconds."""

POINTS_A_REQUEST = 256
BYTES_A_REQUEST = 4 * 1024**2

Task = tuple[int, Call]


class _Job:
    """Calls that one request asks for, and the exchange that it goes through."""

    def __init__(
        self, tasks: Sequence[Task], headers: Mapping[str, str], waiting: Mapping[int, _Waiting]
    ) -> None:
        self.headers = headers
        self.exchange: Exchange | None = None
        self._tasks = tasks
        self._waiting = waiting

    def tasks(self) -> list[Task]:
        """The calls that have not been taken back or answered."""
        return [task for task in self._tasks if task[0] in self._waiting]

    def wanted(self) -> bool:
        """Whether there are any."""
        return bool(self.tasks())


class _Waiting(NamedTuple):
    """A call without an outcome, and where that goes."""

    receiver: Receiver
    key: Any
    job: _Job


class HttpLine:
    """A line to the server at `url`; threads may share it, processes may not.

    connections: how many at a time. Raises Unavailable when nobody answers there, InvalidRequest
    when it is another kind of server.
    """

    def __init__(
        self, url: str, *, token: str | None = None, connections: int | None = None
    ) -> None:
        self._address = Address(url, token)
        self._local = threading.local()
        self._exchanges: weakref.WeakSet[Exchange] = weakref.WeakSet()
        self._pid = os.getpid()
        # Each step on these is atomic; whoever takes an entry out of `_waiting` settles the call.
        self._ids = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._closed = threading.Event()
        self.is_farm = False
        status, headers, body = self._ask("/farm/models")
        if status in (401, 403):
            raise decode_error(status, headers, body)
        self.is_farm = status == 200
        if not self.is_farm:
            self._check_language()
        most = connections or (CONNECTIONS_TO_FARM if self.is_farm else CONNECTIONS_TO_OTHERS)
        self._crew = Crew(most, "farm client")
        self._dismiss = weakref.finalize(self, self._crew.dismiss)

    # Questions

    def _check_language(self) -> None:
        try:
            self.names()
        except (InvalidOutput, InvalidRequest, ModelFailed) as error:
            raise InvalidRequest(
                f"{self._address.url} is neither a farm nor a UM-Bridge server: {error.message}"
            ) from None

    def names(self) -> list[str]:
        """The models that are served. Raises FarmError."""
        return list(decode_info(*self._ask(*encode_question(Question(Endpoint.INFO)))))

    def describe(self, model: str, config: str) -> ModelInfo:
        """One model, for a config. Raises FarmError."""
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
            description=f"{model} at {self._address.url}",
        )

    def _sizes(self, question: Question, prefix: str) -> tuple[TensorInfo, ...]:
        sizes = decode_sizes(question, *self._ask(*encode_question(question)))
        return tuple(TensorInfo(f"{prefix}{i}", (n,)) for i, n in enumerate(sizes))

    def status(self) -> dict[str, Any]:
        """Workers, queues, rates and percentiles. Raises UnsupportedFeature, Unavailable."""
        if not self.is_farm:
            raise UnsupportedFeature(
                f"{self._address.url} is no farm; only farms tell their status"
            )
        state: dict[str, Any] = self._json("/farm/status")
        return state

    def _json(self, path: str) -> Any:
        status, headers, body = self._ask(path)
        if status != 200:
            raise decode_error(status, headers, body)
        return orjson.loads(body)

    def _ask(self, path: str, body: bytes = b"") -> tuple[int, Headers, bytes]:
        with self._exchange().answer(path, body) as response:
            return response.status, response.headers, response.read()

    def _exchange(self) -> Exchange:
        """This thread's."""
        exchange: Exchange | None = getattr(self._local, "exchange", None)
        if exchange is None:
            exchange = self._local.exchange = Exchange(self._address, keep=self.is_farm)
            self._exchanges.add(exchange)
        return exchange

    # Calls

    def send(
        self, calls: Sequence[tuple[Any, Call]], hints: Hints, receiver: Receiver
    ) -> Sequence[int]:
        """Send calls, each with a key, and have their outcomes put to `receiver`; gives their ids.

        Raises Unavailable when the line is closed.
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
                self._waiting[call_id] = _Waiting(receiver, keys[call_id], job)
            self._crew.do(partial(self._run, job))
        if self._closed.is_set() and self.take_back(keys):  # by another thread, just now
            raise Unavailable("the client is closed")
        return list(keys)

    def _headers(self, hints: Hints) -> dict[str, str]:
        headers = {}
        if self.is_farm:
            if hints.client:
                headers["Farm-Client"] = hints.client
            if hints.priority:
                headers["Farm-Priority"] = str(hints.priority)
            if hints.deadline_s is not None:
                headers["Farm-Deadline"] = str(hints.deadline_s)
        return headers

    def _requests(self, tasks: Sequence[Task]) -> Iterator[list[Task]]:
        """What goes into one request each: for a farm many evaluations of one model and config."""
        if not self.is_farm:
            yield from ([task] for task in tasks)
            return
        request: list[Task] = []
        size = 0
        for task in tasks:
            call = task[1]
            full = len(request) >= POINTS_A_REQUEST or size >= BYTES_A_REQUEST
            if request and (full or not _alike(call, request[0][1])):
                yield request
                request, size = [], 0
            request.append(task)
            size += sum([a.nbytes for a in call.inputs])
        if request:
            yield request

    def take_back(self, ids: Iterable[int]) -> bool:
        """Cancel calls: no outcome is put for them. False when each has, or had, its outcome."""
        taken = [w for i in ids if (w := self._waiting.pop(i, None)) is not None]
        for job in {waiting.job for waiting in taken}:
            if job.exchange is not None and not job.wanted():
                job.exchange.abort(job)
        return bool(taken)

    def close(self) -> None:
        """Let go of every connection; calls without an outcome fail with Cancelled."""
        self._closed.set()
        error = Cancelled("the client was closed before the answer came")
        for call_id in list(self._waiting):
            waiting = self._waiting.pop(call_id, None)
            if waiting is not None:
                waiting.receiver.put(waiting.key, error)
                waiting.receiver.flush()
                if waiting.job.exchange is not None and not waiting.job.wanted():
                    waiting.job.exchange.abort(waiting.job)
        self._dismiss()
        for exchange in list(self._exchanges):
            exchange.close()

    # On the crew's threads

    def _run(self, job: _Job) -> None:
        job.exchange = self._exchange()
        tasks = job.tasks()
        try:
            if len(tasks) > 1:
                self._stream(job, tasks)
            elif tasks:
                self._one(job, *tasks[0])
        except FarmError as error:
            self._settle([(call_id, error) for call_id, _ in tasks])
        except Exception as error:
            log.exception("asking %s", self._address.url)
            failure = Unavailable(f"the client failed: {error!r}")
            self._settle([(call_id, failure) for call_id, _ in tasks])
        finally:
            job.exchange = None

    def _one(self, job: _Job, call_id: int, call: Call) -> None:
        path, body = encode_request(call)
        assert job.exchange is not None, "set while the job runs"
        with job.exchange.answer(path, body, job.headers, purpose=job) as response:
            answer = response.status, response.headers, response.read()
        self._settle([(call_id, decode_response(call, *answer))])

    def _stream(self, job: _Job, tasks: Sequence[Task]) -> None:
        path = f"/farm/models/{quote(tasks[0][1].model)}/evaluate"
        body = encode_points([call for _, call in tasks])
        assert job.exchange is not None, "set while the job runs"
        with job.exchange.answer(path, body, job.headers, purpose=job) as response:
            if response.status != 200:
                raise decode_error(response.status, response.headers, response.read())
            rest = b""
            for piece in response.stream():
                *lines, rest = (rest + piece).split(b"\n")
                self._settle([_outcome(line, tasks) for line in lines])
        if job.wanted():
            raise Unavailable(f"{self._address.url} ended its answer before all points were done")

    def _settle(self, outcomes: Iterable[tuple[int, Outcome]]) -> None:
        receivers = set()
        for call_id, outcome in outcomes:
            waiting = self._waiting.pop(call_id, None)
            if waiting is not None:
                waiting.receiver.put(waiting.key, outcome)
                receivers.add(waiting.receiver)
        for receiver in receivers:
            receiver.flush()


def _alike(call: Call, other: Call) -> bool:
    """Whether two calls may be points of one request."""
    return (
        call.operation is other.operation is Operation.EVALUATE
        and call.rows is other.rows is None
        and call.model == other.model
        and call.config == other.config
    )


def _outcome(line: bytes, tasks: Sequence[Task]) -> tuple[int, Outcome]:
    index, outcome = decode_line(line)
    if not 0 <= index < len(tasks):
        raise InvalidRequest(f"the farm answers point {index} of {len(tasks)}")
    return tasks[index][0], outcome
