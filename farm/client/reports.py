"""Sends reports of progress to a farm, at most one a second, on a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from farm.client.line import Line
from farm.errors import FarmError, Unavailable
from farm.machine.forks import renew_in_children

EVERY_S = 1.0
"""Seconds between two reports; later ones replace those that have not been sent."""

LAST_S = 1.0
"""Seconds that a client that closes waits for its last report."""


def report_of(kind: str, name: str, **values: Any) -> dict[str, str]:
    """Return the arguments of the question `progress`; values: as of `Client.report_progress`."""
    told = {"kind": kind, "name": name, "client": "", "state": "running", **values}
    told |= {"id": told.pop("identity", ""), "calls_per_s": told.pop("per_s", None)}
    return {key: str(value) for key, value in told.items() if value is not None}


class ProgressReports:
    """The reports of one client. They are a service to people: errors are dropped.

    A server that takes no reports gets no more of them.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._is_refused = False
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Start without reports; also called in a forked process."""
        self._changed = threading.Condition()
        # Guarded by the condition.
        self._latest: dict[str, Mapping[str, str]] = {}
        self._is_sending = False
        self._closed = False

    def put(self, key: str, report: Mapping[str, str]) -> None:
        """Send a report soon. key: a later report with the same key replaces it."""
        with self._changed:
            if self._is_refused or self._closed:
                return
            self._latest[key] = report
            if not self._is_sending:
                self._is_sending = True
                threading.Thread(target=self._send, name="farm reports", daemon=True).start()

    def close(self) -> None:
        """Send what there is, for a moment, and take no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_sending, LAST_S)

    def _send(self) -> None:
        while True:
            with self._changed:
                if not self._latest or self._is_refused:
                    self._is_sending = False
                    self._changed.notify_all()
                    return
                reports, self._latest = list(self._latest.values()), {}
            for report in reports:
                self._ask(report)
            with self._changed:
                self._changed.wait_for(lambda: self._closed, EVERY_S)

    def _ask(self, report: Mapping[str, str]) -> None:
        try:
            self._line.ask("progress", report)
        except Unavailable:
            pass  # the farm may come back
        except FarmError:
            self._is_refused = True
