"""Threads that nobody waits for at the end of the program."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]


class Crew:
    """Up to `size` daemon threads, started as they are needed, that do jobs in order of arrival.

    The standard library's pool waits at the end of the program for what its threads do, which for
    a call to a model may take hours; these are left behind.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        # Under the lock.
        self._threads: list[threading.Thread] = []

    def do(self, job: Job) -> None:
        """Have `job` done; it raises nothing."""
        self._jobs.put(job)
        if self._idle.acquire(blocking=False):
            return
        with self._lock:
            if len(self._threads) < self._size:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def dismiss(self) -> None:
        """Let the threads end once they have done what is there."""
        with self._lock:
            for _ in self._threads:
                self._jobs.put(None)
            self._threads = []

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # it may hold large arrays
            self._idle.release()
