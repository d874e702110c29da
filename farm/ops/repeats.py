"""Remembers the last answers of an op by the exact bytes of their points."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import numpy as np

from farm.call import Array

POINTS_PER_CHAIN = 128
"""Points kept for each chain. Vectorised NUTS asks again for the last points of chains that have
finished their trees, and a tree has rarely more than 2**7 points between two of its visits."""

MOST_BYTES = 64 * 1024**2
"""Upper bound on the memory of the points and answers, for models with long vectors."""

OVERHEAD_BYTES = 400
"""Memory of one answer besides its numbers: the objects of Python."""

Answer = Array | tuple[Array, ...]


class Repeats:
    """The least recently used answers, bounded in points and in bytes. Threads may share it.

    A point is the bytes of all inputs; each has the answers to some questions about it.
    """

    def __init__(self, *, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._points: OrderedDict[bytes, dict[Hashable, Answer]] = OrderedDict()
        self._chains = 1
        self._bytes = 0

    def __len__(self) -> int:
        """Return the number of points that are kept."""
        return len(self._points)

    def expect(self, chains: int) -> None:
        """Make room for `chains` chains: the points of the longest request so far."""
        self._chains = max(self._chains, chains)

    def find(self, point: bytes, question: Hashable) -> Answer | None:
        """Return the answer, which must not be changed, or None."""
        with self._lock:
            answers = self._points.get(point)
            if answers is None:
                return None
            self._points.move_to_end(point)
            return answers.get(question)

    def keep(self, point: bytes, question: Hashable, answer: Answer) -> None:
        """Keep an answer, and forget the points that were not used for longest."""
        with self._lock:
            answers = self._points.get(point)
            if answers is None:
                answers = self._points[point] = {}
                self._bytes += len(point)
            self._points.move_to_end(point)
            if question not in answers:
                self._bytes += _nbytes(question, answer)
            answers[question] = answer
            while len(self._points) > self._chains * POINTS_PER_CHAIN or (
                self._bytes > self._most_bytes and self._points
            ):
                forgotten, old = self._points.popitem(last=False)
                self._bytes -= len(forgotten) + sum(_nbytes(q, a) for q, a in old.items())


def _nbytes(question: Any, answer: Answer) -> int:
    arrays = answer if isinstance(answer, tuple) else (answer,)
    sent = sum(len(part) for part in question if isinstance(part, bytes))
    return OVERHEAD_BYTES + sent + sum(np.asarray(array).nbytes for array in arrays)
