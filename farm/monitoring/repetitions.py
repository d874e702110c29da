"""A log that stays short when the same happens again and again.

The first event of a kind is logged at once, further ones are counted, and every few seconds one
line reports their number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

EVERY_S = 5.0
"""Time in seconds between two lines about one kind of event."""

MOST_KINDS = 20
"""Most kinds that are logged in that time; a last line has the number of the others."""

Later = Callable[[float, Callable[[], None]], object]
Line = Callable[[int], str]


@dataclass(slots=True)
class _Unsaid:
    """Events of one kind since the last line about it: how often, and the words for the last."""

    level: int
    count: int
    line: Line


class Repetitions:
    """Logs events at a bounded rate.

    later: calls a function after a number of seconds. others: the line for events of other kinds,
    if there are more kinds than are logged, with %d for their number.
    """

    def __init__(self, log: logging.Logger, later: Later, others: str) -> None:
        self._log = log
        self._later = later
        self._others_line = others
        self._held: dict[object, _Unsaid] = {}
        self._others = 0
        self._is_waiting = False

    def happened(self, key: object, level: int, count: int, line: Line) -> None:
        """Log a line now, or count for the next one.

        key: the kind of event; count: how many there were; line: returns the text for a number.
        """
        held = self._held.get(key)
        if held is not None:
            held.count, held.line = held.count + count, line
            return
        if not self._log.isEnabledFor(level):
            return
        if len(self._held) >= MOST_KINDS:
            self._others += count
            return
        self._log.log(level, "%s", line(count))
        self._held[key] = _Unsaid(level, 0, line)
        self._wait()

    def report(self) -> None:
        """Log the events since the last lines; forget the kinds that had none."""
        self._is_waiting = False
        before, self._held = self._held, {}
        for key, held in before.items():
            if held.count:
                self._log.log(held.level, "%s", held.line(held.count))
                self._held[key] = _Unsaid(held.level, 0, held.line)
        if self._others:
            self._log.info(self._others_line, self._others)
            self._others = 0
        if self._held:
            self._wait()

    def _wait(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self._later(EVERY_S, self.report)
