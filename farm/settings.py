"""The settings of a farm: frozen values with their limits. The CLI collects them."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from farm.descriptors import Option
from farm.policies import ModelPolicy, read_policies

NonFinite = Literal["literal", "null", "error"]
LogFormat = Literal["text", "json"]
Transport = Literal["auto", "zmq"]

Auth = Literal["always", "other-users", "remote"]


_ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://[^/\s]+/?", re.IGNORECASE)


ANY_HOST = ("0.0.0.0", "::", "*", "")
"""Hosts that mean every address of this machine; other machines reach it by its name."""


class SettingsError(ValueError):
    """An invalid setting; the message has its name, the value given and what is expected."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one farm.

    host, port: address of the HTTP server; port 0 picks a free one.
    unix: path of a Unix socket that also serves HTTP, for this user only.
    grpc_port: port of the gRPC server on that host, 0 picks a free one; None: no gRPC.
    grpc_tls_cert, grpc_tls_key: PEM files of the certificate and its key, to encrypt gRPC.
    options: settings of protocols, by the names of their descriptors' options.
    auth: which HTTP and gRPC clients must present the token: all, all but programs of this user, or
    all but those on this machine. allow_origin: origins of web pages that are served besides farm's
    own, such as those behind a proxy: https://hub.example.
    insecure: allow others to reach the addresses of protocols without a token, MIP and AEPsych.
    transport: how workers and native clients connect to the farm. auto: by a socket in the run
    folder on the same machine, by ZeroMQ between machines; zmq: always by ZeroMQ.
    supervise: start the front door again when it crashes.
    dir: the run folder, for the connection file and the logs of models.
    workers: model processes on this machine; 0 if all run elsewhere.
    mpi: MPI ranks of each of these workers; None: no MPI. mpi_launch: the command that starts them,
    with `{ranks}` for their number; None: mpiexec.
    dask: a Dask cluster that also runs the models: its scheduler's address, or scheduler file.
    dask_slots: minimum number of calls sent to that cluster at once, even if it has fewer threads.
    dask_resources: Dask's resources that each call holds there while it runs: `GPU=1`.
    fork: fork workers on this machine from one process that has loaded numpy, if there are several.
    time_limit_s: a model call that runs longer is killed with its worker; None: no limit.
    retries: how often a call is requeued after a worker died while running it.
    max_queued, max_queued_per_client: number of queued calls from which new ones are refused with
    "try again later"; clients with fewer than 100 in the queue may exceed max_queued by a tenth.
    reserve: for a model the workers, or a share of them, that calls of more than ten times its run
    time leave free: `beam=1` or `beam=25%`. model_priority: added to the priority of each call of a
    model: `beam=5`. In a farm.toml a table `[model.beam]` sets `reserve` and `priority`.
    record: file that keeps every evaluation of repeatable models; None: none is kept. reuse: answer
    exact repeats of evaluations from that file.
    max_body_bytes: largest request body. non_finite: how NaN and infinities are written in JSON.
    max_held_bytes: memory for all bodies of more than 64 KiB that are being received or answered;
    further ones wait for it. None: a quarter of the memory of this machine.
    heartbeat_s: silence after which a host counts as dead.
    start_timeout_s: how long the first worker may take to start, while calls wait for it. None: ten
    minutes for workers on this machine, an hour for those that start elsewhere, and less if the
    batch system expects their job to start later than that.
    log_format: of the front door's log; json: one object a line, and each request gets an id.
    otel: send spans of requests and calls by OpenTelemetry, which the variables OTEL_... configure.
    grace_s: how long running calls may take to finish when the farm shuts down.
    """

    host: str = "127.0.0.1"
    port: int = 4242
    unix: Path | None = None
    grpc_port: int | None = None
    grpc_tls_cert: Path | None = None
    grpc_tls_key: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    auth: Auth = "other-users"
    allow_origin: tuple[str, ...] = ()
    insecure: bool = False
    transport: Transport = "auto"
    supervise: bool = False
    dir: Path = Path("farm-run")
    workers: int = 1
    mpi: int | None = None
    mpi_launch: str | None = None
    dask: str | None = None
    dask_slots: int = 0
    dask_resources: tuple[str, ...] = ()
    fork: bool = True
    time_limit_s: float | None = None
    retries: int = 3
    max_queued: int = 100_000
    max_queued_per_client: int = 100_000
    reserve: tuple[str, ...] = ()
    model_priority: tuple[str, ...] = ()
    record: Path | None = None
    reuse: bool = False
    max_body_bytes: int = 1 << 30
    max_held_bytes: int | None = None
    non_finite: NonFinite = "literal"
    log_format: LogFormat = "text"
    otel: bool = False
    heartbeat_s: float = 5.0
    start_timeout_s: float | None = None
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
        for name in ("max_queued", "max_queued_per_client", "max_body_bytes"):
            expect(name, getattr(self, name) >= 1, "1 or more")
        held = self.max_held_bytes
        expect("max_held_bytes", held is None or held >= 1, "1 or more")
        expect("heartbeat_s", self.heartbeat_s > 0, "a number of seconds above 0")
        start = self.start_timeout_s
        expect("start_timeout_s", start is None or start > 0, "a number of seconds above 0")
        expect("grace_s", self.grace_s >= 0, "a number of seconds, 0 or more")
        expect("mpi", self.mpi is None or self.mpi >= 1, "1 or more MPI ranks")
        expect("reuse", not self.reuse or self.record is not None, "it to come with record, a file")
        lone = self.mpi_launch is not None and self.mpi is None
        expect("mpi_launch", not lone, "it to come with mpi, the number of ranks")
        limit = self.time_limit_s
        expect("time_limit_s", limit is None or limit > 0, "a number of seconds above 0")
        choices = {"non_finite": NonFinite, "auth": Auth, "transport": Transport}
        for name, choice in {**choices, "log_format": LogFormat}.items():
            allowed = get_args(choice)
            expect(name, getattr(self, name) in allowed, " or ".join(allowed))
        origins = all(_ORIGIN.fullmatch(origin) for origin in self.allow_origin)
        expect("allow_origin", origins, "origins as browsers send them: https://hub.example:8000")
        named = self.dask is not None or not self.dask_resources
        expect("dask_resources", named, "it to come with dask, a cluster")
        self.dask_needs()
        self.policies()

    def dask_needs(self) -> dict[str, float]:
        """Return the amounts in `dask_resources` by name. Raises SettingsError."""
        needs = {}
        for word in self.dask_resources:
            name, _, amount = word.partition("=")
            try:
                needs[name] = float(amount)
            except ValueError:
                needs[name] = 0.0
            if not name or not 0 < needs[name] < math.inf:
                raise SettingsError(
                    f"dask_resources has {word!r}; expected a name and an amount: GPU=1"
                )
        return needs

    def policies(self) -> dict[str, ModelPolicy]:
        """Return the policies of models with a reserve or a priority."""
        try:
            return read_policies(self.reserve, self.model_priority)
        except ValueError as error:
            raise SettingsError(str(error)) from None

    def check_policies(self, models: Collection[str]) -> None:
        """Refuse a reserve or priority of a model that is not among these, if there are any.

        Raises SettingsError.
        """
        for name in self.policies():
            if models and name not in models:
                served = ", ".join(sorted(models))
                raise SettingsError(f"reserve or priority of model {name!r}; farm serves {served}")


def settings_of(values: Mapping[str, Any], options: Iterable[Option] = ()) -> Settings:
    """Return the Settings with these values, which may include protocols' options, by name.

    Paths may be texts. Raises SettingsError for an unknown name.
    """
    theirs = {option.name for option in options}
    ours = {f.name for f in fields(Settings)} - {"options"}
    if taken := theirs & ours:
        raise SettingsError(f"a protocol has the option {min(taken)!r}, a setting of farm itself")
    for name in values:
        if name not in theirs | ours:
            raise SettingsError(
                f"{name!r} is not a setting; expected one of: {_listed(theirs | ours)}"
            )
    own: dict[str, Any] = {name: value for name, value in values.items() if name in ours}
    for f in fields(Settings):
        if str(f.type).startswith("Path") and isinstance(own.get(f.name), str):
            own[f.name] = Path(own[f.name])
    return Settings(
        **own,
        options={name: value for name, value in values.items() if name in theirs},
    )


def option_values(settings: Settings, options: Iterable[Option]) -> dict[str, Any]:
    """Return the values of a protocol's options by name, with defaults for those not set."""
    return {option.name: settings.options.get(option.name, option.default) for option in options}


def read_settings(path: Path, options: Iterable[Option] = ()) -> dict[str, Any]:
    """Return the values in a farm.toml, by the names of `Settings` and of the protocols' options.

    The tables `[model.NAME]` are returned as the settings `reserve` and `model_priority`. Raises
    SettingsError if the file is missing, is not TOML, or has an unknown name.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"no settings file {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"settings file {path} cannot be read: {error}") from None
    of_models = _of_models(values.pop("model", {}), path)
    types: dict[str, Any] = {f.name: f.type for f in fields(Settings) if f.name != "options"}
    types |= {o.name: "tuple[str, ...]" if o.repeatable else o.kind.__name__ for o in options}
    for name, value in values.items():
        if name not in types:
            raise SettingsError(
                f"{path} sets {name!r}, which is not a setting; expected one of: {_listed(types)}"
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
    for name, texts in of_models.items():
        values[name] = (*values.get(name, ()), *texts)
    return values


def _of_models(tables: Any, path: Path) -> dict[str, list[str]]:
    """Return the settings that the tables `[model.NAME]` of a farm.toml contain, by name."""
    if not isinstance(tables, dict):
        raise SettingsError(
            f"{path} sets model to {tables!r}; expected tables such as [model.beam]"
        )
    found: dict[str, list[str]] = {}
    for model, table in tables.items():
        if not isinstance(table, dict):
            raise SettingsError(f"{path} sets {model} of [model]; expected tables [model.NAME]")
        for name, value in table.items():
            setting = _MODEL_SETTINGS.get(name)
            if setting is None:
                raise SettingsError(
                    f"{path} sets {name!r} of model {model!r}, which is not a setting of models; "
                    f"expected one of: {_listed(_MODEL_SETTINGS)}"
                )
            found.setdefault(setting, []).append(f"{model}={value}")
    return found


_MODEL_SETTINGS = {"reserve": "reserve", "priority": "model_priority"}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


_EXPECTED: dict[Any, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str,),
    "Path": (str,),
    "NonFinite": (str,),
    "LogFormat": (str,),
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
