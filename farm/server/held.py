"""How many bytes of large bodies a server may hold, over all of its connections.

A body reserves its whole size before it is read. Whoever has a reservation can therefore be read to
the end whatever the others do, so that no two bodies can wait for each other. Who does not fit
waits in order, with its bytes left in the network.
"""

from __future__ import annotations

from collections.abc import Callable

FREE_BYTES = 64 * 1024
"""A body up to this long needs no reservation: small calls never wait for large ones, and this is
what a connection may have in its receive buffer anyway."""


class Share:
    """Bytes that somebody holds, or waits for. granted: whether they may be used."""

    __slots__ = ("_held", "_on_granted", "granted", "size")

    def __init__(self, held: HeldBytes, size: int, on_granted: Callable[[], None]) -> None:
        self.size = size
        self.granted = False
        self._held = held
        self._on_granted = on_granted

    def grant(self) -> None:
        """Called by HeldBytes when its turn has come."""
        self.granted = True
        self._on_granted()

    def resize(self, size: int) -> None:
        """Hold another number of bytes from now on: the size was not known before."""
        if self.granted:
            self._held.change(size - self.size)
        self.size = size

    def release(self) -> None:
        """Hold nothing and wait for nothing any more."""
        if self.granted:
            self.resize(0)
        else:
            self._held.forget(self)


class HeldBytes:
    """Gives out at most `limit` bytes at a time, in the order of requests.

    A single share may be larger than the limit: it is granted when nobody has anything.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: dict[Share, None] = {}  # in their order

    @property
    def contended(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def reserve(self, size: int, on_granted: Callable[[], None]) -> Share:
        """A share of `size` bytes; `on_granted` is called if it is not granted at once."""
        share = Share(self, size, on_granted)
        if not self._waiting and self._fits(size):
            share.granted = True
            self.used += size
        else:
            self._waiting[share] = None
        return share

    def hold(self, size: int) -> Share:
        """A share of bytes that are held already, whether they fit or not."""
        share = Share(self, size, lambda: None)
        share.granted = True
        self.used += size
        return share

    def change(self, by: int) -> None:
        """For Share: more or fewer bytes are held."""
        self.used += by
        while self._waiting:
            share = next(iter(self._waiting))
            if not self._fits(share.size):
                break
            del self._waiting[share]
            self.used += share.size
            share.grant()

    def forget(self, share: Share) -> None:
        """For Share: it waits no more."""
        if share in self._waiting:
            del self._waiting[share]
            self.change(0)  # those behind it may fit

    def _fits(self, size: int) -> bool:
        return not self.used or self.used + size <= self.limit
