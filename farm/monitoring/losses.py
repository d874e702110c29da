"""The workers that a farm has lost, in groups by cause and reason."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from farm.call import WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.events import Departure
from farm.errors import LossCause, printable
from farm.monitoring.texts import cut, end_of, id_of, shape_of

MOST_GROUPS = 100
"""Groups that are kept; then the one that was last seen longest ago is forgotten."""

MOST_HOSTS = 16
"""Hosts that a group names."""

LONGEST_TEXT = 300
LONGEST_NAME = 100
LONGEST_DETAIL = 4000

_EXIT_CODE = re.compile(r"exit code (\d+)")
_SIGNAL = re.compile(r"signal (SIG[A-Z0-9]+|\d+)")


class LossGroup:
    """Workers lost for one reason."""

    __slots__ = ("count", "detail", "first", "host", "hosts", "key", "last", "text", "worker")

    def __init__(self, key: tuple[LossCause, str], first: float) -> None:
        self.key = key
        self.first = self.last = first
        self.count = 0
        self.text = self.worker = self.host = self.detail = ""
        self.hosts: dict[str, int] = {}

    def add(self, info: WorkerInfo, departure: Departure, now: float) -> None:
        """Count a worker. now: Unix time."""
        self.count += 1
        self.last = now
        self.text = cut(printable(departure.reason), LONGEST_TEXT)
        self.worker, self.host = cut(info.name, LONGEST_NAME), cut(info.host, LONGEST_NAME)
        if departure.detail:
            self.detail = end_of(printable(departure.detail), LONGEST_DETAIL)
        if self.host in self.hosts or len(self.hosts) < MOST_HOSTS:
            self.hosts[self.host] = self.hosts.get(self.host, 0) + 1

    def shown(self) -> dict[str, Any]:
        """Return the group as JSON data."""
        code, name = _EXIT_CODE.search(self.text), _SIGNAL.search(self.text)
        return {
            "id": id_of(*self.key),
            "cause": str(self.key[0]),
            "text": self.text,
            "count": self.count,
            "first": self.first,
            "last": self.last,
            "worker": self.worker,
            "host": self.host,
            "hosts": dict(self.hosts),
            "exit_code": None if code is None else int(code[1]),
            "signal": "" if name is None else name[1],
            "detail": self.detail,
        }


class Losses:
    """Groups of lost workers; a worker that was drained or stopped in order is none."""

    def __init__(self, dispatcher: Dispatcher, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._groups: OrderedDict[tuple[LossCause, str], LossGroup] = OrderedDict()
        dispatcher.on_left.append(self.left)
        dispatcher.add_part("losses", self.snapshot)

    def left(self, info: WorkerInfo, departure: Departure) -> None:
        """Count a worker that left, if it was lost."""
        if departure.in_order:
            return
        key = departure.cause, shape_of(departure.reason, info.name)
        now = self._clock()
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = LossGroup(key, now)
            if len(self._groups) > MOST_GROUPS:
                self._groups.popitem(last=False)
        self._groups.move_to_end(key)
        group.add(info, departure, now)

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the groups as JSON data, the one seen last first."""
        return [group.shown() for group in reversed(self._groups.values())]
