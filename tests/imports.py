"""Who may import whom: the rules of docs/architecture.md as a function of one file's text."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

LEVELS = {
    "call": 0,
    "dtypes": 0,
    "descriptions": 1,
    "errors": 0,
    "model": 0,
    "settings": 0,
    "version": 0,
    "machine": 1,
    "protocols": 1,
    "scheduler": 1,
    "dispatcher": 2,
    "worker": 2,
    "transports": 3,
    "client": 4,
    "provision": 4,
    "sweep": 4,
    "experiment": 5,
    "server": 6,
    "cli": 7,
    "__main__": 8,
}
"""Each part of farm and its number; a part imports itself and parts with a lower number."""

PURE = (
    *("farm/protocols", "farm/scheduler", "farm/sweep/points.py", "farm/provision/policy.py"),
    *(
        f"farm/experiment/{name}.py"
        for name in (
            *("config", "grammar", "space", "work", "events", "experiment", "session"),
            *("growing", "messages"),
            *("subject", "expression", "pacing", "ini", "names", "components", "listed"),
        )
    ),
)

OF_AN_EXTRA = {
    "farm/experiment/models": frozenset({"botorch", "gpytorch", "threadpoolctl", "torch"}),
    **dict.fromkeys(
        (
            *("farm/transports/zmq", "farm/transports/zmq_line", "farm/transports/zmq_socket"),
            *("farm/transports/keys", "farm/worker/group", "farm/provision/rank"),
        ),
        frozenset({"zmq"}),
    ),
}
"""Modules and folders that are made with an extra alone, or with what most processes need not load,
and may import it at their top; others import them in functions only."""

IMPURE = {
    *("asyncio", "concurrent", "multiprocessing", "signal", "subprocess", "threading", "time"),
    *("http", "requests", "select", "selectors", "socket", "ssl", "urllib", "urllib3"),
    *("dask", "distributed", "fastapi", "grpc", "h5py", "starlette", "uvloop", "zmq"),
    *("random", "secrets"),
}
"""What a pure part may not import: clocks, processes, sockets, other programs, chance."""

DISTRIBUTIONS = {
    "google": "protobuf",
    "starlette": "fastapi",
    "zmq": "pyzmq",
}
"""The distribution that brings an import name, where the two differ."""


SLOW_TO_IMPORT = {"scipy", "zmq"}
"""Dependencies that are slow to import or needed by few processes: in functions only."""


class Import(NamedTuple):
    """One imported module: where the statement stands, and whether in a function."""

    module: str
    line: int
    in_function: bool


def imports_of(source: str) -> Iterator[Import]:
    """Every module that the text imports; `from farm import x` counts as farm.x."""
    tree = ast.parse(source)
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [f"farm.{a.name}" for a in node.names] if module == "farm" else [module]
        else:
            continue
        yield from (Import(name, node.lineno, id(node) in inside) for name in names)


def part_of(path: str) -> str:
    """The part of farm that a file belongs to: `farm/sweep/run.py` to `sweep`."""
    return PurePosixPath(path).parts[1].removesuffix(".py")


def violations(
    path: str, source: str, *, base: frozenset[str], extras: frozenset[str]
) -> list[str]:
    """What the file breaks, one line each.

    base, extras: distributions that farm needs always, and with some extra.
    """
    found = []
    part = part_of(path)
    pure = path.startswith(PURE)
    for module, line, in_function in imports_of(source):
        top, *rest = module.split(".")
        if top == "farm":
            problem = _inner_problem(part, rest, in_function, _extras_of(path))
        elif top in _extras_of(path):
            problem = ""
        elif pure and top in IMPURE:
            problem = f"a pure part imports {top}"
        elif top in sys.stdlib_module_names:
            problem = "in a function, where only extras may be imported" if in_function else ""
        else:
            problem = _outer_problem(top, in_function, base, extras)
        if problem:
            found.append(f"{path}:{line}: import {module}: {problem}")
    return found


def _extras_of(path: str) -> frozenset[str]:
    """The extras that a file, or a module, is made with."""
    path = path.removesuffix(".py")
    found = (extras for part, extras in OF_AN_EXTRA.items() if f"{path}/".startswith(f"{part}/"))
    return next(found, frozenset())


def _inner_problem(part: str, target: list[str], in_function: bool, extras: frozenset[str]) -> str:
    if not target or target[0] not in LEVELS:
        return "the package itself is above all its parts; import the module that defines the name"
    if not _extras_of("/".join(["farm", *target])) <= extras:
        return "" if in_function else "a part made with an extra may be imported in functions only"
    level, other = LEVELS[part], LEVELS[target[0]]
    if part != target[0] and not other < level and not level == other == 0:
        return f"{part} ({level}) may import itself and lower numbers, {target[0]} has {other}"
    return "in a function, where only extras may be imported" if in_function else ""


def _outer_problem(
    top: str, in_function: bool, base: frozenset[str], extras: frozenset[str]
) -> str:
    distribution = DISTRIBUTIONS.get(top, top)
    if distribution in base and top in SLOW_TO_IMPORT:
        return "" if in_function else "slow to import: in functions only"
    if distribution in base:
        return "in a function, where only extras may be imported" if in_function else ""
    if distribution not in extras:
        return "neither a dependency nor part of an extra in pyproject.toml"
    return "" if in_function else "an extra may be imported in functions only"
