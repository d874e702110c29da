"""Find unreachable objects that only the garbage collector can free."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage() -> Iterator[list[str]]:
    """Yield a list that, after the block, holds the types of farm's objects left in cycles.

    Only objects that are created in the block count.
    """
    found: list[str] = []
    gc.collect()
    gc.freeze()
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
        gc.unfreeze()
        gc.enable()
