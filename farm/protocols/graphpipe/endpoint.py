"""The GraphPipe endpoint: /graphpipe/MODEL, all paths below it, and POST at the root.

Errors are answers of the protocol with status 200. Clients that cannot see those (Go's and
JavaScript's) get status 400 and text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from farm.bodies.body import HeldBody
from farm.bodies.readers import READS_HERE, Reads
from farm.bodies.reading import Reading, is_long_raw
from farm.bodies.unpacking import Headers, Refused
from farm.call import BYTES, EMPTY_CONFIG, Call, CancelCall, Hints, ModelInfo, Operation, Result
from farm.dispatcher.dispatcher import Dispatcher
from farm.encoding.tensors import shown
from farm.errors import INTERNAL_ERROR, FarmError, ModelNotFound, Unavailable
from farm.http1.request import Answer, Request, result_headers
from farm.protocols.graphpipe.codec import (
    SMALL_BYTES,
    Wish,
    call_of,
    decode_call,
    decode_request,
    encode_error,
    encode_metadata,
    encode_result,
    metadata_json,
)
from farm.protocols.graphpipe.tensors import GraphpipeFault
from farm.protocols.interface import Endpoints, Site

logger = logging.getLogger(__name__)

ROOT = "/graphpipe"
CONTROL = "/control/"
OCTETS, TEXT = b"application/octet-stream", b"text/plain; charset=utf-8"

BLIND = (b"Go-http-client/", b"axios/")
"""Beginnings of the User-Agent of clients that ignore errors in an answer with status 200."""


def is_below(target: str) -> bool:
    """Whether a request's path belongs to the protocol; "/" is shared with the status page."""
    return target.startswith((ROOT + "/", CONTROL)) or target == ROOT


def serve(site: Site) -> Endpoints:
    """Return the protocol's endpoints: its paths, and POST to the root for the default model."""
    default = site.options["graphpipe_default"]
    handler = GraphPipeEndpoint(site.backend, default=default, readers=site.readers)
    return Endpoints(
        find=lambda path: handler if is_below(path) else None,
        root=handler,
        waits=partial(_waits, default=default),
    )


def _waits(method: str, path: str, models: Mapping[str, ModelInfo], default: str | None) -> bool:
    """Whether a request waits until the farm knows its model."""
    if path == "/" and method == "POST":
        return not models if default is None else default not in models
    asks = is_below(path) and method in ("GET", "HEAD", "POST") and not path.startswith(CONTROL)
    return asks and _found(path.partition("?")[0], models) is None


class GraphPipeEndpoint:
    """Answers requests at the protocol's paths, and POST to the root."""

    def __init__(
        self, backend: Dispatcher, *, default: str | None = None, readers: Reads = READS_HERE
    ) -> None:
        """default: the model at the root; None: the only one, if there is just one."""
        self._backend = backend
        self._readers = readers
        self._default = default
        self._running = 0
        self._repeated = Repeated()

    def __call__(self, request: Request, answer: Answer) -> CancelCall | None:
        """Answer a request, at once or when its call ends. Raises Refused."""
        path = request.path.partition("?")[0]
        asks = request.method in ("GET", "HEAD")
        if not asks and request.method != "POST":
            message = f"{shown(path)} is asked with POST, or GET for metadata"
            allow = ((b"allow", b"GET, HEAD, POST"),)
            raise Refused(405, "MethodNotAllowed", message, headers=allow)
        try:
            if path.startswith(CONTROL):
                _control(path, self._is_ready(), self._running, answer)
                return None
            info, rest = self._model(path)
            if rest.startswith(CONTROL):
                _control(rest, True, self._running, answer)
            elif asks:
                answer(200, metadata_json(info))
            else:
                return self._ask(info, request, answer)
        except _NotHere as error:
            answer(404, str(error).encode(), (), TEXT)
        except (FarmError, GraphpipeFault) as error:
            _answer_error(error, request, answer)
        return None

    def is_raw(self, headers: Headers) -> bool:
        """Whether a body is raw tensors: all are, and texts alone are decoded elsewhere."""
        return True

    def error_form(self, kind: str, message: str) -> tuple[bytes, bytes]:
        """Return body and content type of an error that is raised outside this handler."""
        return message.encode("utf-8", "replace"), TEXT

    def _model(self, path: str) -> tuple[ModelInfo, str]:
        """Return the model of a path and the rest of it. Raises _NotHere or Unavailable."""
        models = self._backend.models()
        if not models:
            raise self._backend.first_worker.no_model()
        if path == "/":
            return self._default_model(models), ""
        found = _found(path, models)
        if found is None:
            raise self._unknown(f"no model at {shown(path)}; {_listed(models)}")
        return found

    def _unknown(self, text: str) -> Exception:
        error = self._backend.first_worker.unknown(text)
        return _NotHere(text) if isinstance(error, ModelNotFound) else error

    def _default_model(self, models: Mapping[str, ModelInfo]) -> ModelInfo:
        if self._default is not None:
            if self._default in models:
                return models[self._default]
            text = f"the default model {self._default!r} is not served; {_listed(models)}"
            raise self._unknown(text)
        if len(models) > 1:
            raise _NotHere(f"no model is the default (--graphpipe-default NAME); {_listed(models)}")
        return next(iter(models.values()))

    def _is_ready(self) -> bool:
        models = self._backend.models()
        return bool(models) if self._default is None else self._default in models

    def _ask(self, info: ModelInfo, request: Request, answer: Answer) -> CancelCall | None:
        hints = request.hints()
        run = _GraphpipeRun(self._backend, self._readers, request, answer, self._count)
        body = request.body
        if isinstance(body, HeldBody):
            if body.encoding or any(tensor.dtype == BYTES for tensor in info.inputs):
                return run.read(body, info, hints)
            asked = decode_request(body.view())  # the numbers are not decoded here
        elif (again := self._repeated.call_of(body, info)) is not None:
            run.start(*again, info, hints)
            return run.cancel
        else:
            asked = decode_request(body)
        if asked is None:
            answer(200, encode_metadata(info), (), OCTETS)
            return None

        def go(info: ModelInfo) -> None:
            call, wish = call_of(asked, info)
            if isinstance(body, bytes):
                self._repeated.keep(body, info, call, wish)
            run.start(call, wish, info, hints)

        run.when_described(info.name, asked.config, hints, go)
        return run.cancel

    def _count(self, change: int) -> None:
        self._running += change


@dataclass(slots=True)
class _GraphpipeRun:
    """One call; before it a describe call if the description for the config is unknown.

    A reader process may decode the request before it and encode the answer after it.
    """

    backend: Dispatcher
    readers: Reads
    request: Request
    answer: Answer
    count: Callable[[int], None]
    undo: CancelCall | None = None

    def cancel(self) -> None:
        """Cancel the call: the client has left."""
        if self.undo is not None:
            self.undo()

    def read(
        self, body: HeldBody, info: ModelInfo, hints: Hints, config: str = EMPTY_CONFIG
    ) -> CancelCall:
        """Decode a long request in a reader, then go on. info: the description for this config."""

        def go(read: tuple[str, Call | None, Wish]) -> None:
            wanted, call, wish = read
            if call is not None:
                self.start(call, wish, info, hints)
            else:
                self.when_described(
                    info.name, wanted, hints, lambda info: self.read(body, info, hints, wanted)
                )

        reading = Reading(go, self.fail)
        about = (body, info, config)
        self.undo = reading.begin(self.readers, decode_call, *about, hints=hints)
        return self.cancel

    def start(self, call: Call, wish: Wish, info: ModelInfo, hints: Hints) -> None:
        """Run the call and answer with the requested outputs. Raises FarmError."""

        def reply(result: Result) -> None:
            def send(body: bytes | memoryview) -> None:
                self.answer(200, body, result_headers(result), OCTETS)

            if not is_long_raw(result):
                send(encode_result(wish, info, result))
                return
            writing = Reading(send, self.fail)
            arguments = (tuple(wish), info, result)
            writing.begin(self.readers, encode_result, *arguments, hints=hints)

        self._submit(call, hints, reply)

    def when_described(
        self, model: str, config: str, hints: Hints, go: Callable[[ModelInfo], object]
    ) -> None:
        """Call `go` with the model's description for this config. Raises FarmError."""
        described = self.backend.description(model, config)
        if described is not None:
            go(described)
            return

        def reply(result: Result) -> None:
            assert result.info is not None, "a worker answers describe with an info"
            go(result.info)

        self._submit(Call(model, Operation.DESCRIBE, config=config), hints, reply)

    def fail(self, error: Exception) -> None:
        """Answer with an error that was raised here or in a reader."""
        if isinstance(error, FarmError | GraphpipeFault):
            _answer_error(error, self.request, self.answer)
        elif isinstance(error, Refused):
            self.answer(error.status, error.message.encode(), error.headers, TEXT)
        else:
            logger.error("answering %s", self.request.path, exc_info=error)
            self.answer(500, INTERNAL_ERROR.encode(), (), TEXT)

    def _submit(self, call: Call, hints: Hints, reply: Callable[[Result], None]) -> None:
        def done(outcome: Result | FarmError) -> None:
            self.count(-1)
            try:
                if isinstance(outcome, FarmError):
                    raise outcome
                reply(outcome)
            except Exception as error:
                self.fail(error)

        def undo() -> None:
            self.count(-1)
            self.backend.cancel(task_id)

        task_id = self.backend.start_call(call, hints, done)
        self.undo = undo
        self.count(1)


class _NotHere(Exception):
    """There is no model at a path."""


def _found(path: str, models: Mapping[str, ModelInfo]) -> tuple[ModelInfo, str] | None:
    """Return the model of a path below ROOT and the rest of the path; None if there is none."""
    name = path.removeprefix(ROOT).removeprefix("/")
    info = models.get(name)
    if info is not None:
        return info, ""
    name = unquote(name)
    # Names of models may contain slashes, and clients append paths of their own.
    found = max((m for m in models if f"{name}/".startswith(f"{m}/")), key=len, default=None)
    return None if found is None else (models[found], name[len(found) :])


def _listed(models: Mapping[str, ModelInfo]) -> str:
    paths = [f"{ROOT}/{name}" for name in models]
    more = f" and {len(paths) - 20} more" if len(paths) > 20 else ""
    return f"there are {', '.join(paths[:20])}{more}"


def _control(path: str, ready: bool, running: int, answer: Answer) -> None:
    """Answer the control paths of the Go server."""
    status, text = 404, "there are /control/is_alive, is_ready and client_count"
    if path == "/control/is_alive":
        status, text = 200, "ok"
    elif path == "/control/is_ready":
        status, text = (200, "ok") if ready else (503, "no model is served yet")
    elif path == "/control/client_count":
        status, text = 200, str(running)
    elif path == "/control/shutdown":
        status, text = 403, "a farm cannot be stopped remotely: stop `farm serve`"
    answer(status, f"{text}\n".encode(), (), TEXT)


def _answer_error(error: FarmError | GraphpipeFault, request: Request, answer: Answer) -> None:
    if isinstance(error, FarmError) and error.detail:
        logger.debug("%s: %s\n%s", request.path, error.message, error.detail)
    if request.method != "POST":
        status = 503 if isinstance(error, Unavailable) else 400
        answer(status, error.message.encode(), (), TEXT)
    elif request.headers.get(b"user-agent", b"").startswith(BLIND):
        answer(400, error.message.encode(), (), TEXT)
    else:
        answer(200, encode_error(error), (), OCTETS)


KEPT = 256
"""Maximum number of remembered messages; then all are forgotten."""

LONGEST = 2 * SMALL_BYTES
"""Maximum length of a remembered message, in bytes."""


class _Meaning(NamedTuple):
    """The meaning of a request with one tensor, except its numbers; start: their position."""

    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    rows: int | None
    config: str
    wish: tuple[int, ...]


class Repeated:
    """The meanings of earlier messages with one numeric tensor, by model and length.

    Clients send the same message over and over with other numbers, which two comparisons of bytes
    detect. Reading a request of one small tensor completely takes 20 µs, a fifth of the front
    door's time for it.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[ModelInfo, bytes, bytes, _Meaning]] = {}

    def call_of(self, body: bytes, info: ModelInfo) -> tuple[Call, Wish] | None:
        """Return the same as `codec.call_of` for this request; None if it is not recognised."""
        known = self._known.get((info.name, len(body)))
        if known is None:
            return None
        described, head, tail, meaning = known
        if described is not info or not (body.startswith(head) and body.endswith(tail)):
            return None
        numbers = memoryview(body)[len(head) : len(body) - len(tail)]
        array = np.frombuffer(numbers, meaning.dtype).reshape(meaning.shape)
        return Call(info.name, Operation.EVALUATE, (array,), rows=meaning.rows), meaning.wish

    def keep(self, body: bytes, info: ModelInfo, call: Call, wish: Wish) -> None:
        """Remember the meaning of this request if its numbers can be replaced.

        Builders of flatbuffers normally store numbers in bytes that nothing else uses. To check
        this, the method replaces the numbers by bytes that are invalid in an offset, size, type or
        text: the message must keep its meaning.
        """
        if call.config != EMPTY_CONFIG or len(call.inputs) != 1 or len(body) > LONGEST:
            return
        size = call.inputs[0].nbytes
        if call.inputs[0].dtype.hasobject or not 0 < size <= SMALL_BYTES:
            return
        meaning = _meaning(body, call, wish)
        head, tail = body[: meaning.start], body[meaning.start + size :]
        other = head + b"\xff" * size + tail
        try:
            request = decode_request(other)
            if request is None or _meaning(other, *call_of(request, info)) != meaning:
                return
        except (FarmError, GraphpipeFault):
            return
        if len(self._known) >= KEPT:
            self._known.clear()
        self._known[info.name, len(body)] = info, head, tail, meaning


def _meaning(body: bytes, call: Call, wish: Wish) -> _Meaning:
    (array,) = call.inputs
    start = array.ctypes.data - np.frombuffer(body, np.uint8).ctypes.data
    return _Meaning(start, array.dtype, array.shape, call.rows, call.config, tuple(wish))
