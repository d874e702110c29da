"""The settings of a farm: frozen values with their limits. The CLI collects them."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
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


def setting(
    default: Any,
    help: str,
    metavar: str = "",
    *,
    least: int | None = None,
    above: int | None = None,
) -> Any:
    """Return a field of Settings; all that a setting is follows from it.

    Its name with FARM_ is the variable, and without a unit `_s`, and with hyphens, the option of
    `farm serve`. least, above: bounds of a number. help, metavar: for `--help`.
    """
    about = {"help": help, "metavar": metavar, "least": least, "above": above}
    return field(default=default, metadata=about)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one farm, in the order of `farm serve --help`, which explains them.

    options: settings of protocols, by the names of their descriptors' options.
    """

    workers: int = setting(
        1,
        "Model processes on this machine.  [default: 1; 0 with --cluster or --dask]",
        "COUNT",
        least=0,
    )
    mpi: int | None = setting(
        None,
        "MPI ranks per worker: each worker is a group of ranks, see --mpi-launch.",
        "RANKS",
        least=1,
    )
    mpi_launch: str | None = setting(
        None, "Command line that starts a group.  [default: mpiexec -n {ranks}]", "LINE"
    )
    supervise: bool = setting(
        False,
        "Start the front door again if it crashes, with the same ports and keys.  [default: only "
        "with --cluster]",
    )
    dask: str | None = setting(
        None,
        "Run the models on a Dask cluster: its scheduler's address or scheduler file.",
        "ADDRESS|FILE",
    )
    dask_slots: int = setting(
        0,
        "Minimum number of calls to keep at the Dask cluster; lets an adaptive cluster scale up.",
        "COUNT",
        least=0,
    )
    dask_resources: tuple[str, ...] = setting(
        (),
        "Resource of Dask's workers that a call holds while it runs, such as GPU=1; repeatable.",
        "NAME=AMOUNT",
    )
    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(4242, "Port to listen on; 0 picks a free port.")
    unix: Path | None = setting(
        None, "Also serve HTTP at this Unix socket, which only your user can open.", "PATH"
    )
    grpc_port: int | None = setting(
        None, "Also serve KServe v2 over gRPC at this port; 0 picks a free port.", "PORT"
    )
    grpc_tls_cert: Path | None = setting(
        None,
        "Encrypt gRPC with this server certificate, followed by its certificate chain.",
        "FILE.PEM",
    )
    grpc_tls_key: Path | None = setting(None, "Private key of --grpc-tls-cert.", "FILE.PEM")
    options: Mapping[str, Any] = field(default_factory=dict)
    auth: Auth = setting(
        "other-users",
        "Clients that must send the token: all clients, clients of other users than you, or "
        "clients on other machines.",
    )
    allow_origin: tuple[str, ...] = setting(
        (),
        "Allow requests from web pages of this origin, such as https://hub.example; repeatable. "
        "[default: only farm's own pages]",
        "ORIGIN",
    )
    transport: Transport = setting(
        "auto",
        "Transport to workers and native clients. auto: a socket in the run folder on this "
        "machine, ZeroMQ to other machines. zmq: ZeroMQ to all.",
    )
    insecure: bool = setting(
        False,
        "Allow --mip and --aepsych addresses that other machines can reach; anyone there can "
        "connect.",
    )
    dir: Path = setting(
        Path("farm-run"),
        "Run folder, which holds the connection file farm.json and the models' logs.",
        "DIRECTORY",
    )
    fork: bool = setting(
        True,
        "Fork model processes from one that has loaded numpy, if there are several; or start each "
        "as a fresh interpreter.  [default: fork]",
    )
    time_limit_s: float | None = setting(
        None, "Kill a model process when one of its calls runs longer.", "SECONDS", above=0
    )
    start_timeout_s: float | None = setting(
        None,
        "Time that the first worker may take to start; calls wait for it until then.  [default: "
        "600 for workers on this machine, 3600 for those elsewhere; calls do not wait for a SLURM "
        "job that SLURM expects to start later than that]",
        "SECONDS",
        above=0,
    )
    heartbeat_s: float = setting(
        5.0, "Silence after which a machine with workers counts as dead.", "SECONDS", above=0
    )
    retries: int = setting(3, "Times that a call is retried after its worker died.", least=0)
    max_queued: int = setting(
        100_000,
        "Queued calls from which new ones are refused with the advice to try again later; clients "
        "with fewer than 100 in the queue may exceed it by a tenth.",
        "COUNT",
        least=1,
    )
    max_queued_per_client: int = setting(
        100_000, "Queued calls of one client from which its new ones are refused.", "COUNT", least=1
    )
    reserve: tuple[str, ...] = setting(
        (),
        "Keep workers of this model free from calls that run ten times longer, such as beam=1 or "
        "beam=25%; they may idle. Repeatable.",
        "NAME=COUNT|SHARE%",
    )
    model_priority: tuple[str, ...] = setting(
        (),
        "Add this to the priority of each call of the model, such as beam=5. Repeatable.",
        "NAME=PRIORITY",
    )
    record: Path | None = setting(
        None,
        "Keep every evaluation of repeatable models in this file, for --reuse and "
        "`farm record export`.",
        "FILE",
    )
    reuse: bool = setting(
        False,
        "Answer exact repeats of evaluations from the record, and join calls for the same "
        "evaluation. Needs the model's `version`, or a model in one file: docs/record.md.",
    )
    max_body_bytes: int = setting(1 << 30, "Largest request body.", "BYTES", least=1)
    max_held_bytes: int | None = setting(
        None,
        "Memory for all bodies of more than 64 KiB that are being received or answered; further "
        "ones wait for it.  [default: a quarter of this machine's memory]",
        "BYTES",
        least=1,
    )
    grace_s: float = setting(
        30.0, "Time that running calls get to finish at shutdown.", "SECONDS", least=0
    )
    non_finite: NonFinite = setting(
        "literal",
        "NaN and infinity in JSON answers: write NaN and Infinity, write null, or send an error.",
    )
    log_format: LogFormat = setting(
        "text",
        "Format of the log on stderr and of the models' logs; json: one object a line, in which "
        "each request of HTTP and gRPC has an id.",
    )
    otel: bool = setting(
        False,
        "Send spans of requests and calls to an OpenTelemetry collector, which the standard "
        "environment variables name, such as OTEL_EXPORTER_OTLP_ENDPOINT.",
    )

    def __post_init__(self) -> None:
        def expect(name: str, right: bool, expected: str) -> None:
            if not right:
                raise SettingsError(f"{name} is {getattr(self, name)!r}; expected {expected}")

        for name, about in SETTINGS.items():
            value, least, above = getattr(self, name), about["least"], about["above"]
            if value is not None and least is not None:
                expect(name, value >= least, f"{least} or more")
            if value is not None and above is not None:
                expect(name, value > above, f"a number of seconds above {above}")
            if choices := choices_of(name):
                expect(name, value in choices, " or ".join(choices))
        for name in ("port", "grpc_port"):
            expect(name, 0 <= (getattr(self, name) or 0) <= 65535, "0 to 65535")
        for one, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert"), ("tls_cert", "port")):
            if getattr(self, f"grpc_{one}") and getattr(self, f"grpc_{other}") is None:
                raise SettingsError(f"grpc_{one} is set; expected grpc_{other} beside it")
        expect("reuse", not self.reuse or self.record is not None, "it to come with record, a file")
        lone = self.mpi_launch is not None and self.mpi is None
        expect("mpi_launch", not lone, "it to come with mpi, the number of ranks")
        origins = all(_ORIGIN.fullmatch(origin) for origin in self.allow_origin)
        expect("allow_origin", origins, "origins as browsers send them: https://hub.example:8000")
        for name in ("dask_slots", "dask_resources") if self.dask is None else ():
            expect(name, not getattr(self, name), "it to come with dask, a cluster")
        limits = self.dask is None or self.time_limit_s is None
        expect(
            "time_limit_s",
            limits,
            "workers of farm's own: Dask can end a call only with the "
            "whole Dask worker, and then runs it again. Limit the run in the model, such as by "
            "CommandModel(timeout_s=...)",
        )
        here = self.mpi is None or self.workers > 0
        expect(
            "mpi",
            here,
            "workers on this machine: set their number with workers. Set the ranks "
            "of batch jobs in their file; Dask does not support MPI groups",
        )
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


SETTINGS = {f.name: {**f.metadata, "type": f.type, "default": f.default} for f in fields(Settings)}
"""Each setting by name: its type as text, default, help, metavar and bounds."""
del SETTINGS["options"]

_CHOICES = {"NonFinite": NonFinite, "LogFormat": LogFormat, "Transport": Transport, "Auth": Auth}


def choices_of(name: str) -> tuple[str, ...]:
    """Return the texts that a setting may be, if it is one of several texts."""
    return get_args(_CHOICES.get(SETTINGS[name]["type"]))


def settings_of(values: Mapping[str, Any], options: Iterable[Option] = ()) -> Settings:
    """Return the Settings with these values, which may include protocols' options, by name.

    Paths may be texts. Raises SettingsError for an unknown name or a wrong type.
    """
    types = _types(options)
    own: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    for name, value in values.items():
        converted = _converted(name, value, types, f"{name} is", f"{name!r}")
        (own if name in SETTINGS else theirs)[name] = converted
    return Settings(**own, options=theirs)


def _types(options: Iterable[Option]) -> dict[str, str]:
    """Return the types of all settings by name, as in annotations."""
    types: dict[str, str] = {name: str(about["type"]) for name, about in SETTINGS.items()}
    for option in options:
        if option.name in SETTINGS:
            raise SettingsError(f"a protocol has the option {option.name!r}, a setting of farm")
        kind = "tuple[str, ...]" if option.repeatable else f"{option.kind.__name__} | None"
        types[option.name] = kind
    return types


def _converted(name: str, value: Any, types: Mapping[str, str], sets: str, what: str) -> Any:
    """Return a value in its setting's type. Raises SettingsError.

    sets, what: the beginnings of messages about the value and the name.
    """
    if name not in types:
        raise SettingsError(f"{what} is not a setting; expected one of: {_listed(types)}")
    kind = types[name].removesuffix(" | None")
    if value is None and kind != types[name]:
        return None
    accepted, in_words = _EXPECTED.get(kind, ((str,), "a text"))
    if not isinstance(value, accepted) or isinstance(value, bool) != (kind == "bool"):
        raise SettingsError(f"{sets} {value!r}; expected {in_words}")
    if kind.startswith("tuple"):
        if not all(isinstance(item, str) for item in value):
            raise SettingsError(f"{sets} {value!r}; expected a list of texts")
        return tuple(value)
    return Path(value) if kind == "Path" else value


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
    types = _types(options)
    for name, value in values.items():
        sets = f"{path} sets {name} to"
        values[name] = _converted(name, value, types, sets, f"{path} sets {name!r}, which")
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


_EXPECTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "Path": ((str, Path), "a path"),
    "int": ((Integral,), "a whole number"),
    "bool": ((bool,), "true or false"),
    "tuple[str, ...]": ((list, tuple), "a list of texts"),
    "float": ((Real,), "a number"),
}
"""The accepted types of values, also in words, by the type of the setting; others are texts."""
