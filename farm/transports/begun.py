"""Which calls of native clients may have begun, for a front door that follows after a crash.

A call that must not run twice is noted just before a worker gets it. A client that has lost a front
door sends its open calls again to the next one, which starts those that have not begun.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass, field

from farm.machine.keeper_line import keeper
from farm.machine.memory_file import new_file

log = logging.getLogger(__name__)

KEPT_AS = ("begun 0", "begun 1")
"""Names under which a keeper holds the files."""

IDS_KEPT = 20_000
"""Most begun calls of a client that are known one by one; older ids count as begun."""

CLIENTS_KEPT = 100
"""Clients without a connection whose calls are known, if they come back."""

FILE_BYTES = 4 * 1024**2
"""Size above which the calls are written to the other file, without those that have ended."""

NO_ID = -(1 << 64)


@dataclass(slots=True)
class BegunCalls:
    """The calls of one client that may have begun, of those that must not run twice.

    are_all: whether those are among them that it sent to earlier front doors.
    """

    are_all: bool = False
    ids: set[int] = field(default_factory=set)
    upto: int = NO_ID  # this one and all before it count as begun

    def __contains__(self, call_id: int) -> bool:
        return call_id <= self.upto or call_id in self.ids

    def include(self, *ids: int, upto: int = NO_ID, are_all: bool = False) -> None:
        """Add calls; upto: and all up to this one; are_all: now they are."""
        self.ids.update(ids)
        self.upto = max(self.upto, upto)
        self.are_all |= are_all
        if len(self.ids) > IDS_KEPT:
            *_, self.upto = old = sorted(self.ids)[: IDS_KEPT // 2]
            self.ids.difference_update(old)


class Begun:
    """The begun calls of each client, by its key; a keeper's next front door knows them, too.

    Each is written before its worker gets the call, into a file in memory that outlives this
    process. Of the two files the current one, the first, has all that is known, or the other one if
    the process has died while it changed them. Every entry of a file is true; some may be missing.
    """

    def __init__(self) -> None:
        self._of: dict[str, BegunCalls] = {}
        self._away: dict[str, None] = {}  # those that may come back, the first one longest
        self._files: list[int] = []  # none without a keeper
        if (held := keeper()) is not None:
            for name in KEPT_AS:
                file = held.take_file(name)
                if file is None:
                    file = new_file()
                    held.hand(name, file)
                self._files.append(file)
        self._size = self._most = 0
        for file in self._files:
            for line in os.pread(file, os.fstat(file).st_size, 0).decode().splitlines():
                with contextlib.suppress(ValueError):  # it is empty, or cut off by a death
                    key, are_all, upto, *ids = line.split()
                    of = self._of.setdefault(key, BegunCalls())
                    of.include(*map(int, ids), upto=int(upto), are_all=are_all == "1")
        self._rewrite()

    def of(self, key: str) -> BegunCalls:
        """Return the calls of a client that has connected."""
        self._away.pop(key, None)
        return self._of.setdefault(key, BegunCalls())

    def add(self, key: str, call_id: int) -> None:
        """Note that a call of a client may begin now."""
        if call_id not in self._of[key]:
            self._of[key].include(call_id)
            self._write(f"{key} 0 {NO_ID} {call_id}\n")

    def are_all(self, key: str) -> None:
        """Note that a client has sent again all calls that it had sent to earlier front doors."""
        if not self._of[key].are_all:
            self._of[key].include(are_all=True)
            self._write(f"{key} 1 {NO_ID}\n")

    def left(self, key: str, *, for_good: bool) -> None:
        """Note that a client has left; forget it, or another one, unless it may come back."""
        self._away[key] = None
        if for_good or len(self._away) > CLIENTS_KEPT:
            gone = key if for_good else next(iter(self._away))
            del self._of[gone], self._away[gone]

    def _write(self, line: str) -> None:
        if not self._files:
            return
        try:
            if self._size > self._most:
                self._rewrite()
            self._size += os.write(self._files[0], line.encode())
        except OSError as error:  # no memory: the next front door shall know nothing
            log.warning("calls that begin are not noted any more: %s", error)
            for file in self._files:
                os.ftruncate(file, 0)
            self._files = []

    def _rewrite(self) -> None:
        """Write all that is known into the other file, which then is the current one."""
        if not self._files:
            return
        rows = [[key, int(of.are_all), of.upto, *of.ids] for key, of in self._of.items()]
        text = "\n" + "".join([" ".join(map(str, row)) + "\n" for row in rows])
        self._files.reverse()
        file, other = self._files
        self._size = os.lseek(file, 0, os.SEEK_END) + os.write(file, text.encode())
        self._most = max(FILE_BYTES, 2 * len(text))
        os.ftruncate(other, 0)
