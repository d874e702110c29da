"""Makes this process the parent of its orphaned descendants, for a moment."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37  # linux/prctl.h

_lock = threading.Lock()
_blocks = 0
_before = 0


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Adopt, during the block, the descendants of this process whose parents end. Only on Linux.

    Otherwise the first process of the machine adopts them. Blocks of several threads may overlap.
    Keep the block short: a process that a model has left behind may become an orphan meanwhile, and
    this process would have to wait for it. Raises OSError if the system does not allow it.
    """
    global _blocks, _before
    with _lock:
        if not _blocks:
            was = ctypes.c_int()
            _prctl(_GET_CHILD_SUBREAPER, ctypes.byref(was))
            _prctl(_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))
            _before = was.value
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if not _blocks and not _before:
                _prctl(_SET_CHILD_SUBREAPER, ctypes.c_ulong(0))


def _prctl(option: int, value: object) -> None:
    nothing = ctypes.c_ulong(0)
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except AttributeError:
        raise OSError("this system has no prctl(2)") from None
    if prctl(option, value, nothing, nothing, nothing):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
