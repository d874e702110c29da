"""A supervisor's own line to the dispatcher."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from farm.errors import InvalidRequest, LossCause
from farm.transports.connection import Connection
from farm.transports.dial import dial, dial_local
from farm.wire import messages as wire
from farm.wire.messages import Kind

log = logging.getLogger(__name__)

INTRODUCE_EVERY_S = 5.0
"""Interval at which a supervisor announces itself."""

LAST_WORDS_S = 2.0
"""Maximum time that `close` waits until all messages have left this process."""


class Reporter:
    """A supervisor's line to the dispatcher: reports worker deaths, receives the stop request.

    For one thread at a time.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        """`name` is unique for this supervisor, like `node3/4411`."""
        self._connection = connection
        self._name = f"supervisor:{name}"
        self._line = dial(connection, self._name)
        self._stop_asked = False
        self._to_restart: list[str] = []
        self._introduce()

    def _introduce(self) -> None:
        self._introduced_at = time.monotonic()
        self._line.send(wire.encode(Kind.LOST))

    def lost(
        self,
        worker: str,
        reason: str,
        *,
        running: Sequence[int] | None,
        row: int | None = None,
        cause: LossCause = LossCause.UNKNOWN,
        detail: str = "",
    ) -> None:
        """Report that `worker` died, or is about to be killed, while it ran the tasks `running`.

        row: for a run of rows, the row that it was running. detail: its last output.
        """
        ids = None if running is None else list(running)
        loss = wire.Loss(worker, reason, ids, cause, row, detail)
        self._line.send(wire.encode_loss(loss))

    def stop_asked(self) -> bool:
        """Whether the dispatcher has asked for everything to end; poll it."""
        while (frames := self._line.receive()) is not None:
            try:
                message = wire.decode(frames)
                self._stop_asked |= message.kind is Kind.STOP
                if message.kind is Kind.RESTART and isinstance(message.data, list):
                    self._to_restart += map(str, message.data)
            except InvalidRequest as error:
                log.error("message from the dispatcher: %s", error)
        if self._line.ended():
            self._dial_again()
        if time.monotonic() - self._introduced_at > INTRODUCE_EVERY_S:
            self._introduce()  # for a dispatcher that was restarted
        return self._stop_asked

    def to_restart(self) -> Sequence[str]:
        """Return the workers to restart that `stop_asked` has heard of since the last call."""
        workers, self._to_restart = self._to_restart, []
        return workers

    def _dial_again(self) -> None:
        line = dial_local(self._connection, self._name)
        if line is not None:
            self._line.close()
            self._line = line
            self._introduce()

    def close(self) -> None:
        """Close; recently sent messages have two seconds to leave."""
        self._line.flush(LAST_WORDS_S)
        self._line.close()
