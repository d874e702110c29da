"""An HTTP client for one server; other threads can cancel its requests.

The standard library sends requests and reads answers; this module connects, reuses connections and
cancels. A request takes half the processor time that it takes with urllib3's pool. The first
request imports `http.client`: most model processes make none, and start sooner without it.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import os
import socket
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from farm.encoding.tensors import LONGEST_ANSWER
from farm.errors import Cancelled, InvalidOutput, InvalidRequest, Unavailable
from farm.machine.forks import renew_in_children
from farm.machine.listener import CONNECT_TIMEOUT_S, SOCKET_OPTIONS
from farm.version import __version__

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

IDLE_S = 30.0
"""Connections that were idle for longer are not reused; a farm closes them after 75 s."""

CONNECT_PAUSES_S = (0.1, 0.2, 0.4, 0.8)
"""Pauses before further attempts to connect, in case the server is restarting. Connecting again is
safe because nothing has been sent yet."""

PORTION_BYTES = 64 * 1024

PLAIN = "/%:@!$&'()*+,;=?"
"""Characters of a path or query that are not quoted, besides letters and digits (RFC 3986)."""

JSON: Mapping[str, str] = MappingProxyType({"Content-Type": "application/json"})


class Address:
    """The address of a server, and the headers that authenticate a client.

    url: `http://host:port`, optionally with `user:password@`, a path prefix and a query. The
    attribute of that name has no credentials and no query. Raises Unavailable for anything else.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        try:
            parts = urlsplit(url.strip())
            self.host, port = parts.hostname or "", parts.port
        except ValueError:
            self.host = ""
        if not self.host or parts.scheme not in ("http", "https"):
            raise Unavailable(f"{url!r} is not the address of a server; expected http://host:port")
        self.secure = parts.scheme == "https"
        self.port = (443 if self.secure else 80) if port is None else port
        self.path = quote(parts.path.rstrip("/"), safe=PLAIN)
        name = f"[{self.host}]" if ":" in self.host else self.host
        self.url = f"{parts.scheme}://{name}:{self.port}{self.path}"
        self._query = f"?{quote(parts.query, safe=PLAIN)}" if parts.query else ""
        self.headers = {"User-Agent": f"farm/{__version__}"}
        credentials = unquote(parts.netloc.rpartition("@")[0])
        if token is not None:
            self.headers["Authorization"] = f"Bearer {token}"
        elif credentials:
            basic = base64.b64encode(credentials.encode()).decode()
            self.headers["Authorization"] = f"Basic {basic}"

    def target(self, path: str) -> str:
        """Return the request target of a path below the URL; "" is the URL itself."""
        return self.path + path if path else (self.path or "/") + self._query


@dataclass(frozen=True, slots=True)
class Response:
    """An answer whose body has not been read yet; its methods raise OSError or HTTPException
    if the body is cut off.

    headers: names are in lower case.
    """

    status: int
    headers: Mapping[str, str]
    response: HTTPResponse

    def read(self, most: int = LONGEST_ANSWER) -> bytes:
        """Return the body. Raises InvalidOutput if it is longer than `most` bytes."""
        too_long = InvalidOutput(f"the answer is longer than {most} bytes, the most it can have")
        length = self.response.length
        if length is not None:
            if length > most:
                raise too_long
            return self.response.read()
        whole = bytearray()
        for portion in self.portions():  # it may have no end
            whole += portion
            if len(whole) > most:
                raise too_long
        return bytes(whole)

    def portions(self) -> Iterator[bytes]:
        """Yield the body in portions as they arrive."""
        while portion := self.response.read1(PORTION_BYTES):
            yield portion
        if self.response.length:  # http.client notices this in `read` only
            raise OSError(f"the answer ended {self.response.length} bytes too early")

    @property
    def is_whole(self) -> bool:
        """Whether the whole body was read."""
        left = self.response.length  # None if the body has no known length
        return left == 0 or (left is None and self.response.isclosed())


class Cancellation:
    """Lets one thread cancel the request that another thread makes with it."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None  # under the lock

    def cancel(self) -> None:
        """End the request now, or as soon as it begins: it raises Cancelled."""
        self._cancelled.set()
        with self._lock:
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    # After SSLSocket.shutdown, the other thread would continue without encryption.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def check(self) -> None:
        """Raise Cancelled if `cancel` was called."""
        if self._cancelled.is_set():
            raise Cancelled("the request was cancelled")

    def wait(self, seconds: float) -> None:
        """Wait for this time, or until cancelled."""
        self._cancelled.wait(seconds)

    def watch(self, used: socket.socket) -> None:
        """Make `cancel` shut this socket down from now on. Raises Cancelled if it was called."""
        with self._lock:
            self._socket = used
        self.check()

    def release(self) -> None:
        """Stop `cancel` from shutting the socket down."""
        with self._lock:
            self._socket = None

    def drop(self) -> None:
        """Close a forked process's copy of the socket; the parent's request goes on."""
        used, self._socket = self._socket, None
        _close_copy(used)


class HttpClient:
    """Sends requests to one server. Threads may share it: no two requests use a connection at once.

    A forked process opens connections of its own.

    url, token: as for `Address`. keep: whether connections are reused; it may be changed later.
    connect_s: time limit of one attempt to connect. Answers have no limit: models may take long.
    """

    def __init__(
        self,
        url: str,
        *,
        keep: bool,
        token: str | None = None,
        connect_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._address = Address(url, token)
        self._tls = ssl.create_default_context() if self._address.secure else None
        self._connect_s = connect_s
        self.url = self._address.url
        self.keep = keep
        self._lock = threading.Lock()
        # Under the lock. Idle connections, with the time of their last use, oldest first.
        self._idle: deque[tuple[float, HTTPConnection]] = deque()
        self._running: set[Cancellation] = set()
        self._closed = False
        weakref.finalize(self, _close_all, self._idle).atexit = False
        renew_in_children(self)

    def renew(self) -> None:
        """Start without connections, in a forked process; its parent's requests go on."""
        for cancellation in self._running:
            cancellation.drop()
        for _, connection in self._idle:
            _close_copy(connection.sock)
        self._lock = threading.Lock()
        self._running = set()
        self._idle.clear()

    def ask(
        self,
        path: str,
        body: bytes = b"",
        *,
        headers: Mapping[str, str] = JSON,
        once: bool = False,
        most: int = LONGEST_ANSWER,
        cancellation: Cancellation | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body of the answer. Raises as `answer` and `Response.read` do.

        once: send the request at most once, on a new connection. Otherwise it is sent a second time
        if connections are kept and one ends without an answer: a server may close an idle
        connection at the moment it is reused. most: bytes of the body.
        """
        with self.answer(
            path, body, headers, own=once, again=not once, cancellation=cancellation
        ) as answer:
            return answer.status, answer.headers, answer.read(most)

    @contextlib.contextmanager
    def answer(
        self,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] = JSON,
        *,
        own: bool = False,
        again: bool = False,
        cancellation: Cancellation | None = None,
    ) -> Iterator[Response]:
        """Send a POST with a body, or a GET without, and yield the answer with its body unread.

        own: use a new connection. again: send the request a second time as `ask` does without
        `once`. Raises Unavailable if there is no answer or it is cut off, Cancelled, and
        InvalidRequest for a header that HTTP does not allow.
        """
        cancellation = cancellation or Cancellation()
        keep = self.keep and not own
        headers = {**self._address.headers, **headers} | ({} if keep else {"Connection": "close"})
        request = ("POST" if body else "GET", self._address.target(path), body or None, headers)
        connection: HTTPConnection | None = None
        answer: Response | None = None
        with self._lock:
            if self._closed:
                raise Unavailable("the client is closed")
            self._running.add(cancellation)
        try:
            connection = self._idle_connection() if keep else None
            connection = connection or self._connected(cancellation)
            try:
                answer = _asked(connection, request, cancellation)
            except ConnectionError:
                if not (again and keep):
                    raise
                connection.close()
                connection = self._connected(cancellation)
                answer = _asked(connection, request, cancellation)
            yield answer
        except (OSError, _library().HTTPException) as error:
            cancellation.check()
            raise Unavailable(f"the server {self.url} does not answer: {_reason(error)}") from error
        finally:
            cancellation.release()
            keep = keep and answer is not None and answer.is_whole
            if answer is not None:
                answer.response.close()
            with self._lock:
                self._running.discard(cancellation)
                if connection is not None:
                    self._put_back(connection, keep and not self._closed)

    def close(self) -> None:
        """Close every connection; requests under way raise Cancelled."""
        with self._lock:
            self._closed = True
            running = list(self._running)
            _close_all(self._idle)
        for cancellation in running:
            cancellation.cancel()

    def _put_back(self, connection: HTTPConnection, keep: bool) -> None:
        if keep and connection.sock is not None:  # None once the server announces its end
            self._idle.append((time.monotonic(), connection))
        else:
            connection.close()

    def _idle_connection(self) -> HTTPConnection | None:
        with self._lock:
            oldest = time.monotonic() - IDLE_S
            while self._idle and self._idle[0][0] < oldest:
                self._idle.popleft()[1].close()
            while self._idle:
                _, connection = self._idle.pop()
                if _is_open(connection):
                    return connection
                connection.close()
        return None

    def _connected(self, cancellation: Cancellation) -> HTTPConnection:
        for pause_s in CONNECT_PAUSES_S:
            try:
                return self._connect(cancellation)
            except OSError:
                cancellation.wait(pause_s)
        return self._connect(cancellation)

    def _connect(self, cancellation: Cancellation) -> HTTPConnection:
        """Return a new connection to the first of the server's addresses that can be reached."""
        address = self._address
        connection: HTTPConnection
        if self._tls is None:
            connection = _library().HTTPConnection(address.host, address.port)
        else:
            connection = _library().HTTPSConnection(address.host, address.port, context=self._tls)
        connection.auto_open = 0  # connecting on its own could not be cancelled
        *others, last = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        for info in others:
            with contextlib.suppress(OSError):
                connection.sock = self._socket(info, cancellation)
                return connection
        connection.sock = self._socket(last, cancellation)
        return connection

    def _socket(self, info: tuple[Any, ...], cancellation: Cancellation) -> socket.socket:
        """Return a socket connected to one of the addresses from `getaddrinfo`."""
        family, kind, protocol, _, place = info
        connected = socket.socket(family, kind, protocol)
        try:
            for option in SOCKET_OPTIONS:
                connected.setsockopt(*option)
            connected.settimeout(self._connect_s)
            cancellation.watch(connected)
            connected.connect(place)
            if self._tls is not None:
                connected = secured = self._tls.wrap_socket(
                    connected, server_hostname=self._address.host, do_handshake_on_connect=False
                )
                cancellation.watch(secured)
                secured.do_handshake()
            connected.settimeout(None)
        except BaseException:
            connected.close()
            raise
        return connected


def _library() -> Any:
    return importlib.import_module("http.client")


def _asked(
    connection: HTTPConnection, request: tuple[Any, ...], cancellation: Cancellation
) -> Response:
    """Send a request and read the head of the answer. Raises ConnectionError if none comes."""
    cancellation.watch(connection.sock)
    try:
        # A server that refuses a long body may answer and close before reading all of it.
        with contextlib.suppress(BrokenPipeError):
            connection.request(*request)
    except ValueError as error:
        raise InvalidRequest(f"HTTP cannot have this header: {error}") from None
    response = connection.getresponse()
    lower = {name.lower(): value for name, value in response.headers.items()}
    return Response(response.status, lower, response)


def _is_open(connection: HTTPConnection) -> bool:
    """Whether the server has neither closed an idle connection nor sent anything unrequested."""
    try:
        socket.socket.recv(connection.sock, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _close_all(idle: deque[tuple[float, HTTPConnection]]) -> None:
    while idle:
        idle.pop()[1].close()


def _close_copy(shared: socket.socket | None) -> None:
    """Close this process's descriptor only; `close` would wait for the files made of the socket."""
    descriptor = -1 if shared is None else socket.socket.detach(shared)
    if descriptor >= 0:
        os.close(descriptor)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
