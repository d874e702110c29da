"""The wait of a worker's thread for its line or for a wake-up from another thread."""

from __future__ import annotations

import select

from farm.machine.spinning import ShortWaits
from farm.transports.dial import DialedLine


class LineWait:
    """Waits until the line or the wake-up pipe has something to do; for one thread.

    waits: those of a thread that may spin through short ones.
    """

    def __init__(self, wake_fd: int, waits: ShortWaits | None = None) -> None:
        self._poll = select.poll()
        self._waits = waits
        self._wake_fd = wake_fd
        self._poll.register(wake_fd, select.POLLIN)
        self._watched = (-1, 0)

    def __call__(self, line: DialedLine | None, timeout_s: float, *, writes: bool = False) -> bool:
        """Wait; with `line` None, only for the pipe. Return whether the pipe has wake-ups.

        writes: also wait for room to write.
        """
        events = select.POLLIN | select.POLLOUT if writes else select.POLLIN
        watched = (-1 if line is None else line.fileno(), events)
        if watched != self._watched:
            if self._watched[0] >= 0:
                self._poll.unregister(self._watched[0])
            if watched[0] >= 0:
                self._poll.register(*watched)
            self._watched = watched
        if self._waits is None:
            ready = self._poll.poll(int(1000 * timeout_s))
        else:
            ready = self._waits.poll(self._poll, timeout_s)
        return any(fd == self._wake_fd for fd, _ in ready)
