"""Sends the questions of an op to the model, in bulk and each of them once; remembers answers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.call import Array, ModelInfo, Operation, TensorInfo
from farm.client import RemoteModel
from farm.errors import FarmError, InvalidOutput


@dataclass
class Counts:
    """Counts of the requests and calls of an op, over all threads of this process.

    requests: bulk requests; calls: calls in them; repeats: answers that came from memory, or from
    another point of the same request.
    """

    requests: int = 0
    calls: int = 0
    repeats: int = 0

    def add(self, requests: int, calls: int, repeats: int) -> None:
        """Count what is sent together."""
        self.requests += requests
        self.calls += calls
        self.repeats += repeats


@dataclass(frozen=True, slots=True)
class ModelQuestion:
    """A question to the model about many points. which: output, input, and second input."""

    operation: Operation
    which: tuple[int, ...] = ()
    sens: Array | None = None  # by points; None for a result of one entry: 1.0
    vec: Array | None = None  # by points

    def key(self, row: int) -> tuple[Any, ...]:
        sent = [b"" if array is None else array[row].tobytes() for array in (self.sens, self.vec)]
        return (self.operation, *self.which, *sent)


@dataclass(frozen=True, slots=True)
class _Call:
    """One call: the row of its point, and what to do with the answer."""

    row: int
    sens: Array | None
    vec: Array | None
    put: Callable[[Any], None]


_Requests = dict[tuple[Operation, tuple[int, ...]], list[_Call]]
"""The calls of each bulk request, by operation and by output, input and second input."""


class Asking:
    """The model behind an op, with its last answers and the counts. Threads may share it.

    outputs: those whose values the op needs.
    """

    def __init__(
        self,
        model: RemoteModel,
        config: Mapping[str, Any] | None,
        info: ModelInfo,
        outputs: Sequence[TensorInfo],
    ) -> None:
        self._model = model
        self._config = config
        self._info = info
        self._outputs = tuple(outputs)
        self._repeats = Repeats()
        self._lock = threading.Lock()
        self._counts = Counts()

    @property
    def counts(self) -> Counts:
        """Return what has been sent so far."""
        with self._lock:
            return Counts(**vars(self._counts))

    def answers(
        self,
        points: list[Array],
        questions: Sequence[ModelQuestion],
        count: int,
        factors: Sequence[Array | None] | None = None,
    ) -> list[list[Any]]:
        """Return the answers to each question by points, from memory or from the model.

        An answer is None where it would be multiplied by zero.
        """
        if self._info.repeatable:
            repeats = self._repeats
            keys = _keys(points, count)
        else:  # every row is a question of its own
            repeats = Repeats(most_bytes=0)
            keys = [row.to_bytes(8) for row in range(count)]
        repeats.expect(count)
        found: list[list[Any]] = [[None] * count for _ in questions]
        # By point and question: the first row of the point, the question, the places to fill.
        missing: dict[bytes, dict[Hashable, tuple[int, ModelQuestion, list[tuple[int, int]]]]] = {}
        wanted = 0
        for number, question in enumerate(questions):
            factor = None if factors is None else factors[number]
            for row, point in enumerate(keys):
                if _vanishes(row, factor, question.sens, question.vec):
                    continue
                wanted += 1
                key = question.key(row)
                answer = repeats.find(point, key)
                if answer is not None:
                    found[number][row] = answer
                    continue
                at = missing.setdefault(point, {})
                at.setdefault(key, (row, question, []))[2].append((number, row))

        def filled(point: bytes, key: Hashable, places: list[tuple[int, int]]) -> Any:
            def put(answer: Answer) -> None:
                repeats.keep(point, key, answer)
                for number, row in places:
                    found[number][row] = answer

            return put

        requests: _Requests = {}
        questions_sent = 0
        for point, at in missing.items():
            questions_sent += len(at)
            for operation, which, call in self._calls_at(point, at, filled):
                requests.setdefault((operation, which), []).append(call)
        self._send(points, requests, wanted - questions_sent)
        return found

    def _calls_at(
        self,
        point: bytes,
        at: dict[Hashable, tuple[int, ModelQuestion, list[tuple[int, int]]]],
        filled: Callable[[bytes, Hashable, list[tuple[int, int]]], Callable[[Answer], None]],
    ) -> Iterator[tuple[Operation, tuple[int, ...], _Call]]:
        """Yield the missing calls of a point; the value is requested with a gradient."""
        value: Callable[[Answer], None] | None = None
        row = 0
        for key, (row, question, places) in at.items():
            put = filled(point, key, places)
            sens = None if question.sens is None else question.sens[row]
            vec = None if question.vec is None else question.vec[row]
            if question.operation is Operation.EVALUATE:
                value = put
            elif question.operation is Operation.GRADIENT and value is not None:
                both = _parted(value, put)
                value = None
                yield Operation.VALUE_AND_GRADIENT, question.which, _Call(row, sens, vec, both)
            else:
                yield question.operation, question.which, _Call(row, sens, vec, put)
        if value is not None:
            yield Operation.EVALUATE, (), _Call(row, None, None, value)

    def _send(self, points: list[Array], requests: _Requests, repeats: int) -> None:
        """Send all requests at the same time and pass on their answers."""
        with self._lock:
            self._counts.add(len(requests), sum(map(len, requests.values())), repeats)
        started: list[Iterator[Any]] = []
        try:
            # `map` sends the calls at once, and waits when its answers are taken.
            started += [self._map(points, *key, calls) for key, calls in requests.items()]
            for (key, calls), answers in zip(requests.items(), started, strict=True):
                for call, answer in zip(calls, answers, strict=True):
                    if isinstance(answer, FarmError):
                        if len(points[0]) > 1:
                            answer.add_note(f"at point {call.row}")
                        raise answer
                    call.put(self._answer(key[0], answer))
        finally:
            for answers in started:
                close = getattr(answers, "close", None)  # cancels what is not answered yet
                if close is not None:
                    close()

    def _map(
        self,
        points: list[Array],
        operation: Operation,
        which: tuple[int, ...],
        calls: list[_Call],
    ) -> Iterator[Any]:
        one = len(points) == 1
        rows = [points[0][x.row] if one else [array[x.row] for array in points] for x in calls]
        keywords: dict[str, Any] = dict(zip(("out", "wrt", "wrt2"), which, strict=False))
        for name in ("sens", "vec"):
            if getattr(calls[0], name) is not None:
                keywords[name] = [getattr(call, name) for call in calls]
        return self._model.map(
            rows, self._config, operation=operation, return_errors=True, **keywords
        )

    def _answer(self, operation: Operation, answer: Any) -> Any:
        """Return the answer as float64 arrays: the op's results in order, a derivative, or both."""
        if operation is Operation.VALUE_AND_GRADIENT:
            value, gradient = answer
            return self._values(value), np.asarray(gradient, np.float64)
        if operation is Operation.EVALUATE:
            return self._values(answer)
        return np.asarray(answer, np.float64)

    def _values(self, output: Any) -> tuple[Array, ...]:
        tensors = self._outputs
        arrays = [output[t.name] if isinstance(output, Mapping) else output for t in tensors]
        for array, tensor in zip(arrays, tensors, strict=True):
            if np.shape(array) != tensor.shape:
                raise InvalidOutput(
                    f"output {tensor.name!r} has shape {np.shape(array)}, model "
                    f"{self._info.name!r} declares {tensor.shape}"
                )
        return tuple(np.asarray(array, np.float64) for array in arrays)


def _keys(points: list[Array], count: int) -> list[bytes]:
    """Return the exact bytes of each point, with the types of whole numbers before them.

    Whole numbers are sent as they are given: -1 as int8 has the byte of 255 as uint8.
    """
    kinds = "".join(array.dtype.str for array in points if array.dtype != np.float64).encode()
    return [kinds + b"".join(array[row].tobytes() for array in points) for row in range(count)]


def _vanishes(row: int, *factors: Array | None) -> bool:
    """Return whether a derivative is multiplied by a vector of zeros."""
    return any(array is not None and not array[row].any() for array in factors)


def _parted(value: Callable[[Any], None], gradient: Callable[[Any], None]) -> Callable[[Any], None]:
    def put(answer: tuple[Any, Any]) -> None:
        value(answer[0])
        gradient(answer[1])

    return put


POINTS_PER_CHAIN = 128
"""Points kept for each chain. Vectorised NUTS asks again for the last points of chains that have
finished their trees, and a tree has rarely more than 2**7 points between two of its visits."""

MOST_BYTES = 64 * 1024**2
"""Upper bound on the memory of the points and answers, for models with long vectors."""

OVERHEAD_BYTES = 400
"""Memory of one answer besides its numbers: the objects of Python."""

Answer = Array | tuple[Array, ...]


class Repeats:
    """The least recently used answers, bounded in points and in bytes. Threads may share it.

    A point is the bytes of all inputs; each has the answers to some questions about it.
    """

    def __init__(self, *, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._points: OrderedDict[bytes, dict[Hashable, Answer]] = OrderedDict()
        self._chains = 1
        self._bytes = 0

    def __len__(self) -> int:
        """Return the number of points that are kept."""
        return len(self._points)

    def expect(self, chains: int) -> None:
        """Make room for `chains` chains: the points of the longest request so far."""
        self._chains = max(self._chains, chains)

    def find(self, point: bytes, question: Hashable) -> Answer | None:
        """Return the answer, which must not be changed, or None."""
        with self._lock:
            answers = self._points.get(point)
            if answers is None:
                return None
            self._points.move_to_end(point)
            return answers.get(question)

    def keep(self, point: bytes, question: Hashable, answer: Answer) -> None:
        """Keep an answer, and forget the points that were not used for longest."""
        with self._lock:
            answers = self._points.get(point)
            if answers is None:
                answers = self._points[point] = {}
                self._bytes += len(point)
            self._points.move_to_end(point)
            if question not in answers:
                self._bytes += _nbytes(question, answer)
            answers[question] = answer
            while len(self._points) > self._chains * POINTS_PER_CHAIN or (
                self._bytes > self._most_bytes and self._points
            ):
                forgotten, old = self._points.popitem(last=False)
                self._bytes -= len(forgotten) + sum(_nbytes(q, a) for q, a in old.items())


def _nbytes(question: Any, answer: Answer) -> int:
    arrays = answer if isinstance(answer, tuple) else (answer,)
    sent = sum(len(part) for part in question if isinstance(part, bytes))
    return OVERHEAD_BYTES + sent + sum(np.asarray(array).nbytes for array in arrays)
