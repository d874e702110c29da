"""Decodes HPACK header blocks in time proportional to their size.

The package hpack takes 5 µs for one byte that names a table entry and 1 µs for each byte of Huffman
code, so one block of 64 KiB would block the event loop for a third of a second. Source: RFC 7541
(HPACK).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from farm.grpc.http2.frames import COMPRESSION_ERROR, ConnectionFailed

Field = tuple[bytes, bytes]

TABLE_BYTES = 4096
"""Largest size of the dynamic table, in bytes: the initial SETTINGS_HEADER_TABLE_SIZE."""

ENTRY_BYTES = 32
"""Bytes that each field counts in addition to its name and value; section 4.1."""

SIZE_UPDATES = 2
"""Most updates of the table's size in one block; section 4.2."""


class HpackDecoder:
    """Decodes the blocks of one connection, which share a table."""

    def __init__(self) -> None:
        self._added: list[Field] = []  # the newest last
        self._size = 0
        self._most = TABLE_BYTES

    def decode(self, block: bytes, limit: int) -> tuple[list[Field], int]:
        """Return the fields of `block` that fit into `limit` bytes, and the size of all fields.

        Fields beyond the limit still enter the table, so that later blocks are decoded correctly.
        Raises ConnectionFailed.
        """
        try:
            return self._decode(block, limit)
        except IndexError:
            raise _failed("the block is cut short") from None

    def _decode(self, block: bytes, limit: int) -> tuple[list[Field], int]:
        fields: list[Field] = []
        listed = position = updates = 0
        end = len(block)
        while position < end:
            first = block[position]
            position += 1
            if first >= 0x80:  # section 6.1: name and value are in a table
                index = first & 0x7F
                if index == 0x7F:
                    index, position = _number(block, position, 0x7F)
                field = self._entry(index)
            elif first & 0xE0 == 0x20:  # section 6.3
                size, updates = first & 0x1F, updates + 1
                if size == 0x1F:
                    size, position = _number(block, position, 0x1F)
                if listed or updates > SIZE_UPDATES or size > TABLE_BYTES:
                    raise _failed("an invalid update of the table's size")
                self._most = size
                self._evict()
                continue
            else:  # section 6.2: a literal value, with a literal name or one from a table
                prefix = 0x3F if first & 0x40 else 0x0F
                index = first & prefix
                if index == prefix:
                    index, position = _number(block, position, prefix)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, position = _string(block, position)
                value, position = _string(block, position)
                field = (name, value)
                if first & 0x40:
                    self._add(field)
            listed += len(field[0]) + len(field[1]) + ENTRY_BYTES
            if listed <= limit:
                fields.append(field)
        return fields, listed

    def _entry(self, index: int) -> Field:
        if 0 < index <= len(STATIC):
            return STATIC[index - 1]
        if len(STATIC) < index <= len(STATIC) + len(self._added):
            return self._added[len(STATIC) - index]
        raise _failed(f"there is no entry {index} in the tables")

    def _add(self, field: Field) -> None:
        self._added.append(field)
        self._size += len(field[0]) + len(field[1]) + ENTRY_BYTES
        if self._size > self._most:
            self._evict()

    def _evict(self) -> None:
        """Drop the oldest entries until the rest fits; section 4.3."""
        gone = 0
        while self._size > self._most:
            name, value = self._added[gone]
            self._size -= len(name) + len(value) + ENTRY_BYTES
            gone += 1
        del self._added[:gone]


def _failed(text: str) -> ConnectionFailed:
    return ConnectionFailed(COMPRESSION_ERROR, f"headers: {text}")


def _number(block: bytes, position: int, start: int) -> tuple[int, int]:
    """Return a number whose prefix is full, and the position after it; section 5.1."""
    for shift in (0, 7, 14, 21):
        byte = block[position]
        position += 1
        start += (byte & 0x7F) << shift
        if byte < 0x80:
            return start, position
    raise _failed("a number is too long")


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    """Return a string and the position after it; section 5.2."""
    first = block[position]
    position += 1
    size = first & 0x7F
    if size == 0x7F:
        size, position = _number(block, position, 0x7F)
    after = position + size
    if after > len(block):
        raise _failed("a string is longer than its block")
    text = block[position:after]
    return (_huffman_decoded(text) if first & 0x80 else text), after


# Huffman codes

Step = tuple[int, bytes]
"""The next state times 16, and the byte that this step completes, or b""."""


def _huffman_decoded(packed: bytes) -> bytes:
    steps, ends = _machine()
    state, text = 0, bytearray()
    for byte in packed:
        state, whole = steps[state + (byte >> 4)]
        text += whole
        state, whole = steps[state + (byte & 15)]
        text += whole
    if state not in ends:
        raise _failed("a string's Huffman code is invalid")
    return bytes(text)


@cache
def _machine() -> tuple[list[Step], frozenset[int]]:
    """Return the steps, indexed by state times 16 plus four bits, and the valid final states.

    A state is a node of the codes' tree, starting with its root; the last state means an invalid
    code.
    """
    tree: list[list[int]] = [[0, 0]]  # for each node and next bit: a node, or ~symbol
    for symbol, (code, length) in _codes().items():
        node = 0
        for bit in f"{code:0{length}b}"[:-1]:
            if not (after := tree[node][int(bit)]):
                tree.append([0, 0])
                after = tree[node][int(bit)] = len(tree) - 1
            node = after
        tree[node][code & 1] = ~symbol
    wrong = len(tree)
    steps: list[Step] = []
    for start in range(len(tree)):
        for bits in range(16):
            node, whole = start, b""
            for shift in (3, 2, 1, 0):
                if node == wrong:
                    break
                node = tree[node][bits >> shift & 1]
                if node < 0:
                    symbol, node = ~node, 0
                    if symbol == END_OF_STRING:
                        node = wrong
                    else:
                        whole = bytes((symbol,))
            steps.append((16 * node, whole))
    steps += [(16 * wrong, b"")] * 16
    # The last byte is padded with fewer than eight ones, the beginning of END_OF_STRING.
    ends, node = {0}, 0
    for _ in range(7):
        node = tree[node][1]
        ends.add(16 * node)
    return steps, frozenset(ends)


def _codes() -> Mapping[int, tuple[int, int]]:
    """Return code and length of each symbol: codes count up, by length and then by symbol."""
    codes: dict[int, tuple[int, int]] = {}
    code = last = 0
    for symbol in sorted(range(len(LENGTHS)), key=LENGTHS.__getitem__):
        length = LENGTHS[symbol]
        code <<= length - last
        codes[symbol] = (code, length)
        code, last = code + 1, length
    return MappingProxyType(codes)


END_OF_STRING = 256
# fmt: off
LENGTHS = (
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7,
    7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21,
    23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24,
    21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
)
"""Length of each symbol's code in bits; appendix B."""

STATIC: tuple[Field, ...] = (
    (b":authority", b""), (b":method", b"GET"), (b":method", b"POST"), (b":path", b"/"),
    (b":path", b"/index.html"), (b":scheme", b"http"), (b":scheme", b"https"),
    (b":status", b"200"), (b":status", b"204"), (b":status", b"206"), (b":status", b"304"),
    (b":status", b"400"), (b":status", b"404"), (b":status", b"500"), (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"), (b"accept-language", b""), (b"accept-ranges", b""),
    (b"accept", b""), (b"access-control-allow-origin", b""), (b"age", b""), (b"allow", b""),
    (b"authorization", b""), (b"cache-control", b""), (b"content-disposition", b""),
    (b"content-encoding", b""), (b"content-language", b""), (b"content-length", b""),
    (b"content-location", b""), (b"content-range", b""), (b"content-type", b""), (b"cookie", b""),
    (b"date", b""), (b"etag", b""), (b"expect", b""), (b"expires", b""), (b"from", b""),
    (b"host", b""), (b"if-match", b""), (b"if-modified-since", b""), (b"if-none-match", b""),
    (b"if-range", b""), (b"if-unmodified-since", b""), (b"last-modified", b""), (b"link", b""),
    (b"location", b""), (b"max-forwards", b""), (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""), (b"range", b""), (b"referer", b""), (b"refresh", b""),
    (b"retry-after", b""), (b"server", b""), (b"set-cookie", b""),
    (b"strict-transport-security", b""), (b"transfer-encoding", b""), (b"user-agent", b""),
    (b"vary", b""), (b"via", b""), (b"www-authenticate", b""),
)
"""The static table, the same for every connection; appendix A."""
# fmt: on
