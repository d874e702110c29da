"""The progress of sweeps, experiments and named chains, also of those in other processes.

A sweep or experiment reports its progress about once a second, by the question `progress` of its
client. Without a report for a while it has left; once it has ended it stays a while longer.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from farm.call import LONGEST_NAME
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
RUNNING = "running"


@dataclass(frozen=True, slots=True)
class Report:
    """One report. began_at: when the first report of the same sweep came."""

    kind: str
    name: str
    client: str
    state: str
    done: int
    failed: int
    total: int | None
    calls_per_s: float
    ends_in_s: float | None
    at: float
    began_at: float

    def row(self, now: float) -> dict[str, Any]:
        """Return the report as JSON data for this moment."""
        ends_in_s = None
        if self.ends_in_s is not None and self.state == RUNNING:
            ends_in_s = max(0.0, self.ends_in_s - (now - self.at))
        return {
            "kind": self.kind,
            "name": self.name,
            "client": self.client,
            "state": self.state,
            "done": self.done,
            "failed": self.failed,
            "total": self.total,
            "calls_per_s": self.calls_per_s,
            "ends_in_s": ends_in_s,
            "since_s": now - self.began_at,
        }


class ProgressBoard:
    """The reports of sweeps and experiments, and beside them the chains of the dispatcher."""

    def __init__(
        self, dispatcher: Dispatcher, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._dispatcher = dispatcher
        self._clock = clock
        self._reports: OrderedDict[tuple[str, str, str], Report] = OrderedDict()
        dispatcher.offer("progress", self.answer)
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
        now = self._clock()
        key = kind, client, identity or name
        known = self._reports.pop(key, None)
        self._reports[key] = Report(
            kind=kind,
            name=name,
            client=client,
            state=arguments.get("state", RUNNING)[:LONGEST_NAME],
            done=_count(arguments, "done") or 0,
            failed=_count(arguments, "failed") or 0,
            total=_count(arguments, "total"),
            calls_per_s=_number(arguments, "calls_per_s") or 0.0,
            ends_in_s=_number(arguments, "ends_in_s"),
            at=now,
            began_at=now if known is None or known.state != RUNNING else known.began_at,
        )
        if len(self._reports) > KEPT:
            self._reports.popitem(last=False)
        return []

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the rows: first those that run, then those that have ended, then chains."""
        now = self._clock()
        for key, report in list(self._reports.items()):
            if now - report.at > (SILENT_S if report.state == RUNNING else SHOWN_S):
                del self._reports[key]
        reports = sorted(self._reports.values(), key=lambda r: (r.state != RUNNING, -r.began_at))
        chains = self._dispatcher.chains.snapshot(self._dispatcher.view.sent(), now)
        named = (row for row in chains if row["chain"])
        return [
            *(report.row(now) for report in reports),
            *(_of_chain(row) for row in islice(named, CHAINS_SHOWN)),
        ]


def _of_chain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
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


def _number(arguments: Mapping[str, str], name: str) -> float | None:
    """Return a number of at least 0; None if it is not given. Raises InvalidInput."""
    text = arguments.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise InvalidInput(f"{name} is {text!r:.40}; expected a number of at least 0")
    return value


def _count(arguments: Mapping[str, str], name: str) -> int | None:
    value = _number(arguments, name)
    return None if value is None else int(value)
