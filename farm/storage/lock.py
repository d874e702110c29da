"""A lock file that allows one writing process, across machines.

It needs only exclusive creation and renaming of files from the file system: some cluster file
systems have no flock(), or one that other machines do not see. The holder updates a heartbeat in
the file every second. A lock whose process is gone, or whose heartbeat has stopped, is stale, and
another process takes it over. A holder that was suspended meanwhile detects this when it resumes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import platform
import secrets
import time
from pathlib import Path
from typing import Any

from farm.storage.errors import LockHeld, LockTaken
from farm.storage.files import open_own, read_own, remove_unfinished

logger = logging.getLogger(__name__)

BEAT_S = 1.0
SILENCE_S = 15.0
"""A lock of another machine is stale after this time without a heartbeat. Clocks are not compared,
so clock skew does not matter."""

NAMELESS_S = 1.0
"""A lock file that names no holder is stale after this time, as holders write it in one step."""

SETTLE_S = 0.1


class Lock:
    """The exclusive right to write some files, acquired on creation. Raises LockHeld, OSError.

    mode: permissions of the lock file.
    """

    def __init__(self, path: Path, *, silence_s: float = SILENCE_S, mode: int = 0o644) -> None:
        self.path = path
        self._mode = mode
        self._token = secrets.token_hex(8)
        self._beat = 0
        self._last = 0.0
        taken_over = False
        while not self._create():
            self._take_over(silence_s)
            taken_over = True
        if taken_over:  # others that found the same stale lock may briefly have renamed ours
            time.sleep(SETTLE_S)
        held = _read(path)
        if held.get("token") != self._token:
            raise LockHeld(path, _whom(held))
        remove_unfinished(path.with_name(path.name.removesuffix(".lock")))

    def beat(self) -> None:
        """Write a heartbeat, at most once a second; may be called more often.

        Raises LockTaken if another process has taken over the lock.
        """
        now = time.monotonic()
        if now - self._last < BEAT_S:
            return
        self.check()
        self._last = now
        self._beat += 1
        # A full disk must not lose the lock: the file still names this process.
        with contextlib.suppress(OSError), open(open_own(self.path, os.O_RDWR), "r+b") as file:
            file.write(self._text())
            file.truncate()

    def check(self) -> None:
        """Raise LockTaken if another process has taken over the lock."""
        held = _read(self.path)
        if held.get("token") != self._token and not (not self.path.exists() and self._create()):
            raise LockTaken(self.path, _whom(held))

    def release(self) -> None:
        """Release the lock; does nothing if another process took it over."""
        if _read(self.path).get("token") == self._token:
            self.path.unlink(missing_ok=True)

    def _text(self) -> bytes:
        # Fixed width, so that a concurrent reader sees the old text or the new one.
        data = {"token": self._token, **_self(), "beat": f"{self._beat:012d}"}
        return json.dumps(data).encode()

    def _create(self) -> bool:
        try:
            fd = open_own(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, self._mode)
        except FileExistsError:
            return False
        try:
            text = self._text()
            if os.write(fd, text) < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        except OSError:
            self.path.unlink()
            raise
        finally:
            os.close(fd)
        self._last = time.monotonic()
        return True

    def _take_over(self, silence_s: float) -> None:
        """Remove the existing lock if it is stale. Raises LockHeld if its holder is alive."""
        held = _read(self.path)
        if not held:
            silence_s = min(silence_s, NAMELESS_S)
        if _alive(held) is not False:
            if held and not _alive(held):
                text = "%s is held by %s, which may be gone: waiting %g s for a sign of life"
                logger.warning(text, self.path, _whom(held), silence_s)
            if _shows_life(self.path, held, silence_s):
                if not held:  # it has been named since
                    return
                raise LockHeld(self.path, _whom(held))
        # Renaming is atomic: if several processes find the lock stale, one gets it. If it gets the
        # new lock of a faster process instead, it puts that lock back.
        aside = self.path.with_name(f"{self.path.name}.{self._token}")
        try:
            os.rename(self.path, aside)
        except FileNotFoundError:
            return
        if _read(aside) != held:
            with contextlib.suppress(OSError):  # otherwise its next heartbeat recreates it
                os.link(aside, self.path)
        aside.unlink(missing_ok=True)


def is_held(path: Path, *, silence_s: float = 2.5 * BEAT_S) -> bool:
    """Whether a process holds this lock now; does not acquire it.

    For a holder on another machine, waits up to `silence_s` seconds for a heartbeat.
    """
    held = _read(path)
    return bool(held) and _alive(held) is not False and _shows_life(path, held, silence_s)


def lives(path: Path) -> bool | None:
    """Whether the process that holds this lock lives; None if it is one of another machine."""
    held = _read(path)
    return _alive(held) if held else False


def _shows_life(path: Path, held: dict[str, Any], silence_s: float) -> bool:
    """Whether the holder is alive on this machine, or its lock changes within `silence_s`."""
    until = time.monotonic() + silence_s
    while time.monotonic() < until:
        if _alive(held) or _read(path) != held:
            return True
        time.sleep(min(0.2, silence_s))
    return False


def _self() -> dict[str, Any]:
    return {"host": platform.node(), "pid": os.getpid(), "machine": machine(), "born": born()}


def machine() -> str:
    """Return an identifier of this boot of this machine and of our pid namespace.

    Empty if the system has none.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def born(pid: int | str = "self") -> str:
    """Return when a process started, in ticks since boot, to detect a reused process id.

    Empty if there is no such process, or it has ended and waits for its parent.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The name before the last bracket may contain anything; field 3 is the state, 22 the start.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def is_alive(pid: int) -> bool:
    """Whether a process of this machine has not ended, as far as is known."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return bool(born(pid)) or not machine()


def _alive(held: dict[str, Any]) -> bool | None:
    """Whether the holder lives; None if it is a process of another machine."""
    if not machine() or held.get("machine") != machine():
        return None
    return bool(born(held["pid"]) == held["born"])


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_own(path))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _whom(held: dict[str, Any]) -> str:
    if not held:
        return "a process that left no name"
    return f"process {held.get('pid')} on {held.get('host')}"
