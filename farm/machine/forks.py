"""Objects with threads, locks or sockets, which a forked process has to renew.

A forked process has its parent's objects but only one thread, and a lock that another thread of
the parent held stays locked for ever. The sockets are shared: what the child writes appears in the
parent's stream.
"""

from __future__ import annotations

import logging
import os
import weakref
from typing import Protocol

log = logging.getLogger(__name__)


class Renewable(Protocol):
    """An object that works in forked processes, too."""

    def renew(self) -> None:
        """Drop, in the child, what belongs to the parent, without using its sockets or locks."""


_renewable: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_in_children(thing: Renewable) -> None:
    """Call `thing.renew()` in each process forked from this one, as long as `thing` exists."""
    _renewable.add(thing)


def _renew_all() -> None:
    for thing in list(_renewable):
        try:
            thing.renew()
        except Exception:  # the others can still be used
            log.exception("%r cannot be renewed in a forked process", thing)


os.register_at_fork(after_in_child=_renew_all)
