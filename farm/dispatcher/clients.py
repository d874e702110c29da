"""Who uses a farm: what each client has open and has had answered, and its share of the workers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from farm.dispatcher.tally import BUCKETS, Tally
from farm.scheduler.view import ClientCalls

KEPT = 1000
"""Most clients with a row of their own; the others, which called less lately, share one."""

BUCKET_S = 15.0

SHARE_OVER_S = BUCKET_S * BUCKETS
"""Shares of worker-seconds and rates are over these three minutes."""

OTHERS = "(others)"
"""The name in the row of all clients without a row of their own."""


class Clients:
    """The answers of each client since the farm started.

    Open calls are not counted here: the accounts that share the workers between clients know them.
    """

    def __init__(self) -> None:
        self._by_name: OrderedDict[str, Tally] = OrderedDict()
        self._others: Tally | None = None
        self._forgotten = 0
        self._last: str | None = None  # the client that was answered last

    def answered(self, name: str, done: int, failed: int, worker_s: float, now: float) -> None:
        """Count answers to a client. worker_s: the worker-seconds that these took."""
        tally = self._by_name.get(name)
        if tally is not None and name == self._last:  # which spares an order for most answers
            tally.answered(done, failed, now, worker_s)
            return
        self._last = name
        if tally is None:
            tally = self._by_name[name] = Tally(now, BUCKET_S)
            if len(self._by_name) > KEPT:
                self._forget(now)
        else:
            self._by_name.move_to_end(name)
        tally.answered(done, failed, now, worker_s)

    def _forget(self, now: float) -> None:
        _, oldest = self._by_name.popitem(last=False)
        if self._others is None:
            self._others = Tally(oldest.began_at, BUCKET_S)
        self._others.add(oldest)
        self._forgotten += 1

    def snapshot(self, open_calls: Mapping[str, ClientCalls], now: float) -> list[dict[str, Any]]:
        """Return a row for each client, those with the largest share of the workers first.

        open_calls: of the clients that have any now.
        """
        names = [*self._by_name, *(name for name in open_calls if name not in self._by_name)]
        rows = [_row(n, self._by_name.get(n), open_calls.get(n), now) for n in names]
        rest = Tally(now, BUCKET_S) if self._others is None else self._others
        in_sum = _row(OTHERS, rest, None, now) | {"others": self._forgotten}
        rows.sort(key=_place)
        for row in rows[KEPT:]:
            in_sum["others"] += 1
            for key in ("callers", "queued", "running", "done", "failed", "worker_s", "recent_s"):
                in_sum[key] += row[key]
            in_sum["calls_per_s"] += row["calls_per_s"]
        rows = rows[:KEPT]
        if in_sum["others"]:
            rows.append(in_sum)
        all_s = sum(row["recent_s"] for row in rows)
        for row in rows:
            recent_s = row.pop("recent_s")
            row["share"] = recent_s / all_s if all_s > 0.0 else 0.0
        return rows


def _row(name: str, tally: Tally | None, opened: ClientCalls | None, now: float) -> dict[str, Any]:
    opened = opened or ClientCalls()
    tally = tally or Tally(now, BUCKET_S)
    per_s, recent_s = tally.lately(now)
    return {
        "client": name,
        "others": 0,
        "callers": opened.callers,
        "queued": opened.queued,
        "running": opened.running,
        "done": tally.done,
        "failed": tally.failed,
        "share": 0.0,
        "worker_s": tally.worker_s + opened.busy_s,
        "recent_s": recent_s + min(SHARE_OVER_S * opened.running, opened.busy_s),
        "calls_per_s": per_s,
        "last_s": None if tally.last_at is None else now - tally.last_at,
    }


def _place(row: Mapping[str, Any]) -> tuple[float, int, str]:
    return -row["recent_s"], -(row["queued"] + row["running"]), row["client"]
