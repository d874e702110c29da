"""The connection files, which give workers and native clients the dispatcher's address and keys.

`farm.json` is for clients, `workers.json` beside it for workers: a holder of only the former can
send calls to the farm, but cannot answer in its name.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import reduce
from pathlib import Path
from typing import Any

from farm.errors import Unavailable
from farm.machine.addresses import is_loopback
from farm.machine.private import read_private, replace_private

VERSION = 1

CLIENTS_FILE, WORKERS_FILE = "farm.json", "workers.json"

KEYS = ("server_key", "client_public", "client_secret")
KEY_CHARACTERS = 40
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


@dataclass(frozen=True, slots=True)
class Connection:
    """The contents of a connection file: a farm's addresses, keys and token.

    endpoint: the dispatcher's ZeroMQ address, `tcp://host:port`; empty if there is none.
    local: its unix socket, for peers on the farm's own machine; empty if there is none.
    server_key, client_public, client_secret: CurveZMQ keys in Z85; the last two are those of
    clients in farm.json and those of workers in workers.json; empty without ZeroMQ.
    url, token: the HTTP server's URL, and the token that clients on other machines must present.
    grpc: `host:port` of the gRPC server; empty without gRPC.
    addresses: addresses of protocols that have their own, by the protocol's name; in the file each
    is a key. mip: the model at each address; aepsych: `host:port`.
    host, pid: of the farm's process.
    """

    endpoint: str
    server_key: str = ""
    client_public: str = ""
    client_secret: str = ""
    url: str = ""
    grpc: str = ""
    addresses: Mapping[str, Any] = field(default_factory=dict)
    token: str = ""
    host: str = ""
    pid: int = 0
    version: int = VERSION
    local: str = ""

    def address(self) -> str:
        """Return the dispatcher's address for use in messages."""
        return self.endpoint or self.local

    def on_loopback(self) -> bool:
        """Whether the dispatcher can only be reached from this machine."""
        if not self.endpoint:
            return True
        return is_loopback(self.endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]"))

    def __repr__(self) -> str:
        return f"Connection({self.address()!r}, url={self.url!r})"  # keys stay out of logs


def new_token() -> str:
    """Return a new random token for the HTTP server, safe in URLs."""
    return secrets.token_urlsafe(24)


def write_connection(path: Path, connection: Connection) -> None:
    """Write the file atomically, readable by its owner only."""
    data = asdict(connection)
    addresses = data.pop("addresses")
    replace_private(path, (json.dumps(addresses | data, indent=1) + "\n").encode())


def read_connection(path: str | Path, *, named: bool = True) -> Connection:
    """Read a connection file, or `farm.json` in a run folder.

    named: whether the user named it; otherwise root does not take that of another user.
    Raises Unavailable if it is missing, malformed, another user's, or readable by others.
    """
    if str(path).startswith(("http:/", "https:/")):  # a Path has one slash
        raise Unavailable("a URL has no keys; expected the farm's run folder or connection file")
    path = Path(path)
    if path.is_dir():
        path = path / CLIENTS_FILE
    try:
        data = json.loads(read_private(path, of_anybody=named))
        if not isinstance(data, dict):
            raise ValueError(f"expected a JSON object, got {type(data).__name__}")
        if data.get("version") != VERSION:
            raise ValueError(f"it has version {data.get('version')}, this farm reads {VERSION}")
        connection = _checked(data)
        if connection.local:  # a relative path is relative to this folder, wherever that is mounted
            local = Path(os.path.abspath(path)).parent / connection.local
            connection = replace(connection, local=str(local))
        return connection
    except FileNotFoundError:
        raise Unavailable(f"no connection file {path}; is the farm running?") from None
    except (OSError, ValueError) as error:
        raise Unavailable(f"connection file {path} cannot be used: {error}") from None


@dataclass(frozen=True, slots=True)
class ConnectionFile:
    """A connection file that is read again when the farm may have been replaced."""

    path: Path
    named: bool = True

    def read(self) -> Connection:
        """Return what is in it now. Raises Unavailable."""
        return read_connection(self.path, named=self.named)


def workers_file(path: Path) -> Path:
    """Return the path of the file for workers: beside `farm.json`, in a run folder, or `path`."""
    if path.is_dir():
        return path / WORKERS_FILE
    return path.with_name(WORKERS_FILE) if path.name == CLIENTS_FILE else path


def read_worker_connection(path: str | Path, *, named: bool = True) -> Connection:
    """Read the file that `workers_file` finds. Raises Unavailable as `read_connection` does."""
    return read_connection(workers_file(Path(path)), named=named)


def _check_key(name: str, key: str) -> None:
    """Raise ValueError unless a key is empty or one of CurveZMQ; the error does not show it.

    Source: ZeroMQ RFC 32, Z85: five characters are four bytes.
    """
    if not key:
        return
    digits = [Z85.find(character) for character in key]
    fives = [digits[first : first + 5] for first in range(0, len(digits), 5)]
    numbers = [reduce(lambda number, digit: 85 * number + digit, five, 0) for five in fives]
    if len(key) != KEY_CHARACTERS or min(digits) < 0 or max(numbers) >= 2**32:
        raise ValueError(
            f"{name} is not a key of ZeroMQ: expected {KEY_CHARACTERS} characters in Z85, got "
            f"{len(key)} characters; copy the file again from the run folder of the farm, or stop "
            "the farm and start it again"
        )


def _checked(data: dict[str, Any]) -> Connection:
    """Return a Connection from JSON data; unknown keys are the protocols' addresses."""
    ours = [f for f in fields(Connection) if f.name != "addresses"]
    values = {f.name: data[f.name] for f in ours if f.name in data}
    for f in ours:
        kind = int if isinstance(f.default, int) else str
        if not isinstance(values.get(f.name, kind()), kind):
            raise ValueError(f"{f.name} is {values[f.name]!r}, expected {kind.__name__}")
    for name in KEYS:
        _check_key(name, values.get(name, ""))
    values["addresses"] = {name: data[name] for name in data.keys() - values.keys()}
    if "://" not in values.get("endpoint", "") and not values.get("local"):
        raise ValueError(f"endpoint is {values.get('endpoint')!r}, expected tcp://HOST:PORT")
    return Connection(**values)
