"""A line over HTTP to a farm's URL or to any UM-Bridge server.

Connections to a farm are kept alive, and one request with a streamed answer carries many points;
this takes a tenth of the client's time per call (measured). Other servers get a new connection for
each call: the official C++ server answers 40 ms late on a reused connection and closes it after
five calls, and an idle connection blocks its other clients.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

import orjson

from farm.call import Call, Hints, ModelInfo, Operation, Result, TensorInfo, halves, joined
from farm.client.http_calls import HttpCalls, HttpJob, Silence, Task, WaitingTask
from farm.client.http_watch import FarmWatch
from farm.client.line import Outcome, Receiver
from farm.client.native_line import PATIENCE_S
from farm.encoding.tensors import LONGEST_ANSWER, longest_answer
from farm.errors import (
    Cancelled,
    FarmError,
    InvalidOutput,
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    Unavailable,
    UnsupportedFeature,
)
from farm.http1.client import JSON, Cancellation, HttpClient, Response
from farm.machine.daemon_pool import DaemonPool
from farm.machine.forks import renew_in_children
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

log = logging.getLogger(__name__)

CONFIGS_KEPT = 1000
"""Most models and configs whose sizes a line keeps."""
CONNECTIONS_TO_FARM = 64
CONNECTIONS_TO_OTHERS = 8
"""Most connections to other servers. The official servers run one call at a time, or one per core;
the C++ server queues five more, and others wait for TCP retries, which take seconds."""

POINTS_A_REQUEST = 256
BYTES_A_REQUEST = 4 * 1024**2

CONNECT_S = 10.0
"""Timeout of one attempt to connect, in seconds; short, as a user may be waiting."""

BOTH = Operation.VALUE_AND_GRADIENT

NO_ANSWER = (502, 503, 504)
"""Statuses of a farm that starts or stops, and of a proxy whose farm is away."""

DENIED = (401, 403, 407)
"""Statuses of a server that wants other credentials: the next answer would be the same."""


class _Denied(Exception):
    """The server wants other credentials."""

    def __init__(self, error: FarmError) -> None:
        super().__init__(error.message)
        self.error = error


class HttpLine:
    """A line to the server at `url`; threads may share it, forked processes open their own.

    connections: most at a time; patience_s: time without an answer after which calls fail; first_s:
    the same for the first answer, during which a server that cannot be reached is tried again. One
    that accepts a request and says nothing is given up in the same time; after the first answer,
    only a farm is. Raises Unavailable if there is no answer, InvalidRequest if it is another kind
    of server.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        connections: int | None = None,
        patience_s: float = PATIENCE_S,
        first_s: float = 0.0,
    ) -> None:
        self._client = HttpClient(url, token=token, keep=False, connect_s=CONNECT_S)
        self._patience_s = first_s
        self._repeatable: dict[str, bool] = {}  # by the names of the models described so far
        self._most: dict[tuple[str, str], int] = {}  # bytes of an answer, by model and config
        self._calls = HttpCalls()
        self._closed = threading.Event()
        self.is_farm = False
        first = FarmWatch(self._client, HttpCalls(), first_s or patience_s)
        self._watch: FarmWatch | None = first
        try:
            status, _, _ = self._ask("/farm/models")
            self.is_farm = status == 200
            if not self.is_farm:
                self._check_language()
        finally:
            first.close()
        self._watch = None  # other servers may be silent while a model runs
        if self.is_farm:
            self._client = HttpClient(url, token=token, keep=True, connect_s=CONNECT_S)
            self._watch = FarmWatch(self._client, self._calls, patience_s)
            weakref.finalize(self, self._watch.close)
        most = connections or (CONNECTIONS_TO_FARM if self.is_farm else CONNECTIONS_TO_OTHERS)
        self._pool = DaemonPool(most, "farm client")
        self._shut_down = weakref.finalize(self, self._pool.shutdown)
        self._patience_s = patience_s
        renew_in_children(self)

    def renew(self) -> None:
        """Leave the open calls to the parent; called in a forked process."""
        self._calls.renew()
        closed, self._closed = self._closed, threading.Event()
        if closed.is_set():
            self._closed.set()

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
                info = ModelInfo.from_json(_data(*self._ask(path, model=model)))
            except (KeyError, TypeError, ValueError) as error:
                raise InvalidRequest(
                    f"the farm's description has an unknown form: {error!r}"
                ) from None
        else:
            ask = Question(Endpoint.MODEL_INFO, model)
            info = ModelInfo(
                model,
                inputs=self._sizes(Question(Endpoint.INPUT_SIZES, model, config), "in"),
                outputs=self._sizes(Question(Endpoint.OUTPUT_SIZES, model, config), "out"),
                operations=decode_model_info(*self._ask(*encode_question(ask), model=model)),
                description=f"{model} at {self._client.url}",
            )
        self._repeatable[model] = info.repeatable
        if len(self._most) >= CONFIGS_KEPT:
            self._most.clear()
        self._most[model, config] = longest_answer(info)
        return info

    def _sizes(self, question: Question, prefix: str) -> tuple[TensorInfo, ...]:
        answer = self._ask(*encode_question(question), model=question.model)
        sizes = decode_sizes(question, *answer)
        return tuple(TensorInfo(f"{prefix}{i}", (n,)) for i, n in enumerate(sizes))

    def status(self) -> dict[str, Any]:
        """Return workers, queues, rates and percentiles. Raises UnsupportedFeature, Unavailable."""
        return dict(self.ask("status", {}))

    def ask(self, what: str, arguments: Mapping[str, str]) -> Any:
        """Return a farm's answer to a question about itself. Raises FarmError."""
        if not self.is_farm:
            raise UnsupportedFeature(f"{self._client.url} is not a farm; only farms have a status")
        path = f"/farm/{quote(what, safe='')}"
        if arguments:
            path += f"?{urlencode(arguments)}"
        status, headers, body = self._ask(path)
        if status == 405:  # it is an action
            status, headers, body = self._ask(path, b"{}")
        return _data(status, headers, body)

    def _ask(
        self, path: str, body: bytes = b"", model: str | None = None
    ) -> tuple[int, Headers, bytes]:
        """Return the answer to a question; ask again while there is none. Raises Unavailable.

        model: the model that the question is about; one that was there before is awaited.
        """
        silence = Silence(self._patience_s)
        known = model is None or model in self._repeatable
        with self._question() as cancellation:
            while True:
                try:
                    status, headers, answer = self._client.ask(
                        path, body, cancellation=cancellation
                    )
                    self._heard(status)
                    if status in DENIED:
                        raise _Denied(decode_error(status, headers, answer))
                    is_model_away = status == 404 and model is not None
                    if not known or not (status in NO_ANSWER or is_model_away):
                        return status, headers, answer
                    pause_s = silence.pause_s()
                    if pause_s is None:
                        return status, headers, answer
                except _Denied as denied:
                    raise denied.error from None
                except Unavailable:
                    pause_s = silence.pause_s()
                    if pause_s is None or self._closed.is_set():
                        raise
                self._closed.wait(pause_s)

    def _question(self) -> AbstractContextManager[Cancellation | None]:
        if self._watch is None or self._closed.is_set():
            return nullcontext()
        return self._watch.question()

    # Calls

    def send(
        self, calls: Sequence[tuple[Any, Call]], hints: Hints, receiver: Receiver
    ) -> Sequence[int]:
        """Send calls, each with a key for its outcome at `receiver`, and return their ids.

        Raises Unavailable if the line is closed.
        """
        if self._closed.is_set():
            raise Unavailable("the client is closed")
        keyed = list(zip(calls, self._calls.ids, strict=False))
        keys = {call_id: key for (key, _), call_id in keyed}
        for tasks in self._requests([(call_id, call) for (_, call), call_id in keyed]):
            waiting = self._calls.waiting
            job = HttpJob(tasks, hints, waiting, self._patience_s)
            for call_id, _ in tasks:
                waiting[call_id] = WaitingTask(receiver, keys[call_id], job)
            self._pool.submit(partial(self._run, job))
        if self._watch is not None:
            self._watch.begin()
        if self._closed.is_set() and self.cancel(keys):  # another thread has just closed it
            raise Unavailable("the client is closed")
        return list(keys)

    def _headers(self, job: HttpJob) -> dict[str, str]:
        hints = job.hints
        if not self.is_farm:
            return dict(JSON)
        named = {
            "Farm-Client": hints.client or None,
            "Farm-Chain": hints.chain,
            "Farm-Priority": hints.priority or None,
            "Farm-Deadline": job.left_s(),
            "X-Request-ID": hints.call_id or None,
        }
        return {**JSON, **{name: str(value) for name, value in named.items() if value is not None}}

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
        return self._calls.cancel(ids)

    def close(self) -> None:
        """Close all connections; open calls fail with Cancelled."""
        self._closed.set()
        self._calls.fail_all(Cancelled("the client was closed before the answer came"))
        self._shut_down()
        if self._watch is not None:
            self._watch.close()
        self._client.close()

    # These methods run on the threads of the pool.

    def _run(self, job: HttpJob) -> None:
        """Send a request, again without an answer, until all its calls have an outcome."""
        while tasks := job.tasks():
            try:
                error = self._sent(job, tasks)
                pause_s = self._pause_s(job)
            except _Denied as denied:
                error, pause_s = denied.error, None
            except FarmError as refusal:
                error, pause_s = refusal, None
            except Exception as failure:
                log.exception("asking %s", self._client.url)
                error, pause_s = Unavailable(f"the client failed: {failure!r}"), None
            if pause_s is not None and job.wanted():
                job.cancellation.wait(pause_s)
                left_s = job.left_s()
                if left_s is None or left_s > 0:
                    continue
                error = job.late()
            self._calls.settle([(call_id, error) for call_id, _ in job.tasks()])

    def _sent(self, job: HttpJob, tasks: Sequence[Task]) -> FarmError:
        """Send a request and settle its calls; return why others have no answer, if there are any.

        Raises the errors that are those of all its calls.
        """
        try:
            if len(tasks) > 1 or (self.is_farm and tasks[0][1].operation is BOTH):
                return self._stream(job, tasks)
            return self._one(job, *tasks[0])
        except (Unavailable, ModelNotFound) as error:
            return error

    def _pause_s(self, job: HttpJob) -> float | None:
        """Return how long to wait before a request is sent again; None if it must not be.

        A farm that starts may not have its models yet. Models that it never had are not awaited.
        """
        if not self._repeatable.get(job.model, False):
            return None
        pause_s = job.silence.pause_s()
        left_s = job.left_s()
        if pause_s is None or left_s is None:
            return pause_s
        return min(pause_s, max(0.0, left_s))

    def _one(self, job: HttpJob, call_id: int, call: Call) -> FarmError:
        if call.operation is BOTH:
            result = joined(*[self._asked(job, half) for half in halves(call)])
        else:
            result = self._asked(job, call)
        self._calls.settle([(call_id, result)])
        return self._cut_off()

    def _asked(self, job: HttpJob, call: Call) -> Result:
        path, body = encode_request(call)
        with self._answer(job, path, body) as answer:
            whole = answer.read(self._longest(call))
        return decode_response(call, answer.status, answer.headers, whole)

    def _longest(self, call: Call) -> int:
        return self._most.get((call.model, call.config), LONGEST_ANSWER)

    def _stream(self, job: HttpJob, tasks: Sequence[Task]) -> FarmError:
        path = f"/farm/models/{quote(tasks[0][1].model)}/evaluate"
        body = encode_points([call for _, call in tasks])
        refusal: FarmError | None = None
        with self._answer(job, path, body) as answer:
            if answer.status != 200:
                raise decode_error(answer.status, answer.headers, answer.read())
            rest, most = b"", self._longest(tasks[0][1])
            for piece in answer.portions():
                self._heard()
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) > most:
                    text = f"a point's answer is longer than {most} bytes, the most it can have"
                    raise InvalidOutput(text)
                outcomes = []
                for line in lines:
                    call_id, outcome = _outcome(line, tasks)
                    if isinstance(outcome, Unavailable | ModelNotFound):
                        refusal = outcome
                    else:
                        outcomes.append((call_id, outcome))
                if outcomes:
                    job.silence.end()
                    self._calls.settle(outcomes)
        return refusal or self._cut_off()

    def _cut_off(self) -> Unavailable:
        return Unavailable(f"{self._client.url} ended its answer before all points were done")

    @contextmanager
    def _answer(self, job: HttpJob, path: str, body: bytes) -> Iterator[Response]:
        headers = self._headers(job)
        with self._client.answer(path, body, headers, cancellation=job.cancellation) as answer:
            self._heard(answer.status)
            if answer.status in DENIED:
                raise _Denied(decode_error(answer.status, answer.headers, answer.read()))
            yield answer

    def _heard(self, status: int = 200) -> None:
        if self._watch is not None:
            self._watch.heard(status)


def _outcome(line: bytes, tasks: Sequence[Task]) -> tuple[int, Outcome]:
    index, outcome = decode_line(line)
    if not 0 <= index < len(tasks):
        raise InvalidRequest(f"the farm answers point {index} of {len(tasks)}")
    return tasks[index][0], outcome


def _data(status: int, headers: Headers, body: bytes) -> Any:
    """Return the JSON data of an answer. Raises the error that it holds."""
    if status != 200:
        raise decode_error(status, headers, body)
    return orjson.loads(body)
