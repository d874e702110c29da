"""One thread's HTTP connection to a server: a request at a time, which other threads may abort."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Protocol
from urllib.parse import unquote

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, LocationParseError
from urllib3.util import parse_url

from farm.errors import Unavailable

IDLE_S = 30.0
"""A connection that idled longer is not used again; a farm closes them after 75 s."""

CONNECT_S = 10.0
CONNECT_PAUSES_S = (0.1, 0.2, 0.4, 0.8)
"""Before each further attempt: connecting again is safe, as nothing has been asked yet."""

SOCKET_OPTIONS: list[tuple[int, int, int | bytes]] = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # A model may run for hours: a server that vanished is noticed, and routers do not forget it.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]

FAILURES = (OSError, http.client.HTTPException, HTTPError)


class Address:
    """Where a server is, and how one gets in.

    url: `http://host:port`, with `user:password@` and a path before the server's own if need be.
    Raises Unavailable when it is none.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        try:
            parts = parse_url(url.strip())
        except LocationParseError:
            parts = parse_url("")
        if parts.scheme not in ("http", "https") or not parts.host:
            raise Unavailable(f"{url!r} is not the address of a server; expected http://host:port")
        self.secure = parts.scheme == "https"
        self.host = parts.host.strip("[]")
        self.port = parts.port or (443 if self.secure else 80)
        self.path = (parts.path or "").rstrip("/")
        self.url = f"{parts.scheme}://{parts.host}:{self.port}{self.path}"
        self.headers = {"Content-Type": "application/json"}
        if token is not None:
            self.headers["Authorization"] = f"Bearer {token}"
        elif parts.auth:
            self.headers |= urllib3.make_headers(basic_auth=unquote(parts.auth))


class Purpose(Protocol):
    """What an exchange is for."""

    def wanted(self) -> bool:
        """Whether anybody still waits for the answer."""


class Exchange:
    """Asks a server, over one connection.

    keep: use the connection again; else each request has its own.
    """

    def __init__(self, address: Address, *, keep: bool) -> None:
        self._address = address
        self._keep = keep
        kind = HTTPSConnection if address.secure else HTTPConnection
        self._connection = kind(address.host, address.port, socket_options=SOCKET_OPTIONS)
        self._used_at = 0.0
        # The thread that it belongs to may end without a word. At the end of the program it may
        # be in the middle of an answer, which closing would wait for.
        weakref.finalize(self, self._connection.close).atexit = False
        self._lock = threading.Lock()
        # Under the lock.
        self._purpose: Purpose | None = None
        self._busy = False

    @contextlib.contextmanager
    def answer(
        self,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] = MappingProxyType({}),
        *,
        purpose: Purpose | None = None,
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """The answer, its body still to be read; a GET when there is no body to send.

        Raises Unavailable when there is no answer, or it breaks off, or nobody wants it any more.
        """
        with self._lock:
            self._purpose = purpose
            self._busy = True
        whole = False
        try:
            response = self._open(path, body, headers, purpose)
            yield response
            whole = response.closed or response.length_remaining == 0
        except FAILURES as error:
            raise Unavailable(f"{self._address.url} does not answer: {_said(error)}") from error
        finally:
            with self._lock:
                self._purpose = None
                self._busy = False
                self._used_at = time.monotonic()
                if not (whole and self._keep):
                    self._connection.close()

    def abort(self, purpose: Purpose) -> None:
        """Break off the exchange for this purpose, which is wanted no more, if it is under way."""
        with self._lock:
            if self._purpose is purpose and self._connection.sock is not None:
                with contextlib.suppress(OSError):
                    self._connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection now, or when what it does is done."""
        with self._lock:
            self._keep = False
            if not self._busy:
                self._connection.close()

    def _open(
        self, path: str, body: bytes, headers: Mapping[str, str], purpose: Purpose | None
    ) -> urllib3.BaseHTTPResponse:
        connection = self._connection
        if not connection.is_connected or time.monotonic() - self._used_at > IDLE_S:
            self._connect()
        if purpose is not None and not purpose.wanted():  # after connecting, see `abort`
            raise OSError("the call was taken back")
        connection.request(
            "POST" if body else "GET",
            self._address.path + path,
            body=body or None,
            headers={
                **self._address.headers,
                **headers,
                "Connection": "keep-alive" if self._keep else "close",
            },
            preload_content=False,
        )
        return connection.getresponse()

    def _connect(self) -> None:
        connection = self._connection
        for pause_s in (*CONNECT_PAUSES_S, None):
            connection.close()
            connection.timeout = CONNECT_S
            try:
                connection.connect()
                break
            except FAILURES:
                if pause_s is None:
                    raise
                time.sleep(pause_s)
        connection.timeout = None  # a model takes the time it takes
        connection.sock.settimeout(None)


def _said(error: BaseException) -> str:
    """The cause in words; urllib3 wraps it in the address of an object."""
    cause = error.__cause__ or error.__context__
    if isinstance(error, HTTPError) and isinstance(cause, OSError):
        error = cause
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
