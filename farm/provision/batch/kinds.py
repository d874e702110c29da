"""The file for `farm serve --slurm`: the kinds of workers of a farm, one table each."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from farm.provision.batch.allocation import seconds_of
from farm.settings import SettingsError

DEFAULT_TEMPLATE = Path(__file__).with_name("worker.sh.in")

LONGEST_WARNING_S = 60
"""Maximum time before a job's time limit at which it is asked to drain, unless `warn_s` is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerKind:
    """One kind of workers: the models they load, the resources of their jobs, and how many jobs.

    name: in job names and in `farm status`. models: as for `farm worker`.
    min_jobs, max_jobs: minimum and maximum number of jobs.
    workers: model processes on each node of a job, or with gpus on each of its GPUs; with ranks the
    MPI groups of the job.
    ranks: MPI ranks of one worker; 0: no MPI. cpus: of one model process or rank.
    nodes, gpus, mem: of one job, the last two per node, as sbatch's --gres=gpu:N and --mem.
    time: its limit, as for sbatch. warn_s: seconds before the limit at which it drains.
    partition, account, qos, constraint: as for sbatch. sbatch, srun: further options for these.
    setup: shell lines before the workers start. template: the script, if not farm's own.
    call_limit_s: a model call that runs longer is killed.
    backlog_s: target time to finish all queued work; determines the number of jobs.
    grow_after_s: how long a need for more jobs must last before jobs are submitted.
    idle_timeout_s: how long a job may be idle before it is released.
    """

    name: str
    models: Sequence[str] = ()
    min_jobs: int = 0
    max_jobs: int = 10
    workers: int = 1
    ranks: int = 0
    cpus: int = 1
    nodes: int = 1
    gpus: int = 0
    mem: str = ""
    time: str = ""
    warn_s: int | None = None
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    sbatch: Sequence[str] = ()
    srun: Sequence[str] = ()
    setup: Sequence[str] = ()
    template: str = ""
    call_limit_s: float | None = None
    backlog_s: float = 60.0
    grow_after_s: float = 2.0
    idle_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        def expect(name: str, right: bool, expected: str) -> None:
            if not right:
                value = getattr(self, name)
                raise SettingsError(f"{name} is {value!r}; expected {expected}")

        form = r"[A-Za-z0-9_.-]{1,40}"
        expect("name", bool(re.fullmatch(form, self.name)), "letters, digits and . _ -")
        expect("models", bool(self.models), "at least one model, here or on the command line")
        for name in ("workers", "cpus", "nodes", "max_jobs"):
            expect(name, getattr(self, name) >= 1, "1 or more")
        for name in ("ranks", "gpus", "grow_after_s"):
            expect(name, getattr(self, name) >= 0, "0 or more")
        expect("min_jobs", 0 <= self.min_jobs <= self.max_jobs, f"0 to max_jobs={self.max_jobs}")
        for name in ("backlog_s", "idle_timeout_s"):
            expect(name, getattr(self, name) > 0, "a number of seconds above 0")
        limit = self.call_limit_s
        expect("call_limit_s", limit is None or limit > 0, "a number of seconds above 0")
        limit_s = self.time_limit_s
        expect(
            "time",
            not self.time or (limit_s is not None and limit_s > 0),
            "minutes, hours:minutes:seconds or days-hours, as sbatch takes it",
        )
        if self.warn_s is not None:
            right = self.warn_s > 0 and (limit_s is None or self.warn_s < limit_s)
            expect("warn_s", right, "a number of seconds above 0 and below `time`")

    @property
    def time_limit_s(self) -> float | None:
        """The time limit of a job in seconds; None if the partition's applies."""
        return seconds_of(self.time) if self.time else None

    @property
    def warning_s(self) -> int:
        """Seconds before its end at which a job is asked to drain: at most a sixth of its time."""
        if self.warn_s is not None:
            return self.warn_s
        limit_s = self.time_limit_s
        return LONGEST_WARNING_S if limit_s is None else int(min(LONGEST_WARNING_S, limit_s / 6))

    @property
    def workers_per_node(self) -> int:
        """Model processes on each node, without MPI ranks."""
        return self.workers * max(1, self.gpus)

    @property
    def workers_per_job(self) -> int:
        """Number of workers that one job adds to the scheduler."""
        return self.workers if self.ranks else self.workers_per_node * self.nodes


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """All kinds of one farm, in order of preference for models that several kinds have.

    host: the name by which compute nodes reach the server; empty: its host name.
    """

    kinds: tuple[WorkerKind, ...]
    host: str = ""
    path: Path = field(default_factory=Path)


def read_plan(path: Path, models: Sequence[str] = ()) -> ClusterPlan:
    """Return the plan in a TOML file; `models` are for the kinds that name none.

    A key above the tables is the default for all tables. Raises SettingsError if the file cannot be
    read, or has an unknown key or an invalid value.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"no file {path}; see docs/slurm.md for what belongs in it") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None
    tables = data.pop("workers", None)
    if not isinstance(tables, list) or not tables or not all(isinstance(t, dict) for t in tables):
        raise SettingsError(f"{path} has no [[workers]] table; one for each kind of workers")
    host = data.pop("host", "")
    if not isinstance(host, str):
        raise SettingsError(f"{path} sets host to {host!r}; expected a text")
    _check_keys(data, f"{path}", ("host", "workers", *(k for k in KEYS if k not in PER_TABLE)))
    shared = {"models": list(models), **data}
    kinds = []
    for number, table in enumerate(tables, 1):
        where = f"{path}, [[workers]] number {number}"
        _check_keys(table, where, KEYS)
        values = {"name": f"w{number}", **shared, **table}
        for key, value in values.items():
            values[key] = _checked(key, value, where)
        if values.get("template"):
            values["template"] = str(path.parent / values["template"])
        try:
            kinds.append(WorkerKind(**values))
        except SettingsError as error:
            raise SettingsError(f"{where}: {error}") from None
    names = [kind.name for kind in kinds]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise SettingsError(f"{path} has two [[workers]] tables named {', '.join(sorted(twice))}")
    return ClusterPlan(tuple(kinds), host, path)


KEYS = {f.name: str(f.type) for f in fields(WorkerKind)}
PER_TABLE = ("name", "workers")

_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a text"),
    "int": ((int,), "a whole number"),
    "int | None": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "float | None": ((int, float), "a number"),
    "Sequence[str]": ((list,), "a list of texts"),
}


def _check_keys(
    table: Mapping[str, Any], where: str, allowed: Sequence[str] | Mapping[str, str]
) -> None:
    for key in table:
        if key not in allowed:
            raise SettingsError(
                f"{where} sets {key!r}, which is none of: {', '.join(sorted(allowed))}"
            )


def _checked(key: str, value: Any, where: str) -> Any:
    """Return a value of the right type, safe to use in a script. Raises SettingsError."""
    if key == "time" and type(value) is int:
        value = str(value)  # minutes, as for sbatch
    types, expected = _TYPES[KEYS[key]]
    right = isinstance(value, types) and not isinstance(value, bool)
    if right and isinstance(value, list):
        right = all(isinstance(item, str) for item in value)
    if not right:
        raise SettingsError(f"{where} sets {key} to {value!r}; expected {expected}")
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and not text.isprintable() and not (key == "setup"):
            raise SettingsError(f"{where} sets {key} to {value!r}; expected it on one line")
    return tuple(value) if isinstance(value, list) else value
