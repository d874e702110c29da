"""Access rules: the farm's own user needs no token, everyone else must send the farm's token."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import logging
import re
import socket
import time
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from farm.bodies.unpacking import Headers, Refused
from farm.machine.peer import UNIX, Owners, Peer
from farm.settings import Auth

log = logging.getLogger(__name__)

FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip"})
"""Headers that a proxy adds. It connects from loopback on behalf of clients on other machines."""

_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9a-f:.]+)\]|(?P<name>[^][:@/]*))(?::[0-9]*)?")
"""The whole of a Host header (RFC 9112, 3.2): a name or an address, and a port."""

NOTED_FOR_S = 60.0
NOTED_PEERS = 16
"""Bounds on the log: one line per peer and minute about wrong tokens, for at most this many
peers."""


class Access:
    """The token rule. With `token` None, every request is accepted.

    Accepts `Authorization: Bearer TOKEN`, or Basic with the token as the password, so that
    `http://anyname:TOKEN@host:4242` works in clients that cannot set headers.

    auth: which peers need no token. "other-users": programs of this process's user, as the kernel
    reports it; if the kernel cannot report it, "remote" applies. "remote": peers on loopback or a
    Unix socket. "always": none. Every peer needs the token when a proxy forwards the request, or
    when the request names a host that is not this machine: a web page whose own name was resolved
    to 127.0.0.1 is not a local user.

    origins: origins of web pages that are served although they come from another site, as behind a
    proxy.
    """

    def __init__(
        self,
        token: str | None,
        *,
        auth: Auth = "other-users",
        origins: Collection[str] = (),
    ) -> None:
        self._token = None if token is None else token.encode()
        self._owners = Owners()
        if auth == "other-users" and not self._owners.way:
            log.warning(
                "this system does not report which user owns a connection: every local program "
                "may connect without a token, as with --auth remote; --auth always requires it"
            )
            auth = "remote"
        self.auth: Auth = auth
        self._origins = frozenset(_origin(origin.encode()) for origin in origins)
        self._noted: set[str] = set()
        self._noted_until = 0.0

    def peer(self, transport: Any) -> Peer:
        """Return the peer of a connection that was just accepted; call it once for each."""
        return self._owners.peer(transport)

    def refusal(self, peer: Peer) -> str | None:
        """Return why the peer may not use a protocol that has no token; None if it may.

        Only the user can open a Unix socket's file, so the socket is open to them whatever `auth`
        is.
        """
        if self._token is None or self.trusts(peer):
            return None
        if peer.host == UNIX and (peer.uid is None or self._owners.is_own(peer)):
            return None
        return (
            f"this is for programs of user {self._owners.uid} on this machine; others may use HTTP "
            "with the farm's token"
        )

    def user(self, peer: Peer, headers: Headers) -> str:
        """Return the name in the client's Basic credentials, or "".

        Raises Refused if the client may not use the farm.
        """
        if b"origin" in headers or b"sec-fetch-site" in headers:
            self._check_page(headers)
        given = headers.get(b"authorization")
        user, password = ("", b"") if given is None else _credentials(given)
        if self._token is None or (self.trusts(peer) and _is_direct(peer, headers)):
            return user
        if hmac.compare_digest(password, self._token):
            return user
        missing = given is None
        if not missing:
            self._note(peer)
        raise Refused(
            401,
            "Unauthorized",
            f"{'no token was given' if missing else 'that is not the token'}; "
            f"{_why_not_direct(headers) if self.trusts(peer) else ''}"
            "write http://user:TOKEN@host:port or send the header Authorization: Bearer TOKEN; "
            "the token is in the farm.json that `farm serve` wrote, and `farm url DIR` prints it",
            headers=((b"www-authenticate", b'Basic realm="farm", charset="UTF-8"'),),
        )

    def is_owner(self, peer: Peer, headers: Headers) -> bool:
        """Whether a request comes from the farm's own user, or from somebody with the token.

        This is stricter than `user` where a farm is open to others.
        """
        if self._owners.is_own(peer) and _is_direct(peer, headers):
            return True
        password = _credentials(headers.get(b"authorization", b""))[1]
        return self._token is not None and hmac.compare_digest(password, self._token)

    def is_owner_here(self, peer: Peer, headers: Headers) -> bool:
        """Whether a request comes from a program of the farm's own user on this machine.

        This is stricter than `is_owner`: the token proves who a client is, not where. It counts
        only for a local peer whose user the kernel does not report.
        """
        if not _is_direct(peer, headers):
            return False
        if self._owners.is_own(peer):
            return True
        is_unknown = peer.uid is None and (peer.host == UNIX or _is_loopback(peer.host))
        return is_unknown and self.is_owner(peer, headers)

    def trusts(self, peer: Peer) -> bool:
        """Whether the peer needs no token, provided that it does not act for another client."""
        if self.auth == "other-users":
            return self._owners.is_own(peer)
        return self.auth == "remote" and (peer.host == UNIX or _is_loopback(peer.host))

    def _check_page(self, headers: Headers) -> None:
        """Check which page a browser's request comes from. Raises Refused if another site's.

        This holds even with the token: a browser adds the credentials it has stored to requests of
        any page. Source: Fetch Standard, 3.2; Fetch Metadata Request Headers, 2.
        """
        origin = headers.get(b"origin")
        site = headers.get(b"sec-fetch-site", b"").lower()
        if origin is None:
            is_own = site in (b"", b"none", b"same-origin")
        elif _origin(origin) in self._origins:
            is_own = True
        else:
            is_own = site != b"cross-site" and _is_own_origin(origin, headers.get(b"host", b""))
        if is_own:
            return
        name = "another site" if origin is None else origin[:200].decode("ascii", "replace")
        raise Refused(
            403,
            "Forbidden",
            f"a web page of {name} may not use this farm; to serve pages of an origin as its own, "
            "as behind a proxy, start the farm with --allow-origin ORIGIN; to open a link to it, "
            "type the address",
        )

    def _note(self, peer: Peer) -> None:
        now = time.monotonic()
        if now >= self._noted_until:
            self._noted.clear()
            self._noted_until = now + NOTED_FOR_S
        if str(peer) not in self._noted and len(self._noted) < NOTED_PEERS:
            self._noted.add(str(peer))
            log.warning("%s sent a wrong token", peer)


def _is_direct(peer: Peer, headers: Headers) -> bool:
    """Whether the peer acts for itself and addresses this machine by one of its own names."""
    if not FORWARDED.isdisjoint(headers):
        return False
    return peer.host == UNIX or _names_this_machine(headers.get(b"host", b""))


def _why_not_direct(headers: Headers) -> str:
    """Return in words why a request of a trusted peer needs a token."""
    if named := FORWARDED.intersection(headers):
        return f"it is needed as the header {min(named).decode()} says that a proxy forwards; "
    host = headers.get(b"host", b"")[:200].decode("ascii", "replace")
    return (
        f"it is needed as the header Host, {host!r}, is not localhost, this machine's name or one "
        "of its addresses; "
    )


def _is_loopback(host: str) -> bool:
    return host.startswith(("127.", "::ffff:127.")) or host == "::1"


@lru_cache(maxsize=256)
def _names_this_machine(host: bytes) -> bool:
    """Whether a Host header contains localhost, this machine's name or one of its addresses."""
    found = _HOST.fullmatch(host.decode("latin-1").lower())
    if found is None:
        return False
    name = found["name"] if found["ipv6"] is None else found["ipv6"]
    if name in ("", "localhost", socket.gethostname().lower()):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return _is_loopback(name) or _has_address(address)


def _has_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether the address belongs to this machine: a socket can be bound to no other."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def _origin(origin: bytes) -> bytes:
    return origin.strip().lower().removesuffix(b"/")


def _is_own_origin(origin: bytes, host: bytes) -> bool:
    """Whether the page was loaded from the same host and port that it now sends a request to."""
    scheme, _, authority = _origin(origin).partition(b"://")
    default = {b"http": b":80", b"https": b":443"}.get(scheme)
    if default is None:
        return False
    return authority.removesuffix(default) == host.strip().lower().removesuffix(default)


def _credentials(authorization: bytes) -> tuple[str, bytes]:
    """Return user name and password or token of an Authorization header; empty where missing."""
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
