"""The functions that the processes of a Dask cluster run for farm.

A process loads the models once and keeps them until it ends; its threads share them. Errors of a
model are returned as outcomes, not raised.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from farm.call import VERSION_OF_FILE, Call, ModelInfo, Operation, Result
from farm.errors import FarmError
from farm.version import __version__
from farm.worker.loader import NOT_THEIRS, LoadError, load_models
from farm.worker.runner import Outcome, Runner

log = logging.getLogger("distributed.worker.farm")
"""Below the logger of Dask's workers, so that its lines are among theirs."""

KEPT = 10_000
"""Number of tasks whose state a process remembers; more than are ever in flight to it at once."""


@dataclass(frozen=True, slots=True)
class Models:
    """The models as given to `farm serve`. life: identifies a farm's connection to the cluster."""

    specs: tuple[str, ...]
    life: str

    def permit(self, number: int) -> str:
        """Return the name of the queue in Dask's scheduler that holds the one permit of a task."""
        return f"farm-{self.life}-{number}"


@dataclass(frozen=True, slots=True)
class Described:
    """The descriptions of the models, and the farm version of the process."""

    infos: tuple[ModelInfo, ...]
    version: str = __version__


@dataclass(frozen=True, slots=True)
class Ran:
    """The outcomes of a task's calls.

    took_s: seconds from its start to its end; worker: the address of the Dask worker that ran it.
    """

    outcomes: list[Outcome]
    took_s: float
    worker: str


@dataclass(frozen=True, slots=True)
class Recalled:
    """The task was recalled before it began."""


@dataclass(frozen=True, slots=True)
class NotPermitted:
    """The task may run only once, and its permit was already taken."""

    def __str__(self) -> str:
        return "a Dask worker had begun it and died with it, or with its answer"


@dataclass(frozen=True, slots=True)
class Unfit:
    """The process cannot load the models; `worker` is its address in the Dask cluster."""

    worker: str
    message: str
    detail: str = ""


@dataclass(slots=True)
class _Loaded:
    """Models in this process. lives: connections that may use them, as no file changed since."""

    runner: Runner
    lives: set[str] = field(default_factory=set)


_loading = threading.Lock()
_loaded: dict[tuple[str, ...], _Loaded] = {}
_files: dict[str, int] = {}  # modification times of the user's modules imported here

_lock = threading.Lock()
_has_begun: dict[tuple[str, int], bool] = {}  # False: recalled before it began

_thread = threading.local()


def forget(models: Models) -> None:
    """End this life, and drop the models that no other life uses."""
    with _loading:
        loaded = _loaded.get(models.specs)
        if loaded is not None:
            loaded.lives.discard(models.life)
            if not loaded.lives:
                del _loaded[models.specs]


def describe_models(models: Models) -> Described | Unfit:
    """A Dask task: load the models and describe them."""
    try:
        return Described(tuple(map(_as_on_dask, _runner(models).models())))
    except (LoadError, FarmError) as error:
        return _unfit(error)


def _as_on_dask(info: ModelInfo) -> ModelInfo:
    """Return the description without streams: a Dask task has one answer, at its end.

    And without the version of a file: Dask's workers load the file at different times, each from
    its own machine.
    """
    version = "" if info.version.startswith(VERSION_OF_FILE) else info.version
    operations = info.operations - {Operation.STREAM}
    return replace(info, operations=operations, version=version)


async def describe(models: Models, calls: Sequence[Call]) -> list[Outcome] | Unfit:
    """Answer `describe` calls, concurrently with the threads that run tasks."""
    try:
        outcomes = await asyncio.to_thread(lambda: _runner(models).execute(calls))
    except LoadError as error:
        return _unfit(error)
    return [
        replace(outcome, info=_as_on_dask(outcome.info))
        if isinstance(outcome, Result) and outcome.info is not None
        else outcome
        for outcome in outcomes
    ]


def run(
    models: Models, number: int, calls: Sequence[Call], *, permit: bool, once: bool
) -> Ran | Recalled | NotPermitted | Unfit:
    """A Dask task: return the outcomes of calls, which may share one evaluation.

    number: unique in the models' `life`. permit: take the task's permit before the run, so that
    farm knows that it has begun even if this process dies; once: do not run without the permit.
    """
    from distributed import get_worker

    began_at = time.perf_counter()
    # A thread was not idle before its first run, it was new.
    idle_s = began_at - _thread.ended_at if hasattr(_thread, "ended_at") else -1.0
    try:
        runner = _runner(models)
    except LoadError as error:
        return _unfit(error)
    if not _fate((models.life, number), begins=True):
        return Recalled()
    if permit and not _take_permit(models.permit(number)) and once:
        return NotPermitted()
    worker = get_worker()
    own_name = worker.name if isinstance(worker.name, str) else worker.address
    name = f"{socket.gethostname()}/{own_name}-{os.getpid()}"
    found = runner.execute(calls)
    _log_failures(calls, found)
    outcomes = [
        replace(outcome, worker=name, idle_s=idle_s) if isinstance(outcome, Result) else outcome
        for outcome in found
    ]
    _thread.ended_at = time.perf_counter()
    return Ran(outcomes, _thread.ended_at - began_at, worker.address)


def _log_failures(calls: Sequence[Call], outcomes: Sequence[Outcome]) -> None:
    """Log the errors of calls with an id in the log of the Dask worker, with tracebacks."""
    for call, outcome in zip(calls, outcomes, strict=True):
        error = outcome.failed if isinstance(outcome, Result) else outcome
        if error is not None and call.origin is not None:
            log.info(
                "call %s: %s of model %r failed: %s",
                call.origin.call_id,
                call.operation.value,
                call.model,
                error.detail or error,
            )


def recall(life: str, numbers: Sequence[int]) -> list[int]:
    """Return the tasks that have begun here; the others will not begin here any more."""
    return [number for number in numbers if _fate((life, number), begins=False)]


def _fate(task: tuple[str, int], *, begins: bool) -> bool:
    """Return whether a task has begun; if that was open, this decides it for good."""
    with _lock:
        if len(_has_begun) >= KEPT:
            del _has_begun[next(iter(_has_begun))]
        return _has_begun.setdefault(task, begins)


def _take_permit(name: str) -> bool:
    """Take the permit; return whether this process got it, in which case no other process can.

    Dask's scheduler has one event loop, so taking all entries of a queue is atomic. Raises nothing:
    if the answer is lost, so is the permit.
    """
    from distributed import get_worker
    from distributed.utils import sync

    worker = get_worker()
    try:
        return bool(sync(worker.loop, worker.scheduler.queue_get, name=name, batch=True))
    except (KeyError, OSError):  # it was withdrawn, or the scheduler is gone
        return False


def _runner(models: Models) -> Runner:
    """Return the runner of this process. Raises LoadError."""
    with _loading:
        loaded = _loaded.get(models.specs)
        if loaded is None or models.life not in loaded.lives:
            _check_unchanged()
        if loaded is None:
            try:
                loaded = _loaded[models.specs] = _Loaded(Runner(load_models(models.specs)))
            finally:
                _note_files()
        loaded.lives.add(models.life)
        return loaded.runner


def _note_files() -> None:
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path is not None and path not in _files and not path.startswith(NOT_THEIRS):
            _files[path] = _changed_at(path)


def _changed_at(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


def _check_unchanged() -> None:
    # Python imports a file once per process: a farm started after an edit would run the old model.
    for path, changed_at in _files.items():
        if _changed_at(path) != changed_at:
            raise LoadError(
                f"{path} has changed since the Dask workers loaded it; restart them, "
                "such as by client.restart()"
            )


def _unfit(error: LoadError | FarmError) -> Unfit:
    from distributed import get_worker

    return Unfit(get_worker().address, str(error), error.detail)
