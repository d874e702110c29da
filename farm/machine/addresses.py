"""Addresses of protocols without a token: parsed, and restricted to loopback by default."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from farm.wording import worded

if TYPE_CHECKING:
    from farm.settings import Auth


def read_host_port(
    where: str, *, said: str, expected: str, risk: str, auth: Auth = "other-users"
) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, which may start with tcp://. Raises SettingsError.

    said: start of the error message, with the text given; expected: the expected form. risk: what
    anyone who can reach the address may do. A non-loopback address is then refused, and any address
    if `auth` requires the token from all clients; "" if the user accepts the risk.
    """
    from farm.settings import SettingsError  # workers need only the rest of this module

    host, colon, digits = where.removeprefix("tcp://").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not digits.isdecimal() or int(digits) > 65535:
        raise SettingsError(f"{said}; expected {expected}")
    if risk and not is_loopback(host):
        raise SettingsError(
            f"{said}: anyone who reaches that address {risk}; choose another or add "
            f"{worded('--insecure', 'insecure=True')}"
        )
    if risk and auth == "always":
        raise SettingsError(
            f"{said}; expected no address without a token, as auth is 'always'; or add "
            f"{worded('--insecure', 'insecure=True')}"
        )
    return host, int(digits)


def shown(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether an address bound to `host` can only be reached from this machine."""
    if host in ("localhost", "::1"):
        return True
    with contextlib.suppress(OSError):
        return socket.inet_aton(host)[:1] == b"\x7f"
    return False
