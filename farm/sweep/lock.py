"""The lock file of a sweep: at most one process writes, on whatever machine it runs.

HDF5's own lock is not enough: parallel file systems may not have it, and it says nothing of the
journal. The holder rewrites its beat every second; a lock whose process is gone, or whose beat
stands still, is stale and is taken over. A holder that was frozen meanwhile notices on waking.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import time
from pathlib import Path
from typing import Any

from farm.sweep.errors import LockLost, SweepBusy

BEAT_S = 1.0
SILENCE_S = 15.0
"""A lock of another machine is stale when it does not beat for so long. Clocks are not compared."""

SETTLE_S = 0.1


class Lock:
    """The right to write one sweep; taken when made. Raises SweepBusy, OSError."""

    def __init__(self, path: Path, *, silence_s: float = SILENCE_S) -> None:
        self.path = path
        self._token = secrets.token_hex(8)
        self._beat = 0
        self._last = 0.0
        taken_over = False
        while not self._create():
            self._take_over(silence_s)
            taken_over = True
        if taken_over:
            self._let_others_finish()

    def beat(self) -> None:
        """Show that the holder lives; at most once a second, so it may be called often.

        Raises LockLost when another process has taken the lock over.
        """
        now = time.monotonic()
        if now - self._last < BEAT_S:
            return
        held = _read(self.path)
        if held.get("token") != self._token and not (not self.path.exists() and self._create()):
            raise LockLost(
                f"{self.path} is now held by {_whom(held)}: this process was thought dead. "
                "It stops here; the sweep goes on there"
            )
        self._last = now
        self._beat += 1
        # A full disk is no reason to lose the lock: the process and its identity still show.
        with contextlib.suppress(OSError), self.path.open("r+b") as file:
            file.write(self._text())
            file.truncate()

    def release(self) -> None:
        """Give the lock back; nothing happens when it was taken over."""
        if _read(self.path).get("token") == self._token:
            self.path.unlink(missing_ok=True)

    def _text(self) -> bytes:
        # Fixed width: whoever reads during a rewrite sees the old text or the new one.
        data = {"token": self._token, **_self(), "beat": f"{self._beat:012d}"}
        return json.dumps(data).encode()

    def _create(self) -> bool:
        try:
            fd = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        try:
            os.write(fd, self._text())
        except OSError:
            self.path.unlink()
            raise
        finally:
            os.close(fd)
        self._last = time.monotonic()
        return True

    def _take_over(self, silence_s: float) -> None:
        """Remove the lock in the way if it is stale. Raises SweepBusy if its holder lives."""
        held = _read(self.path)
        if not _is_dead(held):
            until = time.monotonic() + silence_s
            while time.monotonic() < until:
                if _lives(held) or _read(self.path) != held:
                    raise SweepBusy(
                        f"{self.path} is held by {_whom(held)}, which is writing this sweep"
                    )
                time.sleep(min(0.2, silence_s))
        # Renaming is atomic: of several who found the lock stale, one gets it. Should it get the
        # lock of a quicker one, that one goes back.
        aside = self.path.with_name(f"{self.path.name}.{self._token}")
        try:
            os.rename(self.path, aside)
        except FileNotFoundError:
            return
        if _read(aside) != held:
            with contextlib.suppress(FileExistsError):
                os.link(aside, self.path)
        aside.unlink()

    def _let_others_finish(self) -> None:
        """Another who found the same stale lock may have put this one aside for a moment."""
        time.sleep(SETTLE_S)
        held = _read(self.path)
        if held.get("token") != self._token:
            raise SweepBusy(f"{self.path} is held by {_whom(held)}, which was quicker")


def _self() -> dict[str, Any]:
    return {"host": platform.node(), "pid": os.getpid(), "machine": machine(), "born": _born()}


def machine() -> str:
    """Names this boot of this machine, and the process table that our pid belongs to.

    Empty where the system has no such name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _born(pid: int | str = "self") -> str:
    """When a process started, in ticks since boot: tells it from a later one with its number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The name before the last bracket may hold anything; state is field 3, start time field 22.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def _is_here(held: dict[str, Any]) -> bool:
    return bool(machine()) and held.get("machine") == machine()


def _lives(held: dict[str, Any]) -> bool:
    """Whether the holder is a process of this machine that lives."""
    return _is_here(held) and _born(held["pid"]) == held["born"]


def _is_dead(held: dict[str, Any]) -> bool:
    """Whether the holder is a process of this machine that is gone; of another, nobody knows."""
    return _is_here(held) and _born(held["pid"]) != held["born"]


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _whom(held: dict[str, Any]) -> str:
    if not held:
        return "a process that left no name"
    return f"process {held.get('pid')} on {held.get('host')}"
