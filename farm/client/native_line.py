"""The native client's end of the wire: many calls per message, many answers per message.

`native_end.py` has the thread that sends and receives; here are questions to the farm, and what
happens to a line in a forked process.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from farm.call import EMPTY_CONFIG, NO_HINTS, Call, Hints, ModelInfo, Operation
from farm.client.line import Outcome, Receiver, as_it_is, submit
from farm.client.native_end import End
from farm.errors import InvalidRequest, Unavailable
from farm.machine.forks import renew_in_children
from farm.transports.connection import Connection, ConnectionFile
from farm.transports.dial import Dialer, NoLine
from farm.transports.identity import client_identity

PATIENCE_S = 60.0
"""Calls fail after the farm has been away for this many seconds."""


class NativeLine:
    """A line to a farm's dispatcher; threads may share it, and a forked process opens its own.

    file: the connection file, so that the line follows a farm that is restarted in its
    folder; patience_s: silence of the dispatcher after which calls fail with Unavailable; answer_s:
    timeout of the first question about the farm itself. The line closes when it is no longer
    referenced. Raises Unavailable if the farm cannot be reached from here.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        file: ConnectionFile | None = None,
        patience_s: float = PATIENCE_S,
        answer_s: float = 10.0,
        heartbeat_s: float = 5.0,
    ) -> None:
        self._connection = connection
        self._file = file
        self._patience_s = patience_s
        self._answer_s = answer_s
        self._heartbeat_s = heartbeat_s
        self._ids = itertools.count(1)
        self._repeatable: dict[str, bool] = {}  # by the names of the models described so far
        self._lock = threading.Lock()
        self._closed = False
        self._end: End | None = self._opened(at_once=True)  # None: not yet opened after a fork
        renew_in_children(self)

    def _opened(self, *, at_once: bool) -> End:
        dialer = Dialer(
            self._connection,
            client_identity(),
            file=self._file,
            heartbeat_s=self._heartbeat_s,
            watched=True,
        )
        line = dialer.dial() if at_once else NoLine()
        end = End(dialer, line, self._ids, self._repeatable, self._patience_s)
        self._finish = weakref.finalize(self, end.close)
        return end

    def renew(self) -> None:
        """Leave the connection and the open calls to the parent; called in a forked process."""
        self._lock = threading.Lock()
        end, self._end = self._end, None
        if end is not None:
            self._finish.detach()
            end.drop()

    def _running(self) -> End:
        """Return the end; a forked process opens its own. Raises Unavailable if closed."""
        end = self._end
        if end is None:
            with self._lock:
                if self._closed:
                    raise Unavailable("the client is closed")
                if self._end is None:
                    self._end = self._opened(at_once=False)
                end = self._end
        return end

    def send(
        self, calls: Sequence[tuple[Any, Call]], hints: Hints, receiver: Receiver
    ) -> Sequence[int]:
        """Send calls, each with a key, and deliver their outcomes to `receiver`; return their ids.

        Raises Unavailable if the line is closed.
        """
        return (self._end or self._running()).send(calls, hints, receiver)

    def outcome(self, call: Call, hints: Hints) -> Outcome:
        """Send a call and wait for its outcome; an interruption of the wait cancels the call.

        Raises Unavailable if the line is closed.
        """
        return (self._end or self._running()).call(call, hints)

    def cancel(self, ids: Iterable[int]) -> bool:
        """Cancel calls; they then get no outcome. False if each of them already had one."""
        return self._end is not None and self._end.cancel(ids)

    def cancel_waiting(self, ids: Iterable[int]) -> None:
        """Cancel those of the calls that no worker has; each of these fails with Cancelled."""
        if self._end is not None:
            self._end.cancel_waiting(ids)

    def names(self) -> list[str]:
        """Return the names of the models that the farm serves. Raises Unavailable."""
        return [info.name for info in self._models()]

    def describe(self, model: str, config: str) -> ModelInfo:
        """Return the description of one model for a config. Raises FarmError."""
        if config == EMPTY_CONFIG:
            for known in self._models():
                if known.name == model:
                    return known
        call = Call(model, Operation.DESCRIBE, config=config)
        info = submit(self, call, NO_HINTS, as_it_is).result().info
        if info is None:
            raise InvalidRequest(f"the farm answered without a description of {model!r}")
        self._repeatable[model] = info.repeatable
        return info

    def _models(self) -> list[ModelInfo]:
        models = [ModelInfo.from_json(item) for item in self.ask("models", {})]
        self._repeatable.update((info.name, info.repeatable) for info in models)
        return models

    def status(self) -> dict[str, Any]:
        """Return workers, queues, rates and percentiles as JSON data. Raises Unavailable."""
        state: dict[str, Any] = self.ask("status", {})
        return state

    def ask(self, what: str, arguments: Mapping[str, str]) -> Any:
        """Return the answer to a question about the farm as JSON data. Raises FarmError."""
        limit_s = self._answer_s
        answer = self._running().ask(what, arguments, None if limit_s == math.inf else limit_s)
        self._answer_s = self._patience_s  # the farm has been there
        return answer

    def close(self) -> None:
        """Send a goodbye and close; calls without an outcome fail with Cancelled."""
        with self._lock:
            self._closed = True
            end = self._end
        if end is not None:
            self._finish()
