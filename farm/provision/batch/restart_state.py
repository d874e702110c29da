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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from farm.call import ModelInfo
from farm.errors import Unavailable
from farm.machine.private import private_opener, read_private, replace_private
from farm.provision.batch.kinds import WorkerKind

log = logging.getLogger(__name__)

JobKey = tuple[str, str, str]
"""The id, name and kind of a job; the id is empty as long as it is not known."""


class RestartState:
    """The identity of a run folder's farm, its jobs, and the models served by its kinds of workers.

    What is saved is written without blocking the event loop, in the order of the calls; of several
    lists of jobs that wait to be written, only the last one is. Raises OSError if the folder cannot
    be used.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._models_path, self._jobs_path = folder / "models.json", folder / "jobs.json"
        self._thread = ThreadPoolExecutor(1, "saving")
        self._last: asyncio.Future[None] | None = None
        # Read by the thread.
        self._jobs: list[JobKey] | None = None
        try:
            with open(folder / "identity", "x", encoding="ascii", opener=private_opener) as file:
                file.write(secrets.token_hex(4))
        except FileExistsError:
            self._jobs = self._read_jobs()
        else:
            self._jobs = []
            self.write_jobs([])
        self.identity = (folder / "identity").read_text(encoding="ascii").strip()

    def jobs(self) -> list[JobKey] | None:
        """Return the jobs that may live; None if they are unknown."""
        return self._jobs

    def models(self, kind: WorkerKind) -> list[ModelInfo] | None:
        """Return the models that workers of a kind served before the restart; None if unknown.

        If the files that a kind loads have changed, it counts as another kind.
        """
        known = self._read_models().get(kind.name)
        if not isinstance(known, dict) or known.get("loads") != list(kind.models):
            return None
        try:
            return [ModelInfo.from_json(row) for row in known["serves"]]
        except (KeyError, TypeError, ValueError) as error:
            log.warning("%s cannot be used: %s", self._models_path, error)
            return None

    def save_jobs(self, jobs: list[JobKey]) -> None:
        """Save the jobs that may live, if they have changed."""
        if jobs != self._jobs:
            self._jobs = jobs
            self._begin(lambda: self.write_jobs(jobs))

    def save_models(self, kind: WorkerKind, models: Sequence[ModelInfo]) -> None:
        """Save the models that workers of a kind serve."""
        rows = [model.to_json() for model in models]

        def write() -> None:
            loaded = {"loads": list(kind.models), "serves": rows}
            try:
                _write(self._models_path, {**self._read_models(), kind.name: loaded})
            except OSError as error:
                log.warning("%s cannot be written: %s", self._models_path, error)

        self._begin(write)

    def forget_models(self) -> None:
        """Forget the models; called when no job is left, because the next ones may load others."""
        self._begin(lambda: self._models_path.unlink(missing_ok=True))

    async def done(self, within_s: float | None = None) -> None:
        """Return when all that was to be saved so far is written, or after `within_s` seconds."""
        if self._last is not None:
            await asyncio.wait({self._last}, timeout=within_s)

    def write_jobs(self, jobs: list[JobKey]) -> None:
        """Write a list of jobs, unless a newer one follows."""
        if jobs != self._jobs:
            return
        try:
            _write(self._jobs_path, jobs)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._jobs_path, error)
            with contextlib.suppress(OSError):
                self._jobs_path.unlink(missing_ok=True)  # better no list than a wrong one

    def _begin(self, write: Callable[[], None]) -> None:
        def run() -> None:
            try:
                write()
            except Exception:
                log.exception("the state for the next farm cannot be saved")

        self._last = asyncio.get_running_loop().run_in_executor(self._thread, run)

    def _read_jobs(self) -> list[JobKey] | None:
        rows = _read(self._jobs_path)
        try:
            return None if rows is None else [(str(i), str(name), str(k)) for i, name, k in rows]
        except (TypeError, ValueError) as error:
            log.warning("%s cannot be read: %s", self._jobs_path, error)
            return None

    def _read_models(self) -> dict[str, Any]:
        data = _read(self._models_path)
        return data if isinstance(data, dict) else {}


def _read(path: Path) -> Any:
    """Return the JSON data of a file; None without the file, or if it cannot be read."""
    try:
        return json.loads(read_private(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, Unavailable) as error:
        log.warning("%s cannot be read: %s", path, error)
        return None


def _write(path: Path, data: object) -> None:
    replace_private(path, (json.dumps(data, indent=1) + "\n").encode())
