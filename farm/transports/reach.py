"""Deciding when a silent dispatcher is lost.

Silence alone means little. A dispatcher that is stopped (SIGSTOP, `scontrol suspend`, a debugger)
or busy for long answers nothing, but continues later, and callers still wait for its answers.
Meanwhile the operating system accepts connections at its address. Once the dispatcher has ended,
the operating system refuses them; a host or network that is down does not answer at all.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from farm.transports.connection import Connection

DIALS = 3
"""How many consecutive connections, evenly spaced over the time limit, have to fail."""

ACCEPTED_WITHIN_S = 2.0
"""Timeout within which a reachable machine accepts a connection."""

LONGEST_SILENCE = 60
"""Number of time limits after which a dispatcher counts as lost although connections are accepted:
another program may have taken the port, and a job's workers must not wait for ever.
"""


class Reach:
    """Decides whether a silent dispatcher is lost.

    is_there: returns whether a connection to its address is accepted; may take some seconds.
    lost_after_s: the time limit.
    """

    def __init__(self, is_there: Callable[[], bool], lost_after_s: float) -> None:
        self._is_there = is_there
        self._dial_every_s = lost_after_s / DIALS
        self._dialed = 0
        self._failed = 0

    def is_lost(self, silent_s: float) -> bool:
        """Whether it is lost after `silent_s` seconds of silence; call it repeatedly.

        True if it could not be reached during the time limit, or was silent for very long.
        """
        due = int(silent_s / self._dial_every_s)
        if due < self._dialed:  # it was heard in between
            self._dialed = self._failed = 0
        if due > self._dialed:
            self._dialed = due
            self._failed = 0 if self._is_there() else self._failed + 1
        return self._failed >= DIALS or due >= DIALS * LONGEST_SILENCE


def accepts(connection: Connection) -> bool:
    """Whether something accepts connections at the dispatcher's address."""
    if connection.local and connection.host == socket.gethostname():
        return _accepts_local(connection.local) or accepts_tcp(connection.endpoint)
    return accepts_tcp(connection.endpoint)


def accepts_tcp(endpoint: str) -> bool:
    """Whether something accepts connections at `tcp://host:port`; False for no address at all."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ACCEPTED_WITHIN_S).close()
    except (OSError, ValueError):
        return False
    return True


def _accepts_local(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dialed:
        dialed.settimeout(ACCEPTED_WITHIN_S)
        try:
            dialed.connect(path)
        except OSError:
            return False
    return True
