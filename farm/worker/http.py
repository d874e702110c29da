"""Servers of models that are asked over HTTP.

urllib3 is imported by the first of them: most model processes ask no server, and start sooner so.
"""

from __future__ import annotations

import importlib
import re
import socket
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from farm.errors import Unavailable

if TYPE_CHECKING:
    import urllib3

CONNECT_TIMEOUT_S = 30.0
CONNECT_RETRIES = 4  # within 1.5 s, for a server that starts anew; nothing has been asked yet

CONNECTIONS_KEPT = 8
"""One for each thread that asks at once; more are made where needed and closed afterwards."""

SOCKET_OPTIONS = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # A model may run for hours: routers on the way must not forget the connection.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
]

JSON = {"Content-Type": "application/json"}

Headers = Mapping[str, str]


class Server:
    """A server by URL, `http://host:port` with `user:password@` if need be; threads may share it.

    keep: whether connections are used again. A server may close one just as it is used: a request
    on it that has no answer is then sent once more. Otherwise each request has its own.
    """

    def __init__(self, url: str, *, keep: bool) -> None:
        scheme, credentials, rest = _split(url)
        self.url = f"{scheme}://{rest}".rstrip("/")
        self._headers = {} if keep else {"Connection": "close"}
        if credentials:
            self._headers |= _urllib3().make_headers(basic_auth=unquote(credentials))
        self._ssl = ssl.create_default_context() if scheme == "https" else None
        self._kept = self._connections(again=1) if keep else None

    def ask(
        self,
        path: str,
        body: bytes = b"",
        *,
        method: str = "",
        headers: Headers = JSON,
        once: bool = False,
    ) -> tuple[int, Headers, bytes]:
        """Status, headers and body of the answer. Raises Unavailable when there is none.

        method: POST with a body and GET without, unless said. once: send the request at most once,
        on a connection of its own.
        """
        if self._kept is not None and not once:
            return self._ask(self._kept, path, body, method, headers)
        # A pool would keep the connection whenever the server does not say that it closes it.
        with self._connections(again=0) as connections:
            return self._ask(connections, path, body, method, headers)

    def _ask(
        self,
        connections: urllib3.PoolManager,
        path: str,
        body: bytes,
        method: str,
        headers: Headers,
    ) -> tuple[int, Headers, bytes]:
        exceptions = _urllib3().exceptions
        try:
            response = connections.request(
                method or ("POST" if body else "GET"),
                self.url + path,
                body=body or None,
                headers={**self._headers, **headers},
                redirect=False,
            )
        except exceptions.HTTPError as error:
            reason = error.reason if isinstance(error, exceptions.MaxRetryError) else error
            raise Unavailable(f"the model server {self.url} does not answer: {reason}") from error
        return response.status, response.headers, response.data

    def _connections(self, *, again: int) -> urllib3.PoolManager:
        library = _urllib3()
        made: urllib3.PoolManager = library.PoolManager(
            maxsize=CONNECTIONS_KEPT,
            ssl_context=self._ssl,
            timeout=library.Timeout(connect=CONNECT_TIMEOUT_S, read=None),
            retries=library.Retry(
                total=CONNECT_RETRIES,
                connect=CONNECT_RETRIES,
                read=again or False,
                status=False,
                other=False,
                allowed_methods=None,
                backoff_factor=0.1,
            ),
            socket_options=SOCKET_OPTIONS,
        )
        return made


def _urllib3() -> Any:
    return importlib.import_module("urllib3")


def _split(url: str) -> tuple[str, str, str]:
    """Scheme, `user:password` and the rest of a URL."""
    match = re.fullmatch(r"(https?)://(?:([^/]*)@)?([^/].*)", url.strip())
    if match is None:
        raise Unavailable(f"{url!r} is not the address of a server; expected http://host:port")
    return match[1], match[2] or "", match[3]
