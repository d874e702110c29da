"""The file of `farm serve --cluster`: the batch system and the kinds of workers, one table each."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.systems import BUILT_IN, SLURM, BatchSystem, every, named
from farm.settings import SettingsError


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """All kinds of one farm, in order of preference for models that several kinds have.

    host: the name by which compute nodes reach the server; empty: its host name.
    system: the batch system that runs the jobs.
    """

    kinds: tuple[WorkerKind, ...]
    host: str = ""
    path: Path = field(default_factory=Path)
    system: BatchSystem = SLURM


def read_plan(path: Path, models: Sequence[str] = ()) -> ClusterPlan:
    """Return the plan in a TOML file; `models` are for the kinds that name none.

    A key above the tables is the default for all tables. Raises SettingsError if the file cannot be
    read, or has an unknown key or an invalid value.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(
            f"no file {path}; see docs/clusters.md for what belongs in it"
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None
    tables = data.pop("workers", None)
    if not isinstance(tables, list) or not tables or not all(isinstance(t, dict) for t in tables):
        raise SettingsError(f"{path} has no [[workers]] table; one for each kind of workers")
    host = data.pop("host", "")
    if not isinstance(host, str):
        raise SettingsError(f"{path} sets host to {host!r}; expected a text")
    name = data.pop("system", SLURM.name)
    system = named(name) if isinstance(name, str) else None
    if system is None:
        raise SettingsError(
            f"{path} sets system to {name!r}; expected one of: "
            + ", ".join(system.name for system in every())
        )
    for part, where in ((data, f"{path}"), *((t, f"{path}, [[workers]]") for t in tables)):
        _check_words(part, where, system)
    _check_keys(data, f"{path}", ("host", "system", *(k for k in KEYS if k not in PER_TABLE)))
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
    return ClusterPlan(tuple(kinds), host, path, system)


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


def _check_words(table: dict[str, Any], where: str, system: BatchSystem) -> None:
    """Replace the system's own words. Raises SettingsError for words of another system.

    Raises it for a key, too, of which the system has no counterpart.
    """
    for word, key in system.words.keys.items():
        if word in table and key in table:
            raise SettingsError(f"{where} sets both {word!r} and {key!r}, which are the same")
        if word in table:
            table[key] = table.pop(word)
    for other in BUILT_IN:
        for word, key in other.words.keys.items():
            if word in table:
                raise SettingsError(
                    f"{where} sets {word!r}, a word of {other.title}; {system.title}: {key!r}"
                )
    for key in sorted(system.words.lacks & set(table)):
        raise SettingsError(
            f"{where} sets {key!r}, for which {system.title} has no counterpart that farm knows; "
            "use 'options' for the system's own options"
        )


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
