"""Reads the logs of workers: the end of a log, and the text added since the last read.

A request names a worker, never a file. A worker names its file, and only files of the farm's own
folders are read: those of supervisors in `logs`, and the output of batch jobs in `jobs`.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from farm.call import WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.questions import needed
from farm.errors import InvalidInput, Unavailable, UnsupportedFeature
from farm.monitoring.known_workers import KnownWorkers

T = TypeVar("T")

BYTES = 65536
"""Most bytes that one answer reads."""

LINES, MOST_LINES = 100, 10_000
"""Lines of an answer that does not say how many; and the most."""

AT_ONCE = 4
"""Files that are read at once: a file system that hangs must not hold all threads."""

LOG_NAME = re.compile(r"worker-[\w.+-]+\.log", re.ASCII)
JOB = re.compile(r"\w[\w.+-]*", re.ASCII)


class Piece(NamedTuple):
    """A part of a log, and the position in the file where the next one begins."""

    text: str
    next: int


def last_lines(path: Path, lines: int) -> Piece:
    """Return the last lines of a file, those within its last 64 KiB. Raises OSError."""
    with _opened(path) as file:
        start = max(0, file.seek(0, os.SEEK_END) - BYTES)
        file.seek(start)
        data = file.read(BYTES)
    end = start + len(data)
    whole = data.splitlines(keepends=True)
    if start and len(whole) > 1:
        del whole[0]  # it began earlier
    return _decoded(b"".join(whole[-lines:]), end)


def added(path: Path, after: int) -> Piece:
    """Return what follows a position, 64 KiB at most; from the beginning if the file is shorter.

    Raises OSError.
    """
    with _opened(path) as file:
        if after > file.seek(0, os.SEEK_END):
            after = 0  # it is another file
        file.seek(after)
        data = file.read(BYTES)
    return _decoded(data, after + len(data))


def _opened(path: Path) -> BinaryIO:
    """Open a regular file of this user. Raises OSError for any other, and for links."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise OSError(f"{path} is not a file of this user")
        return os.fdopen(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def _decoded(data: bytes, end: int) -> Piece:
    """Return the text without the bytes of a last character that is not whole yet."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return Piece(text, end - len(decoder.getstate()[0]))


class WorkerLogs:
    """Answers the questions `log`, the output of one worker, and `logs`, whose can be read.

    folder: the farm's run folder.
    """

    def __init__(self, dispatcher: Dispatcher, known: KnownWorkers, folder: Path) -> None:
        self._known = known
        self._folder = folder
        self._turns = asyncio.Semaphore(AT_ONCE)
        dispatcher.offer("log", self.log)
        dispatcher.offer("logs", self.logs)

    async def log(self, arguments: Mapping[str, str]) -> dict[str, str]:
        """Return the last `lines` of the output of `worker`, or what follows `after`.

        `after` is the `next` of an earlier answer. Raises InvalidInput, UnsupportedFeature,
        Unavailable.
        """
        info = self._known.find(needed(arguments, "worker"), gone=True)
        lines = _number(arguments, "lines", LINES, MOST_LINES)
        after = _number(arguments, "after", -1, sys.maxsize)
        path = self._path(info)
        if path is None:
            raise UnsupportedFeature(
                f"the output of worker {info.name} is in no file that the farm knows: only that of "
                "workers with their logs in the run folder, and of its batch jobs"
            )
        try:
            piece = await self._elsewhere(
                lambda: last_lines(path, lines) if after < 0 else added(path, after)
            )
        except OSError as error:
            why = error.strerror or str(error)
            raise Unavailable(f"{path} cannot be read here: {why}") from None
        return {"worker": info.name, "text": piece.text, "next": str(piece.next)}

    async def logs(self, arguments: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return a row for each worker whose output can be read; those that are here first."""
        workers = [(info, here, self._path(info)) for info, here in self._known]

        def look() -> list[dict[str, Any]]:
            rows = []
            for info, here, path in workers:
                if path is None:
                    continue
                with contextlib.suppress(OSError):
                    found = path.stat(follow_symlinks=False)
                    rows.append(
                        {
                            "worker": info.name,
                            "host": info.host,
                            "here": here,
                            "file": path.name,
                            "bytes": found.st_size,
                            "written": found.st_mtime,
                        }
                    )
            return rows

        return await self._elsewhere(look)

    def _path(self, info: WorkerInfo) -> Path | None:
        """Return the file with a worker's output. The worker may only choose among the farm's."""
        name = info.labels.get("log", "")
        if LOG_NAME.fullmatch(name):
            return self._folder / "logs" / name
        job = info.labels.get("job", "")
        if info.labels.get("kind") and JOB.fullmatch(job):
            return self._folder / "jobs" / f"{job}.out"
        return None

    async def _elsewhere(self, look: Callable[[], T]) -> T:
        """Run `look` in a thread: the file system may be slow."""
        async with self._turns:
            return await asyncio.to_thread(look)


def _number(arguments: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = arguments.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= most):
        raise InvalidInput(f"{name} is {text:.40}; expected a whole number, {most} at most")
    return int(text)
