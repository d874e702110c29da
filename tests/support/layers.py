"""Import rules: those of docs/layers.toml as a function of one file's text."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tests.support.syntax import is_within, nodes_of

TABLE = Path(__file__).parents[2] / "docs" / "layers.toml"


class Layer(NamedTuple):
    """A row of docs/layers.toml: parts of farm, their number, and their contents."""

    number: int
    parts: tuple[str, ...]
    holds: str


def layers() -> list[Layer]:
    """Return the table of layers, lowest first."""
    rows = tomllib.loads(TABLE.read_text())["layer"]
    return [Layer(row["number"], tuple(row["parts"]), row["holds"]) for row in rows]


LEVELS = {part.removesuffix(".py"): row.number for row in layers() for part in row.parts}
"""Each part of farm and its number; a part imports itself and parts with a lower number."""

_RULES = tomllib.loads(TABLE.read_text())
PURE = tuple(f"farm/{name}" for name in _RULES["pure"])
IMPURE_FILES = tuple(f"farm/{pattern}" for pattern in _RULES["impure"])


def table() -> str:
    """Return the table of layers as docs/architecture.md shows it."""
    lines = ["| | | |", "|---|---|---|"]
    for row in layers():
        parts = " ".join(f"`{part}`" if "." in part else f"`{part}/`" for part in row.parts)
        lines.append(f"| {row.number} | {parts} | {row.holds} |")
    return "\n".join(lines)


CORE, *OUTER = RINGS = ("core", *_RULES["rings"])
"""The rings of docs/layers.toml, from the inside."""


def ring_of(path: str) -> int:
    """Return the place in RINGS of a file; the interface of protocols is part of the core."""
    inside = path.removeprefix("farm/")
    if inside in ("protocols/__init__.py", "protocols/interface.py"):
        return 0
    for ring in OUTER:
        if any(inside == x or inside.startswith(f"{x}/") for x in _RULES["rings"][ring]):
            return RINGS.index(ring)
    return 0


def _file_of(module: str) -> str:
    """Return the path of a module of farm, below the project."""
    path = module.replace(".", "/")
    return f"{path}/__init__.py" if (TABLE.parents[1] / path).is_dir() else f"{path}.py"


OF_AN_EXTRA = {
    "farm/ops/jax": frozenset({"jax"}),
    "farm/ops/pytensor": frozenset({"pytensor"}),
    "farm/ops/torch": frozenset({"torch"}),
    "farm/experiment/models": frozenset({"botorch", "gpytorch", "threadpoolctl", "torch"}),
    **dict.fromkeys(
        (
            *(
                "farm/transports/zmq/admission",
                "farm/transports/zmq/listener",
                "farm/transports/zmq/line",
            ),
            *("farm/transports/keys", "farm/worker/mpi/group", "farm/provision/local/rank"),
        ),
        frozenset({"zmq"}),
    ),
}
"""Modules and folders that belong to an extra, or to rarely loaded libraries, and may import these
at their top; others import them only in functions.
"""

IMPURE = {
    *("asyncio", "concurrent", "multiprocessing", "signal", "subprocess", "threading", "time"),
    *("http", "requests", "select", "selectors", "socket", "ssl", "urllib", "urllib3"),
    *("dask", "distributed", "fastapi", "grpc", "h5py", "starlette", "uvloop", "zmq"),
    *("random", "secrets"),
}
"""Modules that a pure part must not import: clocks, processes, sockets, programs, randomness."""

PURE_MODULES = {"urllib.parse"}
"""Modules below these that only compute."""

DISTRIBUTIONS = {
    "SALib": "salib",
    "google": "protobuf",
    "opentelemetry": "opentelemetry-sdk",
    "prometheus_client": "prometheus-client",
    "starlette": "fastapi",
    "xgboost": "xgboost-cpu",
    "zmq": "pyzmq",
}
"""The distribution of an import name, if the names differ."""


SLOW_TO_IMPORT = {"prometheus_client", "scipy", "zmq"}
"""Dependencies that are slow to import or needed by few processes: import in functions only."""


class Import(NamedTuple):
    """One imported module: its line, and whether it is imported in a function or for types."""

    module: str
    line: int
    in_function: bool
    for_types: bool


def imports_of(source: str) -> Iterator[Import]:
    """Yield every module that the text imports; `from farm import x` counts as farm.x."""
    nodes = nodes_of(source)
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    blocks = [n for n in nodes if isinstance(n, ast.If) and names_type_checking(n.test)]
    for_types = [statement for block in blocks for statement in block.body]
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [f"farm.{a.name}" for a in node.names] if module == "farm" else [module]
        else:
            continue
        where = is_within(node, functions), is_within(node, for_types)
        yield from (Import(name, node.lineno, *where) for name in names)


def names_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def part_of(path: str) -> str:
    """Return the part of farm that a file belongs to: `farm/sweep/run/run.py` to `sweep`.

    The longest that the table names: `farm/protocols/mip/calls.py` belongs to `protocols/mip`.
    """
    inside = PurePosixPath(path.removesuffix(".py")).parts[1:]
    found = ["/".join(inside[:n]) for n in range(len(inside), 0, -1)]
    return next((part for part in found if part in LEVELS), inside[0] if inside else "")


def is_pure(path: str) -> bool:
    """Whether a file must not import a clock, socket, process, thread or source of randomness."""
    return path.startswith(PURE) and not any(fnmatch(path, each) for each in IMPURE_FILES)


LATE = frozenset(
    {
        ("farm/cli/__init__.py", "farm.settings"),
        ("farm/cli/__init__.py", "farm.sweep.errors"),
        ("farm/cli/__init__.py", "logging"),
        ("farm/cli/__init__.py", "traceback"),
        ("farm/cli/groups.py", "difflib"),
        ("farm/descriptors.py", "importlib.metadata"),
        ("farm/machine/addresses.py", "farm.settings"),
        ("farm/machine/keeper_line.py", "asyncio"),
        ("farm/machine/private.py", "tempfile"),
        ("farm/provision/batch/allocation.py", "subprocess"),
        ("farm/provision/local/record.py", "tempfile"),
        ("farm/server/doors.py", "fastapi.responses"),
        ("farm/server/farm.py", "farm.provision.batch.elastic"),
        ("farm/transports/stream/address.py", "shutil"),
        ("farm/transports/stream/address.py", "tempfile"),
        ("farm/worker/file_version.py", "importlib.metadata"),
        ("farm/worker/loader.py", "farm.worker.lines"),
    }
)
"""Imports in functions, of modules that neither `farm --help` nor a worker may wait for."""


def violations(
    path: str, source: str, *, base: frozenset[str], extras: frozenset[str]
) -> list[str]:
    """Return the rules that the file breaks, one line each.

    base, extras: distributions that farm always needs, and those of some extra.
    """
    found = []
    part = part_of(path)
    pure = is_pure(path)
    for module, line, late, for_types in imports_of(source):
        top, *rest = module.split(".")
        outer = top == "farm" and ring_of(_file_of(module)) > ring_of(path)
        in_function = late and (path, module) not in LATE and not outer
        if top == "farm":
            problem = _inner_problem(part, rest, in_function, _extras_of(path))
            if not problem and outer and not (late or for_types):
                problem = f"of an outer ring, {RINGS[ring_of(_file_of(module))]}: in functions only"
        elif top in _extras_of(path):
            problem = ""
        elif pure and top in IMPURE and module not in PURE_MODULES:
            problem = f"a pure part imports {top}"
        elif top in sys.stdlib_module_names:
            problem = "in a function, where only extras may be imported" if in_function else ""
        else:
            problem = _outer_problem(top, in_function, for_types, base, extras)
        if problem:
            found.append(f"{path}:{line}: import {module}: {problem}")
    return found


def _extras_of(path: str) -> frozenset[str]:
    """Return the extras to which a file, or a module, belongs."""
    path = path.removesuffix(".py")
    found = (extras for part, extras in OF_AN_EXTRA.items() if f"{path}/".startswith(f"{part}/"))
    return next(found, frozenset())


def _inner_problem(part: str, target: list[str], in_function: bool, extras: frozenset[str]) -> str:
    other_part = part_of("/".join(["farm", *target]))
    if other_part not in LEVELS:
        return "the package itself is above all its parts; import the module that defines the name"
    if not _extras_of("/".join(["farm", *target])) <= extras:
        return "" if in_function else "a part made with an extra may be imported in functions only"
    level, other = LEVELS[part], LEVELS[other_part]
    if part != other_part and not other < level and not level == other == 0:
        return f"{part} ({level}) may import itself and lower numbers, {other_part} has {other}"
    return "in a function, where only extras may be imported" if in_function else ""


def _outer_problem(
    top: str, in_function: bool, for_types: bool, base: frozenset[str], extras: frozenset[str]
) -> str:
    distribution = DISTRIBUTIONS.get(top, top)
    if distribution in base and top in SLOW_TO_IMPORT:
        return "" if in_function or for_types else "slow to import: in functions only"
    if distribution in base:
        return "in a function, where only extras may be imported" if in_function else ""
    if distribution not in extras:
        return "neither a dependency nor part of an extra in pyproject.toml"
    return "" if in_function or for_types else "an extra may be imported in functions only"
