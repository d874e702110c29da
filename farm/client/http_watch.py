"""Notices that a farm reached over HTTP is silent, and gives up on it when the patience ends.

A request has no time limit, because a model may run for hours. So while calls or questions are
open and nothing has arrived for a while, one thread asks the farm whether it lives, over a
connection of its own. After the first contact only farms are asked: other servers may not answer
while a model runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from farm.client.http_calls import HttpCalls
from farm.errors import FarmError, Unavailable
from farm.http1.client import Cancellation, HttpClient
from farm.machine.daemon_pool import DaemonPool
from farm.machine.forks import renew_in_children

ASK_AFTER_S = 10.0
"""The client asks after this silence. Natively it is shorter, but there no connection is made."""

ASKS_WITHIN_PATIENCE = 6
"""A shorter patience has room for so many questions."""

TICK_S = 0.5
"""How often the thread checks the time while something is open."""

LIVE = "/v2/health/live"
"""A path that a farm answers at once, whatever it waits for; other servers answer with an error."""

GATEWAY = (502, 504)
"""Statuses of a proxy whose farm does not answer."""


class FarmWatch:
    """Fails what is open among `calls` when the farm of `client` is silent for `patience_s`.

    A thread runs while something is open; time in which it did not run is not counted.
    """

    def __init__(self, client: HttpClient, calls: HttpCalls, patience_s: float) -> None:
        self._client = client
        self._calls = calls
        self._patience_s = patience_s
        self._ask_after_s = min(ASK_AFTER_S, patience_s / ASKS_WITHIN_PATIENCE)
        self._answer_s = (patience_s - self._ask_after_s) / 2  # there is time for a second question
        self._pool = DaemonPool(2, "farm client")  # the thread, and its question
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Start without a thread; called in a forked process."""
        self._lock = threading.Lock()
        self._asleep = True  # becomes False under the lock
        self._heard_at = 0.0
        # Used by the thread only, but that a question that is answered removes itself.
        self._idle_at = self._asked_at = 0.0
        self._asked: Cancellation | None = None

    def begin(self) -> None:
        """Watch from now on; something is open."""
        if self._asleep:
            with self._lock:
                if self._asleep:
                    self._asleep = False
                    self._pool.submit(self._run)

    @contextmanager
    def question(self) -> Iterator[Cancellation]:
        """Watch a question within the block, as `HttpCalls.question`."""
        with self._calls.question() as question:
            self.begin()
            yield question

    def heard(self, status: int = 200) -> None:
        """Report an answer of the farm, or part of it."""
        if status not in GATEWAY:
            self._heard_at = time.monotonic()

    def close(self) -> None:
        """Let the threads end; nothing may be opened from here on."""
        self._pool.shutdown()

    # Methods of the threads

    def _run(self) -> None:
        tick_s = min(TICK_S, self._ask_after_s / 2)
        looked_at = self._idle_at = time.monotonic()
        while not self._may_sleep():
            time.sleep(tick_s)
            now = time.monotonic()
            missed_s = now - looked_at - tick_s
            looked_at = now
            if missed_s > tick_s:  # in this time the farm may have answered unheard
                self._idle_at = min(now, self._silent_since() + missed_s)
            self._look(now)
        self._drop_question()

    def _may_sleep(self) -> bool:
        """Whether nothing is open; if so, `begin` starts the thread again."""
        with self._lock:
            self._asleep = True  # first: calls that are opened from here on see it
            self._asleep = not self._calls.has_open()
            return self._asleep

    def _silent_since(self) -> float:
        return max(self._heard_at, self._idle_at)

    def _look(self, now: float) -> None:
        """Ask a silent farm whether it is there; give up after the time limit."""
        silent_s = now - self._silent_since()
        if silent_s <= self._ask_after_s:
            self._drop_question()
            return
        self._calls.fail_late()
        if silent_s > self._patience_s:
            self._drop_question()
            text = f"no word from the server at {self._client.url} for {silent_s:.0f} s"
            hint = "is it running? farm.connect(..., wait=SECONDS) waits longer"
            self._calls.fail_all(Unavailable(f"{text}; {hint}"))
            self._idle_at = now  # the next caller has the whole patience
            return
        if self._asked is not None and now - self._asked_at > self._answer_s:
            self._drop_question()
        if self._asked is None:
            self._asked, self._asked_at = Cancellation(), now
            self._pool.submit(partial(self._ask, self._asked))

    def _drop_question(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.cancel()

    def _ask(self, asked: Cancellation) -> None:
        try:
            status, _, _ = self._client.ask(LIVE, once=True, cancellation=asked)
            self.heard(status)
        except FarmError:
            pass  # the next tick asks again
        if self._asked is asked:
            self._asked = None
