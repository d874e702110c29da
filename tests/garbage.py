"""Objects that nobody can reach any more, and that only a search for garbage cycles finds."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage() -> Iterator[list[str]]:
    """Lists, after the block, the kinds of farm's objects and tasks that were left in cycles."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds = [f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.garbage]
        found += sorted({k for k in kinds if k.startswith(("farm.", "_asyncio.", "httptools."))})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
