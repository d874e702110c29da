"""Group commit: one thread makes the appends of many callers to a journal durable together."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Generic, NamedTuple, TypeVar

from farm.storage.errors import StorageError
from farm.storage.frames import Record
from farm.storage.journal import Journal
from farm.storage.lock import BEAT_S, Lock

logger = logging.getLogger(__name__)

T = TypeVar("T")

MOST_TOGETHER = 1000
"""Most appends in one commit, so that none waits forever for later ones."""


class Append(NamedTuple, Generic[T]):
    """An item to append, and the future that is done when it is on disk."""

    item: T
    done: Future[None]


class Commits(ABC, Generic[T]):
    """Appends items to a journal; items that arrive during one disk sync share the next one.

    A subclass defines `encode` and `explain`, which the thread calls. The thread also sends the
    lock's heartbeats. `close` ends the thread, the journal and the lock.
    """

    def __init__(self, journal: Journal, lock: Lock) -> None:
        """Start the thread."""
        self._journal = journal
        self._lock = lock
        self._appends: queue.SimpleQueue[Append[T] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    @abstractmethod
    def encode(self, item: T) -> Record:
        """Return the record of an item. If it raises, the item's future fails."""

    @abstractmethod
    def explain(self, error: Exception) -> Exception:
        """Return the error of a future whose item cannot be written."""

    def append(self, item: T) -> Future[None]:
        """Append an item atomically; the future is done when the item is on disk.

        It fails with the error that `explain` returns; the item is then not in the journal, and
        later appends may succeed.
        """
        done: Future[None] = Future()
        self._appends.put(Append(item, done))
        return done

    def close(self) -> None:
        """Write all appended items, close the journal and release the lock."""
        self._appends.put(None)
        self._thread.join()
        self._journal.close()
        self._lock.release()

    def _run(self) -> None:
        while True:
            try:
                first = self._appends.get(timeout=BEAT_S)
            except queue.Empty:
                with contextlib.suppress(StorageError, OSError):  # the next append reports it
                    self._lock.beat()
                continue
            together: list[Append[T]] = []
            while first is not None:
                together.append(first)
                if len(together) == MOST_TOGETHER or self._appends.empty():
                    break
                first = self._appends.get()
            if together:
                self._write(together)
            if first is None:
                return

    def _write(self, appends: Sequence[Append[T]]) -> None:
        try:
            records = [self.encode(append.item) for append in appends]
            self._lock.beat()
            self._journal.append_all(records, durable=True)
        except Exception as error:  # the thread must survive any error, to serve other callers
            if len(appends) > 1:  # one item may be the cause, such as one that is too large
                for append in appends:
                    self._write([append])
                return
            logger.error("%s cannot be written: %s", self._journal.path, error)
            appends[0].done.set_exception(self.explain(error))
            return
        for append in appends:
            append.done.set_result(None)
