"""Actions of the owner of a farm: stop it, drain or restart a worker; its restarts, workers' logs.

A request names a worker, never a file. A worker names its file, and only files of the farm's own
folders are read: those of supervisors in `logs`, and the output of batch jobs in `jobs`.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from farm.call import WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.events import Departure
from farm.dispatcher.questions import needed
from farm.errors import InvalidInput, Unavailable, UnsupportedFeature
from farm.machine.keeper_line import keeper
from farm.storage.files import open_own
from farm.storage.lock import machine
from farm.transports.peers import Peers

GONE_KEPT = 1000
"""Workers that left and are still known: a worker's output is most wanted when it has died."""

NAMED = 3
"""Names in an error, of workers that may be meant."""

BYTES = 65536
"""Most bytes that one answer reads."""

LINES, MOST_LINES = 100, 10_000
"""Lines of an answer that does not say how many; and the most."""

AT_ONCE = 4
"""Files that are read at once: a file system that hangs must not hold all threads."""

LOG_NAME = re.compile(r"worker-[\w.+-]+\.log", re.ASCII)
JOB = re.compile(r"\w[\w.+-]*", re.ASCII)


def offer_stop(dispatcher: Dispatcher, grace_s: float, asked: Callable[[bool], None]) -> None:
    """Offer the action `stop` (argument `now`: true or false), which calls `asked`.

    asked: gets True if the farm shall stop at once, without waiting for running calls. The answer
    says what has to end: the processes with their host, calls and jobs.
    """

    def stop(arguments: Mapping[str, str]) -> dict[str, Any]:
        state = dispatcher.snapshot()
        now = arguments.get("now") == "true"
        # The answer is sent first.
        asyncio.get_running_loop().call_soon(asked, now)
        jobs = state.get("cluster", {}).get("jobs", [])
        return {
            "host": socket.gethostname(),
            "machine": machine(),
            "processes": [os.getpid()] if keeper() is None else [os.getpid(), os.getppid()],
            "running": sum(row["in_flight"] for row in state["queues"]),
            "queued": sum(row["queued"] for row in state["queues"]),
            "workers": len(state["workers"]),
            "jobs": len(jobs),
            "grace_s": 0.0 if now else grace_s,
        }

    dispatcher.questions.offer("stop", stop, changes=True)


def show_restarts(dispatcher: Dispatcher) -> None:
    """Show the last restart, if there was one, among the events and in the farm's status."""
    line = keeper()
    if line is None or not line.restarts:
        return
    shown = {"count": line.restarts, "reason": line.reason, "time": time.time()}
    dispatcher.note("started again", "front door", f"it {line.reason}; restart {line.restarts}")
    dispatcher.add_part("restarts", lambda: shown)


def read_log(path: Path, *, after: int | None = None, lines: int = MOST_LINES) -> tuple[str, int]:
    """Return the last lines of a file, within its last 64 KiB, and where the next ones begin.

    after: return what follows this position instead, 64 KiB at most; from the beginning if the file
    is shorter, as it is another one. Raises OSError.
    """
    with open(open_own(path, os.O_RDONLY), "rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - BYTES) if after is None else after if after <= size else 0
        file.seek(start)
        data = file.read(BYTES)
    end = start + len(data)
    if after is None:
        whole = data.splitlines(keepends=True)
        if start and len(whole) > 1:
            del whole[0]  # it began earlier
        data = b"".join(whole[-lines:])
    # Without the bytes of a last character that is not whole yet.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return text, end - len(decoder.getstate()[0])


class NamedWorkers:
    """Offers the actions `drain` and `restart`, and the questions `log` and `logs`.

    folder: the farm's run folder.
    """

    def __init__(self, dispatcher: Dispatcher, peers: Peers, folder: Path) -> None:
        self._dispatcher = dispatcher
        self._peers = peers
        self._folder = folder
        self._here: dict[str, WorkerInfo] = {}
        self._gone: OrderedDict[str, WorkerInfo] = OrderedDict()
        self._turns = asyncio.Semaphore(AT_ONCE)
        dispatcher.on_joined.append(self.joined)
        dispatcher.on_left.append(self.left)
        dispatcher.questions.offer("log", self.log)
        dispatcher.questions.offer("logs", self.logs)
        dispatcher.questions.offer("drain", self.drain, changes=True)
        dispatcher.questions.offer("restart", self.restart, changes=True)

    def joined(self, info: WorkerInfo, before: WorkerInfo | None) -> None:
        """Note a worker."""
        self._here[info.name] = info
        self._gone.pop(info.name, None)

    def left(self, info: WorkerInfo, departure: Departure) -> None:
        """Note that a worker left."""
        self._here.pop(info.name, None)
        self._gone[info.name] = info
        if len(self._gone) > GONE_KEPT:
            self._gone.popitem(last=False)

    def find(self, name: str, *, gone: bool = False) -> WorkerInfo:
        """Return the worker of this name, or the only one whose name begins so.

        gone: look among those that left, too. Raises InvalidInput.
        """
        for workers in (self._here, self._gone) if gone else (self._here,):
            if name in workers:
                return workers[name]
            found = [each for each in workers if name and each.startswith(name)]
            if len(found) == 1:
                return workers[found[0]]
            if found:
                some = ", ".join(found[:NAMED])
                more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
                raise InvalidInput(f"{len(found)} workers begin with {name:.100}: {some}{more}")
        if not gone and name in self._gone:
            raise InvalidInput(f"worker {name:.100} has left")
        raise InvalidInput(f"the farm has no worker {name:.100}; farm status lists its workers")

    async def log(self, arguments: Mapping[str, str]) -> dict[str, str]:
        """Return the last `lines` of the output of `worker`, or what follows `after`.

        `after` is the `next` of an earlier answer. Raises InvalidInput, UnsupportedFeature,
        Unavailable.
        """
        info = self.find(needed(arguments, "worker"), gone=True)
        lines = _number(arguments, "lines", MOST_LINES)
        after = _number(arguments, "after", sys.maxsize)
        path = self._path(info)
        if path is None:
            raise UnsupportedFeature(
                f"the output of worker {info.name} is in no file that the farm knows: only that of "
                "workers with their logs in the run folder, and of its batch jobs"
            )
        lines = LINES if lines is None else lines
        try:
            async with self._turns:
                text, end = await asyncio.to_thread(read_log, path, after=after, lines=lines)
        except OSError as error:
            why = error.strerror or str(error)
            raise Unavailable(f"{path} cannot be read here: {why}") from None
        return {"worker": info.name, "text": text, "next": str(end)}

    async def logs(self, arguments: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return a row for each worker whose output can be read.

        Those that are here come first, then those that left last.
        """
        workers = [*self._here.values(), *reversed(self._gone.values())]
        here = len(self._here)

        def look() -> list[dict[str, Any]]:
            rows = []
            for number, info in enumerate(workers):
                path = self._path(info)
                if path is None:
                    continue
                with contextlib.suppress(OSError):
                    found = path.stat(follow_symlinks=False)
                    rows.append(
                        {
                            "worker": info.name,
                            "host": info.host,
                            "here": number < here,
                            "file": path.name,
                            "bytes": found.st_size,
                            "written": found.st_mtime,
                        }
                    )
            return rows

        async with self._turns:
            return await asyncio.to_thread(look)

    def _path(self, info: WorkerInfo) -> Path | None:
        """Return the file with a worker's output. The worker may only choose among the farm's."""
        name = info.labels.get("log", "")
        if LOG_NAME.fullmatch(name):
            return self._folder / "logs" / name
        job = info.labels.get("job", "")
        if info.labels.get("kind") and JOB.fullmatch(job):
            return self._folder / "jobs" / f"{job}.out"
        return None

    def drain(self, arguments: Mapping[str, str]) -> dict[str, str]:
        """Have `worker` finish its running calls and leave.

        Raises InvalidInput, UnsupportedFeature.
        """
        info = self.find(needed(arguments, "worker"))
        if not self._peers.drain(info.name):
            raise UnsupportedFeature(
                f"worker {info.name} cannot be drained alone: it is a thread of the front door, a "
                "Dask cluster, or not connected now"
            )
        self._dispatcher.note("drain", info.name, "the owner asks it to leave")
        return {"draining": info.name}

    def restart(self, arguments: Mapping[str, str]) -> dict[str, str]:
        """Have the supervisor of `worker` kill it, in a call too, and start another.

        Raises InvalidInput, UnsupportedFeature, Unavailable.
        """
        info = self.find(needed(arguments, "worker"))
        supervisor = info.labels.get("supervisor", "")
        if not supervisor:
            raise UnsupportedFeature(
                f"worker {info.name} has no supervisor that starts it again: it is a thread of the "
                "front door, a Dask cluster, or was started by a launcher of its own; drain it, or "
                "restart it where it was started"
            )
        if not self._peers.restart(info.name, supervisor):
            raise Unavailable(
                f"supervisor {supervisor} of worker {info.name} is not connected now; try again"
            )
        self._dispatcher.note("restart", info.name, "the owner asks its supervisor to restart it")
        return {"restarting": info.name}


def _number(arguments: Mapping[str, str], name: str, most: int) -> int | None:
    text = arguments.get(name, "")
    if text and not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= most):
        raise InvalidInput(f"{name} is {text:.40}; expected a whole number, {most} at most")
    return int(text) if text else None
