"""State that a farm persists so that a restarted one can re-adopt its jobs.

A server that is killed leaves jobs alive, and clients that resend their calls before any worker
returns. The next farm knows the jobs and submissions from a file, finds others by its identity,
and recognizes the calls by the models.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from farm.call import ModelInfo
from farm.errors import Unavailable
from farm.machine.private import private_opener, read_private, replace_private
from farm.provision.batch.kinds import WorkerKind

log = logging.getLogger(__name__)

JobKey = tuple[str, str, str]
"""The id, name and kind of a job; the id is empty as long as it is not known."""


class RestartState:
    """The identity of a run folder's farm, its jobs, and the models served by its kinds of workers.

    Raises OSError if the folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = folder / "models.json"
        self._jobs_path = folder / "jobs.json"
        is_new, self.identity = _identity(folder / "identity")
        self._jobs: list[JobKey] | None = None
        if is_new:
            self.keep_jobs([])
        else:
            self._jobs = self._read_jobs()

    def jobs(self) -> list[JobKey] | None:
        """Return the jobs that may live; None if they are unknown."""
        return self._jobs

    def keep_jobs(self, jobs: list[JobKey]) -> None:
        """Save the jobs that may live, if they have changed."""
        if jobs == self._jobs:
            return
        self._jobs = jobs
        try:
            self._write(self._jobs_path, jobs)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._jobs_path, error)
            with contextlib.suppress(OSError):
                self._jobs_path.unlink(missing_ok=True)  # better no list than a wrong one

    def _read_jobs(self) -> list[JobKey] | None:
        try:
            rows = json.loads(read_private(self._jobs_path))
            return [(str(job_id), str(name), str(kind)) for job_id, name, kind in rows]
        except FileNotFoundError:
            return None
        except (OSError, TypeError, ValueError, Unavailable) as error:
            log.warning("%s cannot be read: %s", self._jobs_path, error)
            return None

    def models(self, kind: WorkerKind) -> list[ModelInfo] | None:
        """Return the models that workers of a kind served before the restart; None if unknown.

        If the files that a kind loads have changed, it counts as another kind.
        """
        known = self._read().get(kind.name)
        if not isinstance(known, dict) or known.get("loads") != list(kind.models):
            return None
        try:
            return [ModelInfo.from_json(row) for row in known["serves"]]
        except (KeyError, TypeError, ValueError) as error:
            log.warning("%s cannot be used: %s", self._path, error)
            return None

    def keep(self, kind: WorkerKind, models: Sequence[ModelInfo]) -> None:
        """Save the models that workers of a kind serve."""
        rows = [model.to_json() for model in models]
        known = {**self._read(), kind.name: {"loads": list(kind.models), "serves": rows}}
        try:
            self._write(self._path, known)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error)

    def _write(self, path: Path, data: object) -> None:
        replace_private(path, (json.dumps(data, indent=1) + "\n").encode())

    def forget_models(self) -> None:
        """Forget the models; called when no job is left, because the next ones may load others."""
        self._path.unlink(missing_ok=True)

    def _read(self) -> Mapping[str, object]:
        try:
            data = json.loads(read_private(self._path))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, Unavailable) as error:
            log.warning("%s cannot be read: %s", self._path, error)
            return {}
        return data if isinstance(data, dict) else {}


def _identity(path: Path) -> tuple[bool, str]:
    """Return the name of this run folder's farm in job names, and whether it is new."""
    try:
        with open(path, "x", encoding="ascii", opener=private_opener) as file:
            file.write(secrets.token_hex(4))
        is_new = True
    except FileExistsError:
        is_new = False
    return is_new, path.read_text(encoding="ascii").strip()


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
