"""The calls of a farm that failed, in groups by model, kind of error and text."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.failing import Failure
from farm.errors import printable
from farm.monitoring.inputs import summary
from farm.monitoring.texts import cut, end_of, id_of, shape_of

MOST_GROUPS = 200
"""Groups that are kept; then the one that was last seen longest ago is forgotten."""

MOST_OF_A_KIND = 50
"""Groups of one model and kind of error: texts that all differ do not crowd out other failures."""

LONGEST_TEXT = 300
LONGEST_NAME = 100
LONGEST_DETAIL = 8000

EXAMPLE_EVERY_S = 1.0
"""The call that a group shows is older than its last failure by at most this many seconds."""

SUMMARIES_PER_S = 100
"""Summaries of inputs made per second, for all groups together."""

STORY = "; what happened:"
"""Begins the part of an error's text that tells what happened to the call (scheduler/story.py)."""

Key = tuple[str, str, str, str]


class FailureGroup:
    """Calls that failed for one reason, and one of them as an example.

    Text, worker, client and inputs are those of the same call, so that people can see which inputs
    the text is about; so is the detail, if that call had one.
    """

    __slots__ = (
        *("client", "count", "detail", "example_at", "first", "inputs", "key", "last"),
        *("operation", "text", "worker"),
    )

    def __init__(self, key: Key, first: float) -> None:
        self.key = key
        self.first = self.last = first
        self.count = 0
        self.text = self.worker = self.client = self.detail = self.inputs = ""
        self.example_at = float("-inf")

    def add(self, failure: Failure, now: float) -> None:
        """Count calls. now: Unix time."""
        self.count += failure.calls
        self.last = now

    def show(self, failure: Failure, inputs: str) -> None:
        """Make a failed call the example. Without a detail it keeps that of the one before."""
        self.inputs = inputs
        self.text = cut(failure.error.message.partition("\n")[0], LONGEST_TEXT)
        self.worker = cut(printable(failure.worker), LONGEST_NAME)
        self.client = cut(printable(failure.client), LONGEST_NAME)
        if failure.error.detail:
            self.detail = end_of(failure.error.detail, LONGEST_DETAIL)

    def shown(self) -> dict[str, Any]:
        """Return the group as JSON data, without its detail."""
        model, operation, kind, _ = self.key
        return {
            "id": id_of(*self.key),
            "kind": kind,
            "model": model,
            "operation": operation,
            "text": self.text,
            "count": self.count,
            "first": self.first,
            "last": self.last,
            "worker": self.worker or None,
            "client": self.client,
            "inputs": self.inputs,
        }


class Failures:
    """Groups of failed calls, in bounded memory and at a bounded cost for each call."""

    def __init__(self, dispatcher: Dispatcher, clock: Callable[[], float] = time.time) -> None:
        self._models = dispatcher.models()
        self._clock = clock
        self._groups: OrderedDict[Key, FailureGroup] = OrderedDict()
        self._of_a_kind: Counter[tuple[str, str]] = Counter()
        self._second = 0
        self._summaries = 0  # made in this second
        dispatcher.on_failed.append(self.failed)
        dispatcher.add_part("failures", self.snapshot)

    def failed(self, failure: Failure) -> None:
        """Count calls that failed."""
        now = self._clock()
        group = self._group_of(failure, now)
        group.add(failure, now)
        if now - group.example_at < EXAMPLE_EVERY_S:
            return
        if self._may_summarise(now):
            info = self._models.get(failure.call.model)
            names = [] if info is None else [tensor.name for tensor in info.inputs]
            group.show(failure, summary(failure.call, failure.row, names))
            group.example_at = now
        elif not group.text:
            group.show(failure, "")

    def _group_of(self, failure: Failure, now: float) -> FailureGroup:
        """Return the group of a failure, which is then the one that was seen last."""
        call, error = failure.call, failure.error
        model = cut(printable(call.model), LONGEST_NAME)
        key = model, str(call.operation), type(error).__name__, shape_of_error(failure)
        group = self._groups.get(key)
        if group is None:
            self._make_room(key)
            self._of_a_kind[_kind(key)] += 1
            group = self._groups[key] = FailureGroup(key, now)
        self._groups.move_to_end(key)
        return group

    def _make_room(self, key: Key) -> None:
        """Forget the group seen longest ago, of all or of this kind, if there are too many."""
        if self._of_a_kind[_kind(key)] >= MOST_OF_A_KIND:
            oldest = next(known for known in self._groups if _kind(known) == _kind(key))
        elif len(self._groups) >= MOST_GROUPS:
            oldest = next(iter(self._groups))
        else:
            return
        del self._groups[oldest]
        self._of_a_kind[_kind(oldest)] -= 1

    def _may_summarise(self, now: float) -> bool:
        if int(now) != self._second:
            self._second, self._summaries = int(now), 0
        self._summaries += 1
        return self._summaries <= SUMMARIES_PER_S

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the groups as JSON data, the one seen last first, without their details."""
        return [group.shown() for group in reversed(self._groups.values())]

    def with_details(self) -> list[dict[str, Any]]:
        """Return the groups like `snapshot`, with their details."""
        return [
            {**group.shown(), "detail": group.detail} for group in reversed(self._groups.values())
        ]


def shape_of_error(failure: Failure) -> str:
    """Return the text of a failure without what differs between failures of one reason."""
    return shape_of(failure.error.message.partition(STORY)[0], failure.worker)


def _kind(key: Key) -> tuple[str, str]:
    model, _, kind, _ = key
    return model, kind
