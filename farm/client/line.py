"""The interface of a client's line to a farm, for any transport, and futures over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from farm.call import Call, Hints, ModelInfo, Result
from farm.errors import FarmError
from farm.wording import short

T = TypeVar("T")
Outcome = Result | FarmError


class Receiver(Protocol):
    """Destination of outcomes. Called on the line's threads: must be quick and must not raise."""

    def put(self, key: Any, outcome: Outcome) -> None:
        """Deliver the outcome of the call that was sent with `key`."""

    def flush(self) -> None:
        """Wake the waiting threads: no more outcomes for now."""


class Line(Protocol):
    """A connection to a farm, or to a server of models; threads may share it."""

    def send(
        self, calls: Sequence[tuple[Any, Call]], hints: Hints, receiver: Receiver
    ) -> Sequence[int]:
        """Send calls, each with a key, and deliver their outcomes to `receiver`; return their ids.

        Every call gets one outcome or is cancelled. Raises Unavailable if the line is closed.
        """

    def cancel(self, ids: Iterable[int]) -> bool:
        """Cancel calls; they then get no outcome. False if each of them already had one."""

    def names(self) -> list[str]:
        """Return the names of the models that are served. Raises FarmError."""

    def describe(self, model: str, config: str) -> ModelInfo:
        """Return the description of one model for a config. Raises FarmError."""

    def status(self) -> dict[str, Any]:
        """Return workers, queues, rates and percentiles as JSON data. Raises FarmError."""

    def ask(self, what: str, arguments: Mapping[str, str]) -> Any:
        """Return the answer to a question about the farm as JSON data. Raises FarmError.

        An action, such as to cancel calls, may be carried out twice when the connection breaks.
        """

    def close(self) -> None:
        """Release all resources; calls without an outcome fail with Cancelled."""

    # A line may also have `outcome(call, hints) -> Outcome`, for callers that wait: see
    # `waited_for`.


class CallFuture(Future[T]):
    """Future of a call's outcome; it stays pending, in `concurrent.futures` terms, until then.

    So `cancel()` works until the outcome arrives, and cancels the call.
    """

    def __init__(self, line: Line, convert: Callable[[Result], T]) -> None:
        super().__init__()
        self.convert = convert
        self._line = line  # keeps the line open for as long as the future exists
        self._ids: Sequence[int] = ()

    def cancel(self) -> bool:
        """Cancel the call; False if its outcome has arrived."""
        if not super().cancel():
            return False
        if self._line.cancel(self._ids):
            self.set_running_or_notify_cancel()
        return True


class _Futures:
    """Receives outcomes for keys that are the futures themselves."""

    def put(self, key: Any, outcome: Outcome) -> None:
        future: CallFuture[Any] = key
        if not future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, FarmError):
            future.set_exception(short(outcome))
            return
        try:
            future.set_result(future.convert(outcome))
        except Exception as error:
            future.set_exception(error)

    def flush(self) -> None:
        """Do nothing: a future wakes its own waiters."""


_FUTURES = _Futures()


def submit(line: Line, call: Call, hints: Hints, convert: Callable[[Result], T]) -> CallFuture[T]:
    """Return a future of `convert(result)` for the call.

    convert: must be quick, as it runs on the line's thread. Raises Unavailable if the line is
    closed.
    """
    future = CallFuture(line, convert)
    future._ids = line.send([(future, call)], hints, _FUTURES)
    return future


def waited_for(line: Line, call: Call, hints: Hints, convert: Callable[[Result], T]) -> T:
    """Return `convert(result)` for the call; an interruption of the wait cancels the call.

    Raises the FarmError that is the call's outcome, and Unavailable if the line is closed.
    """
    at_once: Callable[[Call, Hints], Outcome] | None = getattr(line, "outcome", None)
    if at_once is None:
        future = submit(line, call, hints, convert)
        try:
            return future.result()
        finally:
            future.cancel()
    outcome = at_once(call, hints)
    if isinstance(outcome, FarmError):
        raise short(outcome)
    return convert(outcome)


def as_it_is(result: Result) -> Result:
    """Return the result unchanged."""
    return result
