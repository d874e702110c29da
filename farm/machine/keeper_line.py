"""A front door's end of the line to its keeper (`keeper.py`), which starts it again after a crash.

Over the line the front door hands its listening sockets, and files in memory, to the keeper, gets
those of its predecessor, and learns that it shall stop.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

from farm.errors import Unavailable
from farm.machine import keeper as parent
from farm.machine.programs import python

LONGEST_ERROR = 2000


def start_under_keeper(arguments: Sequence[str]) -> NoReturn:
    """Replace this process with a keeper, which runs `farm` with these arguments."""
    program = [sys.executable, "-I", "-S", str(Path(parent.__file__).resolve())]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [*program, *python("farm"), *arguments])


class KeeperLine:
    """The line of a process that a keeper has started; reads at once what the keeper says first.

    restarts: how often the keeper has started a front door again; reason: how the last one ended,
    such as `was killed by signal 9 (SIGKILL)`.
    Raises OSError if the keeper has ended.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._line = socket.socket(fileno=descriptor)
        self.restarts = 0
        self.reason = ""
        self._kept: list[tuple[str, int]] = []
        self._stop_asked = False
        try:
            self._read_first_words()
        except BaseException:
            self._line.close()
            raise

    def _read_first_words(self) -> None:
        unread, goes = b"", False
        descriptors: list[int] = []
        while not goes:
            data, more, _, _ = socket.recv_fds(self._line, parent.SAID_BYTES, 64)
            if not data:
                raise ConnectionResetError("it has ended")
            for descriptor in more:
                os.set_inheritable(descriptor, False)
            descriptors += more
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                word, _, rest = line.decode().partition(" ")
                if word == "socket" and descriptors:
                    name = rest.encode().decode("unicode_escape")
                    self._kept.append((name, descriptors.pop(0)))
                elif word == "restarts":
                    count, _, self.reason = rest.partition(" ")
                    self.restarts = int(count)
                elif word == "stop":
                    self._stop_asked = True
                goes |= word == "go"

    def take(self, name: str) -> socket.socket | None:
        """Return the socket that an earlier front door handed over under this name, or None.

        Several of one name are returned in the order in which they were handed over.
        """
        descriptor = self.take_file(name)
        if descriptor is None:
            return None
        kept = socket.socket(fileno=descriptor)
        kept.setblocking(False)
        return kept

    def take_file(self, name: str) -> int | None:
        """Return the descriptor that an earlier front door handed over under this name, or None."""
        for i, (kept_as, kept) in enumerate(self._kept):
            if kept_as == name:
                del self._kept[i]
                return kept
        return None

    def hand(self, name: str, held: socket.socket | int) -> None:
        """Let the keeper hold a listening socket, or a file, for the next front door."""
        line = b"socket " + name.encode("unicode_escape") + b"\n"
        descriptor = held if isinstance(held, int) else held.fileno()
        with contextlib.suppress(OSError):  # the keeper has ended: no front door follows
            socket.send_fds(self._line, [line], [descriptor])

    def serves(self) -> None:
        """Tell the keeper that this front door serves."""
        self._say(b"serves\n")

    def ends(self) -> None:
        """Tell the keeper that this front door ends in order: it starts no other one."""
        self._say(b"ends\n")

    def fails(self, error: str) -> None:
        """Tell the keeper why this process is about to end."""
        text = " ".join(error.split())[:LONGEST_ERROR]
        self._say(b"error " + text.encode(errors="replace") + b"\n")

    def _say(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # the keeper has ended, which `on_stop` tells
            self._line.sendall(line)

    def hears(self) -> str:
        """Wait for words of the keeper, `stop` or `hurry`; return nothing if it has ended."""
        try:
            return self._line.recv(4096).decode()
        except OSError:  # it had not read all
            return ""

    def on_stop(self, stop: Callable[[], None], hurry: Callable[[], None]) -> None:
        """Call `stop` on the running loop when the keeper asks for it, or has ended.

        `hurry` is called if the keeper asks for that, too.
        """
        import asyncio  # workers import this module for its names, and need no loop

        loop = asyncio.get_running_loop()

        def readable() -> None:
            words = self.hears()
            if not words:
                loop.remove_reader(self._line)
            stop()
            if "hurry" in words:
                hurry()

        loop.add_reader(self._line, readable)
        if self._stop_asked:
            stop()


@cache
def keeper() -> KeeperLine | None:
    """Return the line to the keeper of this process; None if no keeper started it.

    Raises Unavailable if the keeper has ended already.
    """
    descriptor = os.environ.pop(parent.LINE, "")  # not for the processes that this one starts
    if not descriptor:
        return None
    try:
        return KeeperLine(int(descriptor))
    except OSError as error:
        raise Unavailable(f"the keeper of this front door does not answer: {error}") from None
