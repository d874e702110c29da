"""Find unreachable objects that only the garbage collector can free."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage() -> Iterator[list[str]]:
    """A list that holds, after the block, the types of farm's objects left in reference cycles."""
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
