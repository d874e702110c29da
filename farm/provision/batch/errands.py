"""Background tasks of a control loop that must not wait for them, at most one for each key."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Errands:
    """Running tasks by key; a failing one is logged."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, key: str, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Start a task unless one with this key is running; return whether it was started."""
        if key in self._tasks:
            return False

        async def run() -> None:
            try:
                await work()
            except Exception:
                log.exception("%s failed", key)
            finally:
                del self._tasks[key]

        self._tasks[key] = asyncio.get_running_loop().create_task(run(), name=key)
        return True

    def is_running(self, beginning: str) -> bool:
        """Whether any task runs whose key begins with this word."""
        return any(key.startswith(beginning) for key in self._tasks)

    def drop(self, key: str) -> None:
        """Cancel the task with this key, if one is running."""
        if (task := self._tasks.get(key)) is not None:
            task.cancel()

    async def cancel(self) -> None:
        """Cancel all tasks and wait for their ends."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
