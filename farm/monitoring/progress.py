"""The progress of sweeps, experiments and named chains, also of those in other processes.

A sweep or experiment reports its progress about once a second, by the question `progress` of its
client. Without a report for a while it has left; once it has ended it stays a while longer.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from farm.call import LONGEST_NAME
from farm.dispatcher.questions import number
from farm.errors import InvalidInput

if TYPE_CHECKING:
    from farm.dispatcher.dispatcher import Dispatcher

KEPT = 200
"""Most sweeps and experiments kept; beyond that, the one that reported first is forgotten."""

CHAINS_SHOWN = 100
"""Most chains listed, those with the latest calls."""

SILENT_S = 30.0
"""A sweep that has not reported for this long has left."""

SHOWN_S = 600.0
"""Seconds for which one that has ended is listed."""

KINDS = ("sweep", "experiment")
NUMBERS = ("done", "failed", "total", "calls_per_s", "ends_in_s")
RUNNING = "running"


class Report(NamedTuple):
    """One report. began_at: when the first of the same sweep came; runs: whether that goes on."""

    row: dict[str, Any]
    at: float
    began_at: float
    runs: bool


class ProgressBoard:
    """The reports of sweeps and experiments, and beside them the chains of the dispatcher."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._reports: OrderedDict[tuple[str, str, str], Report] = OrderedDict()
        dispatcher.questions.offer("progress", self.answer)
        dispatcher.add_part("progress", self.snapshot)

    def answer(self, arguments: Mapping[str, str]) -> list[dict[str, Any]]:
        """Take a report, if there are arguments, or else return the rows.

        Arguments: kind, name, id (which tells two of one name apart), client, state, done, failed,
        total, calls_per_s, ends_in_s. Raises InvalidInput.
        """
        if not arguments:
            return self.snapshot()
        kind = arguments.get("kind", "")
        if kind not in KINDS:
            raise InvalidInput(f"progress of kind {kind!r:.60}; expected {' or '.join(KINDS)}")
        name, client, identity = (
            arguments.get(key, "")[:LONGEST_NAME] for key in ("name", "client", "id")
        )
        now, state = time.monotonic(), arguments.get("state", RUNNING)[:LONGEST_NAME]
        key = kind, client, identity or name
        known = self._reports.pop(key, None)
        told = {k: number(arguments, k) for k in NUMBERS}
        row = {
            "kind": kind,
            "name": name,
            "client": client,
            "state": state,
            "done": int(told["done"] or 0),
            "failed": int(told["failed"] or 0),
            "total": None if told["total"] is None else int(told["total"]),
            "calls_per_s": told["calls_per_s"] or 0.0,
            "ends_in_s": told["ends_in_s"],
        }
        began_at = known.began_at if known is not None and known.runs else now
        self._reports[key] = Report(row, now, began_at, state == RUNNING)
        if len(self._reports) > KEPT:
            self._reports.popitem(last=False)
        return []

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the rows: first those that run, then those that have ended, then chains."""
        now = time.monotonic()
        for key, report in list(self._reports.items()):
            if now - report.at > (SILENT_S if report.runs else SHOWN_S):
                del self._reports[key]
        reports = sorted(self._reports.values(), key=lambda r: (not r.runs, -r.began_at))
        rows = []
        for row, at, began_at, runs in reports:
            ends_in_s = row["ends_in_s"] if runs else None
            if ends_in_s is not None:
                ends_in_s = max(0.0, ends_in_s - (now - at))
            rows.append({**row, "ends_in_s": ends_in_s, "since_s": now - began_at})
        chains = self._dispatcher.chains.snapshot(self._dispatcher.view.sent(), now)
        for row in islice((row for row in chains if row["chain"]), CHAINS_SHOWN):
            rows.append(
                {
                    "kind": "chain",
                    "name": row["chain"],
                    "client": row["client"],
                    "state": RUNNING if row["queued"] + row["in_flight"] else "idle",
                    "done": row["done"],
                    "failed": row["failed"],
                    "total": None,
                    "calls_per_s": row["calls_per_s"],
                    "ends_in_s": None,
                    "since_s": row["began_s"],
                }
            )
        return rows
