"""A compact index in memory: where in the file the evaluation of a key begins.

Two arrays of 64-bit numbers for each of 1024 hash tables: 16 bytes a slot, and between 20 and 40
bytes a point, as tables are kept between 40 and 80 percent full. A table of a large index grows in
milliseconds, while one dictionary of ten million entries would stop the event loop for a second.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

TABLES = 1024
FEWEST_SLOTS = 8
FULL = 0.8
_EMPTY = 2**64 - 1


class _Table:
    """An open-addressed table from 64 bits of a key to an offset."""

    __slots__ = ("count", "keys", "offsets")

    def __init__(self, slots: int = FEWEST_SLOTS) -> None:
        self.count = 0
        self.keys = array("Q", [0]) * slots
        self.offsets = array("Q", [_EMPTY]) * slots

    def slot(self, key: int) -> int:
        """Return the slot that holds the key, or the empty one where it belongs."""
        keys, offsets = self.keys, self.offsets
        mask = len(keys) - 1
        at = key & mask
        while offsets[at] != _EMPTY and keys[at] != key:
            at = (at + 1) & mask
        return at

    def put(self, key: int, offset: int) -> None:
        at = self.slot(key)
        if self.offsets[at] == _EMPTY:
            self.count += 1
        self.keys[at] = key
        self.offsets[at] = offset

    def doubled(self) -> _Table:
        larger = _Table(2 * len(self.keys))
        for key, offset in zip(self.keys, self.offsets, strict=True):
            if offset != _EMPTY:
                larger.put(key, offset)
        return larger


class Index:
    """Maps keys to offsets; of several offsets of a key it has the last.

    It keeps 64 of a key's bits: compare the whole key with the one in the file.
    """

    def __init__(self) -> None:
        self._tables = [_Table() for _ in range(TABLES)]

    def __len__(self) -> int:
        return sum(table.count for table in self._tables)

    def put(self, key: bytes, offset: int) -> None:
        """Map a key to the offset of its evaluation."""
        number = int.from_bytes(key[:8], "little")
        which = number % TABLES
        table = self._tables[which]
        table.put(number // TABLES, offset)
        if table.count > FULL * len(table.keys):
            self._tables[which] = table.doubled()

    def find(self, key: bytes) -> int | None:
        """Return the offset of a key's evaluation."""
        number = int.from_bytes(key[:8], "little")
        table = self._tables[number % TABLES]
        offset = table.offsets[table.slot(number // TABLES)]
        return None if offset == _EMPTY else offset

    def remove(self, key: bytes) -> None:
        """Forget a key whose evaluation cannot be read; later ones of the same key may come."""
        number = int.from_bytes(key[:8], "little")
        which = number % TABLES
        table = self._tables[which]
        number //= TABLES
        if table.offsets[table.slot(number)] == _EMPTY:
            return
        left = _Table(len(table.keys))
        for other, offset in zip(table.keys, table.offsets, strict=True):
            if offset != _EMPTY and other != number:
                left.put(other, offset)
        self._tables[which] = left

    def offsets(self) -> Iterator[int]:
        """Yield all offsets."""
        for table in self._tables:
            yield from (offset for offset in table.offsets if offset != _EMPTY)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the entries take."""
        return sum(16 * len(table.keys) for table in self._tables)
