"""A pool of daemon threads."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from farm.machine.forks import renew_in_children

T = TypeVar("T")


def aside(work: Callable[..., T], *arguments: Any) -> Future[T]:
    """Return a future of `work(*arguments)`, which a daemon thread of its own does."""
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(work(*arguments))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="aside", daemon=True).start()
    return answer


class DaemonPool:
    """Runs jobs in order of arrival on up to `size` daemon threads, started on demand.

    begin: called in each thread before its first job, with the thread's number from 0.

    The standard library's pool waits for its threads when the program exits, which for a model call
    may take hours; daemon threads end with the program. A forked process has a pool of its own,
    without the jobs of its parent.
    """

    def __init__(self, size: int, name: str, begin: Callable[[int], None] | None = None) -> None:
        self._size = size
        self._name = name
        self._begin = begin
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Start without jobs and threads; called in a forked process, which has no threads."""
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        # Guarded by the lock.
        self._threads: list[threading.Thread] = []

    def submit(self, job: Callable[[], None]) -> None:
        """Run `job` on a thread of the pool; it must not raise."""
        self._jobs.put(job)
        if self._idle.acquire(blocking=False):
            return
        with self._lock:
            if len(self._threads) < self._size:
                number = len(self._threads)
                thread = threading.Thread(
                    target=self._work, args=(number,), name=self._name, daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def shutdown(self) -> None:
        """Let the threads end after the jobs submitted so far; does not wait for them."""
        with self._lock:
            for _ in self._threads:
                self._jobs.put(None)
            self._threads = []

    def _work(self, number: int) -> None:
        if self._begin is not None:
            self._begin(number)
        while (job := self._jobs.get()) is not None:
            job()
            del job  # it may hold large arrays
            self._idle.release()
