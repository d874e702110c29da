"""Who may come in: loopback is free, anybody else shows the farm's token."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import socket
from functools import lru_cache

from farm.server.door import Headers, Refused

FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip"})
"""A proxy on this host connects from loopback on behalf of somebody who may be anywhere."""

UNIX_PEER = "unix"
"""Who comes by a Unix socket, which is for its user alone."""


class Access:
    """The token rule; `token` None lets everybody in.

    `Authorization: Bearer TOKEN` or Basic with the token as the password, so that
    `http://anyname:TOKEN@host:4242` works in clients that cannot set headers. By a Unix socket and
    from loopback none is needed, unless a proxy forwards the request, or it comes from loopback and
    names a host that is not this machine: a web page that had its own name resolved to 127.0.0.1 is
    no local user.
    """

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()

    def user(self, peer: str, headers: Headers) -> str:
        """The name the client gives with its Basic credentials, or "".

        Raises Refused when it may not come in.
        """
        user, password = _credentials(headers.get(b"authorization", b""))
        if self._token is None or _is_local(peer, headers):
            return user
        if hmac.compare_digest(password, self._token):
            return user
        missing = b"authorization" not in headers
        raise Refused(
            401,
            "Unauthorized",
            f"{'no token was given' if missing else 'that is not the token'}; "
            "write http://user:TOKEN@host:port or send the header Authorization: Bearer TOKEN; "
            "the token is in the farm.json that `farm serve` wrote",
            headers=((b"www-authenticate", b'Basic realm="farm", charset="UTF-8"'),),
        )


def _is_local(peer: str, headers: Headers) -> bool:
    if not FORWARDED.isdisjoint(headers):
        return False
    if peer == UNIX_PEER:
        return True
    return _is_loopback(peer) and _names_this_machine(headers.get(b"host", b""))


def _is_loopback(host: str) -> bool:
    return host.startswith(("127.", "::ffff:127.")) or host == "::1"


@lru_cache(maxsize=256)
def _names_this_machine(host: bytes) -> bool:
    """Whether a Host header says localhost, this machine's name or an address of whatever kind."""
    name = host.decode("latin-1").lower().rpartition("]")[0].removeprefix("[")
    name = name or host.decode("latin-1").lower().partition(":")[0]
    if name in ("", "localhost", socket.gethostname().lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _credentials(authorization: bytes) -> tuple[str, bytes]:
    """The user name and the password or token of an Authorization header; empty where not given."""
    scheme, _, value = authorization.partition(b" ")
    if scheme.lower() == b"bearer":
        return "", value.strip()
    if scheme.lower() != b"basic":
        return "", b""
    try:
        user, _, password = base64.b64decode(value.strip(), validate=True).partition(b":")
    except binascii.Error:
        return "", b""
    return user.decode("utf-8", "replace"), password
