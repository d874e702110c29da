"""Parses HTTP/1.1 requests from the bytes of a connection, without its socket (RFC 9112).

Feed a `Reader` bytes, split anywhere, and ask it for the head of a request, the parts of its body,
and then the next head. It parses only on demand: bytes that a client sends ahead stay unread.
httptools parses the heads; this module alone decides where a request ends.

Every limit on a request is in this file, with its reason, and is checked before the head is used.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

import httptools

LONGEST_LINE = 16 * 1024
"""Bytes of a request line. Browsers and proxies stop at 8 KiB or less; a config in a query of
farm's own API may be longer."""

LONGEST_HEAD = 64 * 1024
"""Bytes of a request line and all headers. Proxies allow 8 to 32 KiB; a head is buffered before its
token is checked."""

MOST_HEADERS = 128
"""Headers of a request. Browsers send about 20, proxies add ten; Apache allows 100."""

MOST_BLANK_LINES = 4
"""Empty lines before a request. RFC 9112 2.2 tolerates one, for clients that end a body with a line
break that its length does not count."""

LONGEST_CHUNK_LINE = 1024
"""Bytes of a chunk's size and its extensions, which clients do not use in practice."""

MOST_EXTENSIONS = 16 * 1024
"""Bytes of all chunk extensions of a body: they are read and discarded."""

LONGEST_TRAILER = 8 * 1024
"""Bytes of all trailers, which are read and discarded."""

KNOWN_HEADS, LONGEST_KNOWN = 256, 1024
"""Heads that are remembered, and the bytes of the longest. They take half a MiB of memory, or 4 MiB
if each consists of very many headers."""

_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_REQUEST_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+ \S+ HTTP/1\.[01]\r\n")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})((?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?[ \t]*)\r\n")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n")
_ABSOLUTE = re.compile(rb"(?i)https?://([^/?#@]+)([/?].*)?")
_ONCE = frozenset({b"host", b"content-length", b"transfer-encoding", b"origin", b"sec-fetch-site"})
"""Headers whose repetition could make two programs interpret one request differently."""


class HttpFault(Exception):
    """The bytes are not an acceptable request; the connection cannot be used afterwards.

    status: status of the answer; kind: the `type` in its error body.
    """

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message


class RequestHead(NamedTuple):
    """A request without its body.

    target: path and query; fields: all headers in order, names in lower case; headers: the same as
    a mapping, with the last value of a repeated header. length: bytes of the body; None: it is
    chunked. Other requests may have the same head: change nothing in it.
    """

    method: str
    target: bytes
    version: str
    fields: list[tuple[bytes, bytes]]
    headers: dict[bytes, bytes]
    length: int | None
    keep_alive: bool


class Reader:
    """Parses the requests of one connection, in order.

    whole: whether the body of the last head has been read completely; idle: and nothing else waits.
    After a Fault the reader cannot be used any more.
    """

    def __init__(self) -> None:
        self.whole = self.idle = True
        # Bytes fed, up to where they have been read, and up to where the end of a head was searched
        # for.
        self._data = b""
        self._at = 0
        self._searched = 0
        self._blank_lines = 0
        self._last = b""  # the last head, and how long a request is that has it
        self._last_size = 0
        # The body that is being read.
        self._left = 0  # bytes left of the body, or of its chunk
        self._chunks: _Chunks | None = None
        self._between = False  # two chunks

    @property
    def waiting(self) -> int:
        """Bytes that were fed and have not been read."""
        return len(self._data) - self._at

    @property
    def left(self) -> int | None:
        """Bytes left of the body; None: unknown, because it is chunked."""
        return self._left if self._chunks is None else None

    @property
    def run(self) -> int:
        """Bytes left of the body, or of its current chunk."""
        return self._left

    def beginning(self) -> RequestHead:
        """Return method and target of a head that cannot be read, as far as they have arrived."""
        line = self._data[self._at : self._at + LONGEST_LINE].partition(b"\r\n")[0]
        method, _, rest = line.partition(b" ")
        target = rest.partition(b" ")[0]
        return RequestHead(method.decode("latin-1"), target, "1.1", [], {}, 0, False)

    def feed(self, data: bytes) -> None:
        """Add bytes from the client."""
        if self._at == len(self._data):
            self._data = data
        else:
            self._data = self._data[self._at :] + data
        self._searched = max(0, self._searched - self._at)
        self._at = 0
        self.idle = False

    def alike(self, data: bytes) -> bytes | None:
        """Return the body if these bytes are a whole request with the head of the last one.

        Then they count as fed and read. Otherwise, or while other bytes wait, return None.
        """
        last = self._last
        if self.idle and len(data) == self._last_size and data.startswith(last):
            self._blank_lines = 0
            return data[len(last) :]
        return None

    def close(self) -> None:
        """Free all buffers; read nothing more."""
        self._data, self._at = b"", 0

    # Heads

    def head(self) -> RequestHead | None:
        """Return the next request's head once it is complete; read its body next. Raises Fault."""
        assert self.whole, "the body comes first"
        data = self._data
        while data.startswith(b"\r\n", self._at):
            self._at += 2
            self._blank_lines += 1
            if self._blank_lines > MOST_BLANK_LINES:
                raise _bad("empty lines where a request should begin")
        if self._at == len(data):
            self.idle = True
            return None
        end = data.find(b"\r\n\r\n", max(self._at, self._searched)) + 4
        if end < 4:
            self._check_beginning()
            self._searched = max(self._at, len(data) - 3)
            return None
        raw = data if end - self._at == len(data) else data[self._at : end]
        if len(raw) <= LONGEST_KNOWN:
            head = _known_head(raw)
            self._last, self._last_size = raw, len(raw) + (head.length or 0)
        else:
            head = _head_of(raw)
            self._last_size = -1
        self.whole = head.length == 0
        self._left = head.length or 0
        self._chunks = None if head.length is not None else _Chunks()
        self._at, self._searched, self._blank_lines = end, 0, 0
        self.idle = self.whole and end == len(data)
        return head

    def _check_beginning(self) -> None:
        """Check that the bytes so far may still become a head. Raises Fault."""
        data, at = self._data, self._at
        if data[at] not in _TOKEN and data[at:] != b"\r":
            raise _bad("no method")
        _check_lines(data, at, max(at, self._searched), len(data))
        _check_size(data, at, len(data))

    # Bodies

    def body(self) -> bytes | None:
        """Return the next part of the body; None: needs more bytes, or complete. Raises Fault.

        One call takes one chunk at most, so that a caller can count its steps.
        """
        if self.whole:
            return None
        if self._chunks is not None and not self._left and not self._next_chunk(self._chunks):
            return None
        at, data = self._at, self._data
        size = min(self._left, len(data) - at)
        if not size:
            return None
        part = data if size == len(data) else data[at : at + size]
        self._at = at + size
        self._left -= size
        if self._chunks is None:
            self.whole = not self._left
            self.idle = self.whole and self._at == len(data)
        elif not self._left:
            self._between = True
        return part

    def _next_chunk(self, chunks: _Chunks) -> bool:
        """Read up to the data of the next chunk. False: it has not arrived, or there is none."""
        if self._between:
            if self.waiting < 2:
                return False
            if not self._data.startswith(b"\r\n", self._at):
                raise _bad("a chunk that is longer than its size")
            self._at += 2
            self._between = False
        while (line := self._line()) is not None:
            if chunks.last:
                if line == b"\r\n":
                    self.whole = True
                    self.idle = self._at == len(self._data)
                    return False
                chunks.trailer(line)
                continue
            self._left = chunks.size(line)
            if self._left:
                return True
        return False

    def _line(self) -> bytes | None:
        end = self._data.find(b"\n", self._at, self._at + LONGEST_CHUNK_LINE) + 1
        if not end:
            if self.waiting >= LONGEST_CHUNK_LINE:
                raise _bad(f"a chunk's line or a trailer above {LONGEST_CHUNK_LINE} bytes")
            return None
        line = self._data[self._at : end]
        self._at = end
        return line


class _Chunks:
    """The lines of a chunked body, up to the one of the `last` chunk, and then its trailers.

    Source: RFC 9112 7.1.
    """

    __slots__ = ("_extensions", "_trailers", "last")

    def __init__(self) -> None:
        self.last = False
        self._extensions = 0
        self._trailers = 0

    def size(self, line: bytes) -> int:
        """Return the size in a chunk's first line. Raises Fault."""
        found = _CHUNK_LINE.fullmatch(line)
        if found is None:
            raise _bad("a chunk without a size")
        self._extensions += len(found[2])
        if self._extensions > MOST_EXTENSIONS:
            raise _bad(f"chunk extensions above {MOST_EXTENSIONS} bytes")
        size = int(found[1], 16)
        self.last = not size
        return size

    def trailer(self, line: bytes) -> None:
        """Skip a trailer. Raises Fault."""
        self._trailers += len(line)
        if self._trailers > LONGEST_TRAILER:
            raise HttpFault(431, "TooLarge", f"trailers above {LONGEST_TRAILER} bytes")
        if not _TRAILER.fullmatch(line):
            raise _bad("a trailer that is not a header")


def _bad(what: str) -> HttpFault:
    return HttpFault(400, "InvalidInput", f"this is not an HTTP/1.1 request: {what}")


class _Fields:
    """Receives the parts of a head from httptools."""

    __slots__ = ("all", "keep_alive", "parser", "target")

    def __init__(self) -> None:
        self.target = b""
        self.all: list[tuple[bytes, bytes]] = []
        self.keep_alive = False
        self.parser = httptools.HttpRequestParser(self)

    def on_url(self, part: bytes) -> None:
        """Add a part of the target."""
        self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header."""
        self.all.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """The head is complete. Without a body, the parser may forget it after this."""
        self.keep_alive = self.parser.should_keep_alive()


def _head_of(raw: bytes) -> RequestHead:
    """Return the head in these bytes, from the method to the empty line. Raises Fault."""
    _check_head(raw, 0, len(raw))
    found = _Fields()
    try:
        return _checked_head(raw, found)
    finally:
        del found.parser  # which refers back to it


def _checked_head(raw: bytes, found: _Fields) -> RequestHead:
    parser = found.parser
    try:
        parser.feed_data(raw)
    except httptools.HttpParserInvalidMethodError:
        if not _REQUEST_LINE.match(raw):
            raise _bad("no request line") from None
        raise HttpFault(501, "MethodNotAllowed", "an unknown method") from None
    except httptools.HttpParserUpgrade:
        pass  # a server may ignore it (RFC 9110 7.8)
    except httptools.HttpParserError as error:
        raise _bad(str(error)) from None
    method = parser.get_method().decode("ascii")
    version = parser.get_http_version()
    if method == "CONNECT":
        raise HttpFault(405, "MethodNotAllowed", "CONNECT is for proxies; this server is not one")
    if version not in ("1.1", "1.0"):
        if version == "0.9":
            raise _bad("no version")
        raise HttpFault(505, "InvalidInput", f"HTTP {version} is not supported; use 1.1")
    fields = found.all
    headers = dict(fields)
    if len(headers) != len(fields):
        _check_repeated(fields)
    if version == "1.1" and b"host" not in headers:
        raise _bad("no Host header, which version 1.1 requires")  # RFC 9112 3.2
    target = found.target
    if not target.startswith(b"/") and target != b"*":
        target = _relative(target, headers)
    length = _length(version, headers)
    keep_alive = version == "1.1" and found.keep_alive
    return RequestHead(method, target, version, fields, headers, length, keep_alive)


_known_head = lru_cache(KNOWN_HEADS)(_head_of)
"""A client's requests mostly have equal heads; to look one up takes 0.3 us, to parse it 3.8."""


def _check_head(data: bytes, at: int, end: int) -> None:
    """Check that a complete head keeps the limits. Raises Fault."""
    if data[at] not in _TOKEN:
        raise _bad("no method")
    _check_size(data, at, end)
    _check_lines(data, at, at, end)


def _check_lines(data: bytes, at: int, new: int, end: int) -> None:
    """Check that the lines of a head received so far keep the limits. Raises Fault.

    new: where the bytes begin whose line ends have not been checked yet.
    """
    if data.count(b"\n", new, end) != data.count(b"\r\n", max(at, new - 1), end):
        raise _bad("a line that ends without a carriage return")
    if data.count(b"\n", at, end) > 2 + MOST_HEADERS:  # the request line and an empty line
        raise HttpFault(431, "TooLarge", f"too many headers: at most {MOST_HEADERS} are read here")


def _check_size(data: bytes, at: int, end: int) -> None:
    if end - at <= LONGEST_LINE:
        return
    if data.find(b"\n", at, at + LONGEST_LINE) < 0:
        raise HttpFault(414, "TooLarge", f"the request line is longer than {LONGEST_LINE} bytes")
    if end - at > LONGEST_HEAD:
        raise HttpFault(431, "TooLarge", f"the headers are longer than {LONGEST_HEAD} bytes")


def _check_repeated(fields: list[tuple[bytes, bytes]]) -> None:
    names = [name for name, _ in fields if name in _ONCE]
    for name in names:
        if names.count(name) > 1:
            raise _bad(f"more than one {name.decode().title()} header")


def _relative(target: bytes, headers: dict[bytes, bytes]) -> bytes:
    """Return path and query of an absolute target, whose host takes precedence (RFC 9112 3.2.2)."""
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        raise _bad("a target that is neither a path nor a URL of HTTP")
    headers[b"host"] = found[1]
    path = found[2] or b""
    return path if path.startswith(b"/") else b"/" + path


def _length(version: str, headers: dict[bytes, bytes]) -> int | None:
    """Return the body's size in bytes; None: it is chunked. Raises Fault (RFC 9112 6.3)."""
    coding = headers.get(b"transfer-encoding")
    text = headers.get(b"content-length")
    if coding is not None:
        if coding.lower() != b"chunked" or version == "1.0" or text is not None:
            raise _bad("a Transfer-Encoding other than a lone chunked, of HTTP/1.1")
        return None
    if text is None:
        return 0
    if not text.isdigit() or len(text) > 18:
        raise _bad("a Content-Length that is not a length")
    return int(text)
