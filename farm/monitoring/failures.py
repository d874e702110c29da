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

MOST_LOSSES = 100
"""Groups that are kept; then the one that was last seen longest ago is forgotten."""

MOST_HOSTS = 16
"""Hosts that a group names."""

LONGEST_OUTPUT = 4000

_EXIT_CODE = re.compile(r"exit code (\d+)")
_SIGNAL = re.compile(r"signal (SIG[A-Z0-9]+|\d+)")


class Failures:
    """Groups of calls that failed, or workers that were lost, for one reason, in bounded memory.

    Their cost is bounded, too. A group of calls shows one as an example: text, worker, client and
    inputs are those of the same call, so that people can see which inputs the text is about; so is
    the detail, if that call had one. A worker that was drained or stopped in order is not lost.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._models = dispatcher.models()
        # JSON data: of calls by model, operation, kind of error, text; of workers by cause, text.
        self._groups: OrderedDict[tuple[str, str, str, str], dict[str, Any]] = OrderedDict()
        self._losses: OrderedDict[tuple[LossCause, str], dict[str, Any]] = OrderedDict()
        self._second = 0
        self._summaries = 0  # made in this second
        self._ended = dispatcher.ended
        dispatcher.on_left.append(self.left)
        dispatcher.ended.add_window(self)
        dispatcher.add_part("losses", self.losses)
        dispatcher.add_part("failures", self.snapshot)
        dispatcher.questions.offer("failures", self.answer)

    def fold(self, records: Sequence[EndedCall]) -> None:
        """Take the records since the last time."""
        for ended in records:
            if ended.failure is not None:
                self.failed(ended.failure, to_unix() + ended.at)

    def failed(self, failure: Failure, now: float) -> None:
        """Count calls that failed now, a Unix time."""
        call = failure.call
        model, operation = cut(printable(call.model), LONGEST_NAME), str(call.operation)
        kind = type(failure.error).__name__
        key = model, operation, kind, shape_of_error(failure)
        group = self._groups.get(key)
        if group is None:
            alike = [k for k, g in self._groups.items() if (g["model"], g["kind"]) == (model, kind)]
            if len(alike) >= MOST_OF_A_KIND:
                del self._groups[alike[0]]
            elif len(self._groups) >= MOST_GROUPS:
                self._groups.popitem(last=False)
            group = self._groups[key] = {
                "id": id_of(*key),
                "kind": kind,
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
                "example_at": -math.inf,  # when it was taken; no answer has it
            }
        self._groups.move_to_end(key)
        group["count"] += failure.calls
        group["last"] = now
        if now - group["example_at"] < EXAMPLE_EVERY_S:
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
            group["example_at"] = now
        group |= {
            "text": cut(failure.error.message.partition("\n")[0], LONGEST_TEXT),
            "worker": cut(printable(failure.worker), LONGEST_NAME) or None,
            "client": cut(printable(failure.client), LONGEST_NAME),
        }
        if failure.error.detail:  # otherwise that of the one before stays
            group["detail"] = end_of(failure.error.detail, LONGEST_DETAIL)

    def left(self, info: WorkerInfo, departure: Departure) -> None:
        """Count a worker that left, if it was lost."""
        if departure.in_order:
            return
        key = departure.cause, shape_of(departure.reason, info.name)
        now = time.time()
        known = self._losses.pop(key, {"first": now, "count": 0, "hosts": {}, "detail": ""})
        host, hosts = cut(info.host, LONGEST_NAME), dict(known["hosts"])
        if host in hosts or len(hosts) < MOST_HOSTS:
            hosts[host] = hosts.get(host, 0) + 1
        text = cut(printable(departure.reason), LONGEST_TEXT)
        code, name = _EXIT_CODE.search(text), _SIGNAL.search(text)
        detail = end_of(printable(departure.detail), LONGEST_OUTPUT)
        self._losses[key] = {
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
        if len(self._losses) > MOST_LOSSES:
            self._losses.popitem(last=False)

    def losses(self) -> list[dict[str, Any]]:
        """Return the groups of lost workers as JSON data, the one seen last first."""
        return list(reversed(self._losses.values()))

    def snapshot(self, *, details: bool = False) -> list[dict[str, Any]]:
        """Return the groups of calls as JSON data, last seen first. details: with theirs."""
        hidden = {"example_at"} if details else {"example_at", "detail"}
        shown = reversed(self._groups.values())
        return [{k: each[k] for k in each if k not in hidden} for each in shown]

    def answer(self, arguments: Mapping[str, str]) -> Any:
        """Return the groups of failed calls as JSON data, the one seen last first.

        arguments: `detail=all` adds their details, such as tracebacks; `id` selects one group, also
        of lost workers, with its detail. Raises InvalidInput if there is no such group.
        """
        self._ended.fold()
        wanted = arguments.get("id", "")
        if not wanted:
            return self.snapshot(details=arguments.get("detail") == "all")
        groups = [*self.snapshot(details=True), *self.losses()]
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
