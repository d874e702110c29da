"""Addresses of MIP: `NAME=HOST:PORT` or `NAME=unix:/path`, one for each model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.machine.addresses import read_host_port, shown
from farm.protocols.mip.protocol import MAX_BYTES
from farm.settings import Auth, Settings, SettingsError

UNIX = "unix:"

RISK = "may call the model, as MIP has no token; use 127.0.0.1 or unix:/path"


@dataclass(frozen=True, slots=True)
class MipAddress:
    """The address of one model; model "": the only one. path: of a socket file, or empty."""

    model: str
    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        """Return the address in the form that KubeMo's client takes."""
        return f"unix://{self.path}" if self.path else f"tcp://{shown(self.host, self.port)}"


@dataclass(frozen=True, slots=True)
class MipOptions:
    """The addresses of MIP; max_bytes: payload of the largest packet."""

    addresses: tuple[MipAddress, ...]
    max_bytes: int = MAX_BYTES


def read_options(values: Mapping[str, Any], settings: Settings) -> MipOptions:
    """Return the options `mip` and `mip_max_bytes`. Raises SettingsError, as `read_address`."""
    most, is_served = values["mip_max_bytes"], bool(values["mip"])
    if most < 1 or (most != MAX_BYTES and not is_served):
        expected = "1 or more" if is_served else "mip, an address, beside it"
        raise SettingsError(f"mip_max_bytes is {most!r}; expected {expected}")
    addresses = [
        read_address(text, insecure=settings.insecure, auth=settings.auth) for text in values["mip"]
    ]
    return MipOptions(tuple(addresses), most)


def read_address(text: str, *, insecure: bool, auth: Auth = "other-users") -> MipAddress:
    """Return the address in the option `--mip`. Raises SettingsError if it is not one.

    Also raises it if other machines could connect, or `auth` requires a token, which the protocol
    does not have, unless `insecure` permits that. Only its user can open a Unix socket.
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


def only(models: Collection[str]) -> str:
    """Return the name of the only model; "" if there are none or several."""
    return next(iter(models)) if len(models) == 1 else ""


def check_models(addresses: Iterable[MipAddress], models: Collection[str]) -> None:
    """Raise SettingsError if one of the served models is not determined by each address."""
    for address in addresses:
        if not (address.model or only(models)):
            raise SettingsError(
                f"mip has {address} without a model; say which, NAME={address}, of "
                + ", ".join(models)
            )
        if address.model and address.model not in models:
            raise SettingsError(
                f"mip has model {address.model!r}, which is not served; the models are "
                + ", ".join(models)
            )
