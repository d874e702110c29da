"""What a client's line to a farm is, whatever it is made of; and futures over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from farm.call import Call, Hints, ModelInfo, Result
from farm.errors import FarmError

T = TypeVar("T")
Outcome = Result | FarmError


class Receiver(Protocol):
    """Where outcomes go. Called on the line's own threads: quick, and raises nothing."""

    def put(self, key: Any, outcome: Outcome) -> None:
        """The outcome of the call that was sent with `key`."""

    def flush(self) -> None:
        """No more for now: wake whoever waits."""


class Line(Protocol):
    """A way to a farm, or to a server of models; threads may share it."""

    def send(
        self, calls: Sequence[tuple[Any, Call]], hints: Hints, receiver: Receiver
    ) -> Sequence[int]:
        """Send calls, each with a key, and have their outcomes put to `receiver`; gives their ids.

        Every call gets one outcome or is taken back. Raises Unavailable when the line is closed.
        """

    def take_back(self, ids: Iterable[int]) -> bool:
        """Cancel calls: no outcome is put for them. False when each has, or had, its outcome."""

    def names(self) -> list[str]:
        """The models that are served. Raises FarmError."""

    def describe(self, model: str, config: str) -> ModelInfo:
        """One model, for a config. Raises FarmError."""

    def status(self) -> dict[str, Any]:
        """Workers, queues, rates and percentiles as JSON data. Raises FarmError."""

    def close(self) -> None:
        """Let go of every resource; calls without an outcome fail with Cancelled."""


class CallFuture(Future[T]):
    """A call's outcome to come; as a `concurrent.futures.Future` it is pending until it is there.

    So `cancel()` works all that time, and takes the call back.
    """

    def __init__(self, line: Line, convert: Callable[[Result], T]) -> None:
        super().__init__()
        self.convert = convert
        self._line = line  # which also keeps it open while somebody holds the future
        self._ids: Sequence[int] = ()

    def cancel(self) -> bool:
        """Take the call back; False when its outcome is there."""
        if not super().cancel():
            return False
        if self._line.take_back(self._ids):
            self.set_running_or_notify_cancel()
        return True


class _Futures:
    """Receives outcomes whose key is the future itself."""

    def put(self, key: Any, outcome: Outcome) -> None:
        future: CallFuture[Any] = key
        if not future.set_running_or_notify_cancel():
            return
        try:
            if isinstance(outcome, FarmError):
                raise outcome
            future.set_result(future.convert(outcome))
        except Exception as error:
            future.set_exception(error)

    def flush(self) -> None:
        """Nothing: a future wakes who waits for it."""


_FUTURES = _Futures()


def submit(line: Line, call: Call, hints: Hints, convert: Callable[[Result], T]) -> CallFuture[T]:
    """What `convert` makes of the call's result to come.

    convert: quick, as it runs on the line's thread. Raises Unavailable when the line is closed.
    """
    future = CallFuture(line, convert)
    future._ids = line.send([(future, call)], hints, _FUTURES)
    return future


def as_it_is(result: Result) -> Result:
    """The result."""
    return result
