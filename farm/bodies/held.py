"""A bound on the bytes of large bodies that a server holds, over all of its connections.

A body reserves its whole size before it is read. A body with a reservation can therefore be read
to the end independently of the others, so that two bodies never wait for each other. Bodies that
do not fit wait in order, and their bytes stay in the network.
"""

from __future__ import annotations

from collections.abc import Callable

FREE_BYTES = 64 * 1024
"""A body up to this size needs no reservation: small calls never wait for large ones, and a
connection may have this much in its receive buffer anyway.
"""


class Share:
    """A reservation of bytes, granted or waiting. granted: whether the bytes may be used."""

    __slots__ = ("_held", "_on_granted", "granted", "size")

    def __init__(self, held: HeldBytes, size: int, on_granted: Callable[[], None]) -> None:
        self.size = size
        self.granted = False
        self._held = held
        self._on_granted = on_granted

    def grant(self) -> None:
        """Grant the reservation and notify its owner; called by HeldBytes."""
        self.granted = True
        self._on_granted()

    def resize(self, size: int) -> None:
        """Change the number of reserved bytes, for a body whose size was not known before."""
        if self.granted:
            self._held.change(size - self.size)
        self.size = size

    def release(self) -> None:
        """Release the bytes, or stop waiting for them."""
        if self.granted:
            self.resize(0)
        else:
            self._held.forget(self)


class HeldBytes:
    """Grants at most `limit` bytes at a time, in the order of requests.

    A single share may be larger than the limit: it is granted when no other share is.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: dict[Share, None] = {}  # in order of request

    @property
    def contended(self) -> bool:
        """Whether any share is waiting."""
        return bool(self._waiting)

    def reserve(self, size: int, on_granted: Callable[[], None]) -> Share:
        """Return a share of `size` bytes; `on_granted` is called if it is not granted at once."""
        share = Share(self, size, on_granted)
        if not self._waiting and self._fits(size):
            share.granted = True
            self.used += size
        else:
            self._waiting[share] = None
        return share

    def hold(self, size: int) -> Share:
        """Return a granted share for bytes that are already in memory, even beyond the limit."""
        share = Share(self, size, lambda: None)
        share.granted = True
        self.used += size
        return share

    def change(self, by: int) -> None:
        """Adjust the number of bytes in use and grant waiting shares; called by Share."""
        self.used += by
        while self._waiting:
            share = next(iter(self._waiting))
            if not self._fits(share.size):
                break
            del self._waiting[share]
            self.used += share.size
            share.grant()

    def forget(self, share: Share) -> None:
        """Remove a waiting share; called by Share."""
        if share in self._waiting:
            del self._waiting[share]
            self.change(0)  # those behind it may fit now

    def _fits(self, size: int) -> bool:
        return not self.used or self.used + size <= self.limit
