"""A compact index in memory: where in the file the evaluation of a key begins.

Two arrays of 64-bit numbers for each of 1024 hash tables: 16 bytes a slot, and between 20 and 40
bytes a point, as tables are kept between 40 and 80 percent full. A table of a large index grows in
milliseconds, while one dictionary of ten million entries would stop the event loop for a second.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np

from farm.call import Array

TABLES = 1024
INDEXED_BYTES = 8
"""Bytes of a key that the index keeps."""

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

    def copied(self, slots: int, *, without: int | None = None) -> _Table:
        """Return a table of so many slots with the same entries, but for one key."""
        copy = _Table(slots)
        for key, offset in zip(self.keys, self.offsets, strict=True):
            if offset != _EMPTY and key != without:
                copy.put(key, offset)
        return copy

    def joined(self, keys: Array, offsets: Array) -> _Table:
        """Return a table of these entries too, of which later ones replace earlier ones."""
        own = np.frombuffer(self.offsets, np.uint64)
        used = own != _EMPTY
        keys = np.concatenate([np.frombuffer(self.keys, np.uint64)[used], keys])
        offsets = np.concatenate([own[used], offsets])
        keys, at = np.unique(keys[::-1], return_index=True)
        offsets = offsets[::-1][at]
        slots = len(self.keys)
        while len(keys) > FULL * slots:
            slots *= 2
        table = _Table(slots)
        homes = (keys & np.uint64(slots - 1)).astype(np.int64)
        order = np.argsort(homes, kind="stable")
        rank = np.arange(len(keys))
        # In order of their homes, each entry goes to its home or behind the entry before it.
        places = np.maximum.accumulate(homes[order] - rank) + rank
        inside = places < slots
        np.frombuffer(table.keys, np.uint64)[places[inside]] = keys[order[inside]]
        np.frombuffer(table.offsets, np.uint64)[places[inside]] = offsets[order[inside]]
        table.count = int(inside.sum())
        for beyond in order[~inside]:  # the others begin again at the first slot
            table.put(int(keys[beyond]), int(offsets[beyond]))
        return table


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
        number = int.from_bytes(key[:INDEXED_BYTES], "little")
        which = number % TABLES
        table = self._tables[which]
        table.put(number // TABLES, offset)
        if table.count > FULL * len(table.keys):
            self._tables[which] = table.copied(2 * len(table.keys))

    def put_all(self, keys: bytes | bytearray, offsets: array[int]) -> None:
        """Map many keys in less time; `keys` has the first `INDEXED_BYTES` of each."""
        numbers = np.frombuffer(keys, "<u8")
        tables = numbers % TABLES
        order = np.argsort(tables, kind="stable")
        ends = np.searchsorted(tables[order], np.arange(TABLES + 1))
        numbers = numbers[order] // TABLES
        places = np.frombuffer(offsets, np.uint64)[order]
        for which, table in enumerate(self._tables):
            own = slice(ends[which], ends[which + 1])
            if own.start < own.stop:
                self._tables[which] = table.joined(numbers[own], places[own])

    def find(self, key: bytes) -> int | None:
        """Return the offset of a key's evaluation."""
        number = int.from_bytes(key[:INDEXED_BYTES], "little")
        table = self._tables[number % TABLES]
        offset = table.offsets[table.slot(number // TABLES)]
        return None if offset == _EMPTY else offset

    def remove(self, key: bytes) -> None:
        """Forget a key whose evaluation cannot be read; later ones of the same key may come."""
        number, which = divmod(int.from_bytes(key[:INDEXED_BYTES], "little"), TABLES)
        table = self._tables[which]
        self._tables[which] = table.copied(len(table.keys), without=number)

    def offsets(self) -> Iterator[int]:
        """Yield all offsets."""
        for table in self._tables:
            yield from (offset for offset in table.offsets if offset != _EMPTY)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the entries take."""
        return sum(16 * len(table.keys) for table in self._tables)
