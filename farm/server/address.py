"""Addresses of protocols that have no token: read, and kept to this machine unless told so."""

from __future__ import annotations

from farm.settings import Auth, SettingsError
from farm.transports.connection import is_loopback


def read_host_port(
    where: str, *, said: str, expected: str, risk: str, auth: Auth = "other-users"
) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, perhaps with tcp:// before it. Raises SettingsError.

    said: what stood where, as the error begins; expected: instead. risk: what others may do who
    reach that address, which is refused beyond this machine, and everywhere if `auth` says that
    everybody shows the token; "" when it is wanted.
    """
    host, colon, digits = where.removeprefix("tcp://").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not digits.isdecimal() or int(digits) > 65535:
        raise SettingsError(f"{said}; expected {expected}")
    if risk and not is_loopback(host):
        raise SettingsError(f"{said}: whoever reaches that address {risk}, or say --insecure")
    if risk and auth == "always":
        raise SettingsError(
            f"{said}; expected no address without a token, as auth is 'always'; or say --insecure"
        )
    return host, int(digits)


def shown(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
