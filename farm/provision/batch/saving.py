"""Saves what the next farm has to know, in a thread: the run folder's file system may be slow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from farm.call import ModelInfo
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.restart_state import JobKey, RestartState

log = logging.getLogger(__name__)


class Saving:
    """Writes a `RestartState` without blocking the event loop, in the order of the calls.

    Of several lists of jobs that wait to be written, only the last one is.
    """

    def __init__(self, state: RestartState) -> None:
        self._state = state
        self._thread = ThreadPoolExecutor(1, "saving")
        self._last: asyncio.Future[None] | None = None
        # Read by the thread.
        self._jobs: list[JobKey] | None = state.jobs()

    def jobs(self, jobs: list[JobKey]) -> None:
        """Save the jobs that may live, if they have changed."""
        if jobs != self._jobs:
            self._jobs = jobs
            self._begin(partial(self._write_jobs, jobs))

    def models(self, kind: WorkerKind, models: Sequence[ModelInfo]) -> None:
        """Save the models that workers of a kind serve."""
        self._begin(partial(self._state.keep, kind, models))

    def forget_models(self) -> None:
        """Forget the models, because no job is left."""
        self._begin(self._state.forget_models)

    async def done(self, within_s: float | None = None) -> None:
        """Return when all that was to be saved so far is written, or after `within_s` seconds."""
        if self._last is not None:
            await asyncio.wait({self._last}, timeout=within_s)

    def _write_jobs(self, jobs: list[JobKey]) -> None:
        if jobs is self._jobs:  # otherwise a newer list follows
            self._state.keep_jobs(jobs)

    def _begin(self, write: Callable[[], None]) -> None:
        def run() -> None:
            try:
                write()
            except Exception:
                log.exception("the state for the next farm cannot be saved")

        self._last = asyncio.get_running_loop().run_in_executor(self._thread, run)
