"""The failures of a farm: calls, in groups by model, kind of error and text; and lost workers."""

from __future__ import annotations

import math
import re
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from farm.call import EMPTY_CONFIG, Array, Call, WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.ended import EndedCall, Failure, to_unix
from farm.dispatcher.events import Departure
from farm.errors import InvalidInput, LossCause, printable
from farm.monitoring.repetitions import cut, end_of, id_of, shape_of

MOST_INPUTS = 8
SHOWN_WHOLE = 8
"""Values of an input that are all shown; of more, the first `AT_START` and the last `AT_END`."""

AT_START, AT_END = 5, 2

LONGEST_VALUE = 40
LONGEST_CONFIG = 100
LONGEST_SUMMARY = 500


def summary(call: Call, row: int | None, names: Sequence[str] = ()) -> str:
    """Return the inputs of a call in one line, such as `x = [1.0, 2.5]; config {"mesh": 2}`.

    row: of a call of rows, the one to show; None: the first. names: of the model's inputs, if it
    has some. The cost is bounded, however long the inputs are.
    """
    parts = []
    for number, array in enumerate(call.inputs[:MOST_INPUTS]):
        name = names[number] if number < len(names) else ""
        values = array if call.rows is None else array[row or 0, ...]
        parts.append(f"{name or f'input {number}'} = {_values(values)}")
    if len(call.inputs) > MOST_INPUTS:
        parts.append(f"and {len(call.inputs) - MOST_INPUTS} more inputs")
    if call.config != EMPTY_CONFIG:
        parts.append(f"config {cut(call.config, LONGEST_CONFIG)}")
    if call.rows is not None and call.rows > 1 and row is None:
        parts.append(f"the first of {call.rows} rows that ran together")
    return cut(printable("; ".join(parts)), LONGEST_SUMMARY)


def _values(values: Array) -> str:
    if values.ndim == 0:
        return _value(values[()])
    if values.size <= SHOWN_WHOLE:
        text = f"[{', '.join(map(_value, values.flat))}]"
        return text if values.ndim == 1 else f"{text} of shape {list(values.shape)}"
    first = ", ".join(_value(value) for value in islice(values.flat, AT_START))
    last = ", ".join(_value(values.flat[i]) for i in range(values.size - AT_END, values.size))
    size = f"{values.size} values" if values.ndim == 1 else f"of shape {list(values.shape)}"
    return f"[{first}, \u2026, {last}] ({size})"


def _value(value: Any) -> str:
    if isinstance(value, bytes):
        value = value[:LONGEST_VALUE]
    plain = value.item() if hasattr(value, "item") else value
    return cut(repr(plain), LONGEST_VALUE)


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
"""Begins the part of an error's text with its call's history (scheduler/outcomes.py)."""

Key = tuple[str, str, str, str]


class Failures:
    """Groups of calls that failed for one reason, in bounded memory and at a bounded cost.

    It answers the question `failures` from these, and from the groups of lost workers. Each group
    shows one call as an example: text, worker, client and inputs are those of the same call, so
    that people can see which inputs the text is about; so is the detail, if that call had one.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._models = dispatcher.models()
        self._groups: OrderedDict[Key, dict[str, Any]] = OrderedDict()  # JSON data
        self._example_at: dict[Key, float] = {}
        self._second = 0
        self._summaries = 0  # made in this second
        self._losses = Losses(dispatcher)
        self._ended = dispatcher.ended
        dispatcher.ended.add_window(self)
        dispatcher.add_part("failures", self.snapshot)
        dispatcher.offer("failures", self.answer)

    def fold(self, records: Sequence[EndedCall]) -> None:
        """Take the records since the last time."""
        unix = to_unix()
        for ended in records:
            if ended.failure is not None:
                self.failed(ended.failure, unix + ended.at)

    def failed(self, failure: Failure, now: float) -> None:
        """Count calls that failed now, a Unix time."""
        call = failure.call
        model, operation = cut(printable(call.model), LONGEST_NAME), str(call.operation)
        key = model, operation, type(failure.error).__name__, shape_of_error(failure)
        group = self._groups.get(key)
        if group is None:
            alike = [known for known in self._groups if _kind(known) == _kind(key)]
            if len(alike) >= MOST_OF_A_KIND or len(self._groups) >= MOST_GROUPS:
                oldest = alike[0] if len(alike) >= MOST_OF_A_KIND else next(iter(self._groups))
                del self._groups[oldest]
                self._example_at.pop(oldest, None)
            group = self._groups[key] = {
                "id": id_of(*key),
                "kind": key[2],
                "model": model,
                "operation": operation,
                "text": "",
                "count": 0,
                "first": now,
                "last": now,
                "worker": None,
                "client": "",
                "inputs": "",
                "detail": "",
            }
        self._groups.move_to_end(key)
        group["count"] += failure.calls
        group["last"] = now
        if now - self._example_at.get(key, -math.inf) < EXAMPLE_EVERY_S:
            return
        if int(now) != self._second:
            self._second, self._summaries = int(now), 0
        self._summaries += 1
        if self._summaries > SUMMARIES_PER_S and group["text"]:
            return
        group["inputs"] = ""
        if self._summaries <= SUMMARIES_PER_S:
            info = self._models.get(call.model)
            names = [] if info is None else [tensor.name for tensor in info.inputs]
            group["inputs"] = summary(call, failure.row, names)
            self._example_at[key] = now
        group |= {
            "text": cut(failure.error.message.partition("\n")[0], LONGEST_TEXT),
            "worker": cut(printable(failure.worker), LONGEST_NAME) or None,
            "client": cut(printable(failure.client), LONGEST_NAME),
        }
        if failure.error.detail:  # otherwise that of the one before stays
            group["detail"] = end_of(failure.error.detail, LONGEST_DETAIL)

    def snapshot(self, *, details: bool = False) -> list[dict[str, Any]]:
        """Return the groups as JSON data, the one seen last first. details: with theirs."""
        shown = reversed(self._groups.values())
        return [{k: each[k] for k in each if details or k != "detail"} for each in shown]

    def answer(self, arguments: Mapping[str, str]) -> Any:
        """Return the groups of failed calls as JSON data, the one seen last first.

        arguments: `detail=all` adds their details, such as tracebacks; `id` selects one group, also
        of lost workers, with its detail. Raises InvalidInput if there is no such group.
        """
        self._ended.fold()
        wanted = arguments.get("id", "")
        if not wanted:
            return self.snapshot(details=arguments.get("detail") == "all")
        groups = [*self.snapshot(details=True), *self._losses.snapshot()]
        for group in groups:
            if group["id"] == wanted:
                return group
        raise InvalidInput(
            f"no reason of failures has the id {wanted!r:.40}; `farm failures --all` lists the "
            f"{len(groups)} that are kept"
        )


def shape_of_error(failure: Failure) -> str:
    """Return the text of a failure without what differs between failures of one reason."""
    return shape_of(failure.error.message.partition(STORY)[0], failure.worker)


def _kind(key: Key) -> tuple[str, str]:
    model, _, kind, _ = key
    return model, kind


MOST_LOSSES = 100
"""Groups that are kept; then the one that was last seen longest ago is forgotten."""

MOST_HOSTS = 16
"""Hosts that a group names."""

LONGEST_OUTPUT = 4000

_EXIT_CODE = re.compile(r"exit code (\d+)")
_SIGNAL = re.compile(r"signal (SIG[A-Z0-9]+|\d+)")


class Losses:
    """Groups of lost workers; a worker that was drained or stopped in order is none."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._groups: OrderedDict[tuple[LossCause, str], dict[str, Any]] = OrderedDict()
        dispatcher.on_left.append(self.left)
        dispatcher.add_part("losses", self.snapshot)

    def left(self, info: WorkerInfo, departure: Departure) -> None:
        """Count a worker that left, if it was lost."""
        if departure.in_order:
            return
        key = departure.cause, shape_of(departure.reason, info.name)
        now = time.time()
        known = self._groups.pop(key, {"first": now, "count": 0, "hosts": {}, "detail": ""})
        host, hosts = cut(info.host, LONGEST_NAME), dict(known["hosts"])
        if host in hosts or len(hosts) < MOST_HOSTS:
            hosts[host] = hosts.get(host, 0) + 1
        text = cut(printable(departure.reason), LONGEST_TEXT)
        code, name = _EXIT_CODE.search(text), _SIGNAL.search(text)
        detail = end_of(printable(departure.detail), LONGEST_OUTPUT)
        self._groups[key] = {
            "id": id_of(*key),
            "cause": str(departure.cause),
            "text": text,
            "count": known["count"] + 1,
            "first": known["first"],
            "last": now,
            "worker": cut(info.name, LONGEST_NAME),
            "host": host,
            "hosts": hosts,
            "exit_code": None if code is None else int(code[1]),
            "signal": "" if name is None else name[1],
            "detail": detail or known["detail"],
        }
        if len(self._groups) > MOST_LOSSES:
            self._groups.popitem(last=False)

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the groups as JSON data, the one seen last first."""
        return list(reversed(self._groups.values()))
