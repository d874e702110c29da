"""The settings of a farm: frozen values with their limits; where they come from is the CLI's."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

NonFinite = Literal["literal", "null", "error"]
Transport = Literal["auto", "zmq"]

Auth = Literal["always", "other-users", "remote"]


_ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://[^/\s]+/?", re.IGNORECASE)


ANY_HOST = ("0.0.0.0", "::", "*", "")
"""Hosts that mean every address of this machine; others reach it by its name."""


class SettingsError(ValueError):
    """A setting that cannot be: says which, what was given and what is expected."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How one farm runs.

    host, port: where the HTTP door listens; port 0 picks a free one.
    unix: a path where HTTP is served too, by a Unix socket that is for this user alone.
    grpc_port: where gRPC is served at that host, 0 picks a free one; None: it is not.
    grpc_tls_cert, grpc_tls_key: PEM files of the certificate and its key, to encrypt gRPC.
    graphpipe_default: the model that GraphPipe's clients find at the root; None: the only one.
    mip: models served over MIP: NAME=HOST:PORT or NAME=unix:/path each, without NAME= the only one.
    mip_max_bytes: largest payload of a MIP packet.
    aepsych: where AEPsych's clients are served, HOST:PORT; port 0 picks a free one.
    journal: the file that keeps their experiments; None: experiments.db in the run folder.
    auth: who shows the token on HTTP and gRPC: everybody, whoever is not a program of this user, or
    whoever is not on this machine. allow_origin: origins of web pages that are served although they
    are not farm's own, as behind a proxy: https://hub.example.
    insecure: others may reach MIP's and AEPsych's addresses, although these have no token.
    transport: how workers and native clients talk to the farm. auto: over a socket in the run
    folder on its own machine, over ZeroMQ between machines; zmq: always over ZeroMQ.
    dir: the run folder, for the connection file and the logs of models.
    workers: model processes on this machine; 0 when all come from elsewhere.
    mpi: MPI ranks of each of these workers; None: no MPI. mpi_launch: what starts them, `{ranks}`
    standing for their number; None: mpiexec.
    dask: a Dask cluster that runs the models too: its scheduler's address, or scheduler file.
    dask_slots: calls that cluster is given at once even while it has fewer threads.
    time_limit_s: a model call that runs longer is killed with its worker; None: no limit.
    retries: how often a call goes back to its queue after a worker died with it.
    max_queued, max_queued_per_client: waiting calls above which callers are told to come later; a
    tenth more is taken of clients that have fewer than 100 in the queue.
    max_body_bytes: largest request body. non_finite: how NaN and infinities are written in JSON.
    max_held_bytes: room for all bodies of more than 64 KiB that are being received or answered;
    others wait for it. None: a quarter of the memory of this machine.
    heartbeat_s: silence after which a host counts as dead.
    start_timeout_s: how long the first worker may take to load its models.
    grace_s: how long running calls may take to finish when the farm shuts down.
    """

    host: str = "127.0.0.1"
    port: int = 4242
    unix: Path | None = None
    grpc_port: int | None = None
    grpc_tls_cert: Path | None = None
    grpc_tls_key: Path | None = None
    graphpipe_default: str | None = None
    mip: tuple[str, ...] = ()
    mip_max_bytes: int = 64 << 20
    aepsych: str | None = None
    journal: Path | None = None
    auth: Auth = "other-users"
    allow_origin: tuple[str, ...] = ()
    insecure: bool = False
    transport: Transport = "auto"
    dir: Path = Path("farm-run")
    workers: int = 1
    mpi: int | None = None
    mpi_launch: str | None = None
    dask: str | None = None
    dask_slots: int = 0
    time_limit_s: float | None = None
    retries: int = 3
    max_queued: int = 100_000
    max_queued_per_client: int = 100_000
    max_body_bytes: int = 1 << 30
    max_held_bytes: int | None = None
    non_finite: NonFinite = "literal"
    heartbeat_s: float = 5.0
    start_timeout_s: float = 600.0
    grace_s: float = 30.0

    def __post_init__(self) -> None:
        def expect(name: str, right: bool, expected: str) -> None:
            if not right:
                raise SettingsError(f"{name} is {getattr(self, name)!r}; expected {expected}")

        expect("port", 0 <= self.port <= 65535, "0 to 65535")
        grpc_port = self.grpc_port
        expect("grpc_port", grpc_port is None or 0 <= grpc_port <= 65535, "0 to 65535")
        for one, other in (("cert", "key"), ("key", "cert")):
            if getattr(self, f"grpc_tls_{one}") and not getattr(self, f"grpc_tls_{other}"):
                raise SettingsError(f"grpc_tls_{one} is set; expected grpc_tls_{other} beside it")
        for name in ("workers", "retries", "dask_slots"):
            expect(name, getattr(self, name) >= 0, "0 or more")
        for name in ("max_queued", "max_queued_per_client", "max_body_bytes", "mip_max_bytes"):
            expect(name, getattr(self, name) >= 1, "1 or more")
        held = self.max_held_bytes
        expect("max_held_bytes", held is None or held >= 1, "1 or more")
        for name in ("heartbeat_s", "start_timeout_s"):
            expect(name, getattr(self, name) > 0, "a number of seconds above 0")
        expect("grace_s", self.grace_s >= 0, "a number of seconds, 0 or more")
        expect("mpi", self.mpi is None or self.mpi >= 1, "1 or more MPI ranks")
        lone = self.mpi_launch is not None and self.mpi is None
        expect("mpi_launch", not lone, "it to come with mpi, the number of ranks")
        limit = self.time_limit_s
        expect("time_limit_s", limit is None or limit > 0, "a number of seconds above 0")
        for name, choice in (("non_finite", NonFinite), ("auth", Auth), ("transport", Transport)):
            allowed = get_args(choice)
            expect(name, getattr(self, name) in allowed, " or ".join(allowed))
        origins = all(_ORIGIN.fullmatch(origin) for origin in self.allow_origin)
        expect("allow_origin", origins, "origins as browsers send them: https://hub.example:8000")


def read_settings(path: Path) -> dict[str, Any]:
    """The values in a farm.toml, by the names of `Settings`.

    Raises SettingsError when the file is missing, is not TOML, or has a name that is no setting.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"no settings file {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"settings file {path} cannot be read: {error}") from None
    types = {f.name: f.type for f in fields(Settings)}
    for name, value in values.items():
        if name not in types:
            raise SettingsError(
                f"{path} sets {name!r}, which is no setting; they are: {', '.join(sorted(types))}"
            )
        expected = _EXPECTED[types[name]]
        is_flag = isinstance(value, bool)
        if not isinstance(value, expected) or is_flag != (expected == (bool,)):
            raise SettingsError(f"{path} sets {name} to {value!r}; expected {types[name]}")
        if isinstance(value, list):
            if not all(isinstance(item, str) for item in value):
                raise SettingsError(f"{path} sets {name} to {value!r}; expected a list of texts")
            values[name] = tuple(value)
        if types[name].startswith("Path"):
            values[name] = Path(str(value))
    return values


_EXPECTED: dict[Any, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str,),
    "Path": (str,),
    "NonFinite": (str,),
    "Transport": (str,),
    "Auth": (str,),
    "Path | None": (str,),
    "int": (int,),
    "int | None": (int,),
    "bool": (bool,),
    "tuple[str, ...]": (list,),
    "float": (int, float),
    "float | None": (int, float),
}
