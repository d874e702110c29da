"""Where MIP is served: `NAME=HOST:PORT` or `NAME=unix:/path`, one address for each model."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from farm.server.address import read_host_port, shown
from farm.server.listener import listen, listen_unix
from farm.settings import Auth, SettingsError

UNIX = "unix:"

RISK = "may call the model, as MIP knows no token; take 127.0.0.1 or unix:/path"


@dataclass(frozen=True, slots=True)
class MipAddress:
    """Where one model is asked; model "": the only one. path: of a socket file, or empty."""

    model: str
    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        """The address as KubeMo's client takes it."""
        return f"unix://{self.path}" if self.path else f"tcp://{shown(self.host, self.port)}"


def read_address(text: str, *, insecure: bool, auth: Auth = "other-users") -> MipAddress:
    """What `--mip` says. Raises SettingsError when it is no address.

    And when others than this machine could come in, or `auth` asks for a token, which the protocol
    has not, unless that is wanted. A Unix socket is for its user alone.
    """
    name, equals, where = text.partition("=")
    if not equals or text.startswith(UNIX):
        name, where = "", text
    if where.startswith(UNIX):
        path = where.removeprefix(UNIX)
        path = path.removeprefix("//") if path.startswith("///") else path
        if not path:
            raise SettingsError(f"mip has {text!r}, which has no path; expected unix:/path")
        return MipAddress(name, path=str(Path(path).expanduser().absolute()))
    host, port = read_host_port(
        where,
        said=f"mip has {text!r}",
        expected="NAME=HOST:PORT, port 0 for a free one, or NAME=unix:/path",
        risk="" if insecure else RISK,
        auth=auth,
    )
    return MipAddress(name, host, port)


def bound(address: MipAddress) -> tuple[socket.socket, MipAddress]:
    """A socket that listens there, and the address with its port. Raises Unavailable."""
    if not address.path:
        listener = listen(address.host, address.port, port_option="with --mip, port")
        return listener, MipAddress(address.model, address.host, listener.getsockname()[1])
    return listen_unix(address.path), address


def model_of(address: MipAddress, models: Sequence[str], *, may_come: bool) -> str:
    """The model that is served at the address, of those there are.

    may_come: others may follow. Raises SettingsError when there is no such model, or no telling.
    """
    if not address.model and len(models) != 1:
        names = f"of {', '.join(models)}" if models else "as none is known yet"
        raise SettingsError(
            f"mip has {address} without a model; say which, NAME={address}, {names}"
        )
    name = address.model or models[0]
    if name not in models and not may_come:
        raise SettingsError(
            f"mip has model {name!r}, which is not served; the models are {', '.join(models)}"
        )
    return name
