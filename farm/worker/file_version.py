"""The version of a model that is one file: a hash of the file and of the packages it imports.

Only for files whose answers can hardly depend on other code: every module that they import belongs
to Python or to an installed package, and they start no programs. Anything else that a model
depends on, such as a data file, changes its answers without changing this version: such a model
sets `version` itself.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import logging
import platform
import re
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b, file_digest
from pathlib import Path

from farm.call import VERSION_OF_FILE
from farm.version import __version__

log = logging.getLogger(__name__)

STARTS_PROGRAMS = frozenset(
    {
        *("subprocess", "ctypes", "ctypeslib", "cffi", "cpp_extension", "multiprocessing", "pty"),
        *("runpy", "importlib", "imp", "zipimport", "builtins"),
        *("juliacall", "julia", "rpy2", "oct2py", "matlab", "jpype"),
    }
)
"""Modules by which a file can run code that is neither in it nor in a package it imports, alone or
as a part of a package, such as numpy.ctypeslib."""

REACHES_OUT = frozenset(
    {
        *("socket", "http", "urllib", "requests", "httpx", "aiohttp", "urllib3", "zmq", "grpc"),
        *("xmlrpc", "ftplib", "telnetlib"),
        *("tritonclient", "paramiko", "dask", "distributed", "ray"),
    }
)
"""Modules by which a file can have another server compute its answers."""

CLIENTS = frozenset(
    {
        *(("umbridge", "HTTPModel"), ("farm", "connect")),
        *(("asyncio", "open_connection"), ("asyncio", "open_unix_connection")),
    }
)
"""Names in packages that serve the same end."""

STARTERS = frozenset({"system", "popen", "fork", "forkpty", "startfile", "*"})
STARTER_PREFIXES = {
    "os": ("exec", "spawn", "posix_spawn"),
    "asyncio": ("create_subprocess",),
}
"""Functions of packages that run programs."""

LOCATION = re.compile(rb"\n\x08location\x12([\x80-\xff]?[\x00-\x7f])")
"""In an ONNX file, the entry that names the file of a tensor's numbers, up to the name's length:
two fields of protobuf's StringStringEntryProto, as every release of onnx writes them."""

RUN_TEXT = frozenset({"exec", "eval", "compile", "__import__"})


def version_of_file(path: Path, source: bytes) -> str:
    """Return the version of the model in a file with this content, or "" if it has none.

    The reason for having none is logged at DEBUG. Call it after the file was loaded: modules are
    then found where the file found them.
    """
    try:
        parts = [source, *_others(path, source)]
    except (SyntaxError, ValueError, OSError) as error:
        log.debug("%s has no version of its own: %s", path, error)
        return ""
    found = blake2b(digest_size=8)
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return f"{VERSION_OF_FILE}{found.hexdigest()}"


def _others(path: Path, source: bytes) -> Iterator[bytes]:
    """Yield what else the answers depend on. Raises ValueError or OSError if that is not known."""
    if path.suffix == ".py":
        yield from _packages(source, path.parent)
    if path.suffix == ".onnx":
        for name in sorted(_files_of_tensors(source)):
            with (path.parent / name).open("rb") as file:
                yield file_digest(file, "blake2b").digest()


def _files_of_tensors(source: bytes) -> set[str]:
    """Return the names of the files that hold numbers of a network, relative to its own folder."""
    names = set()
    for found in LOCATION.finditer(source):
        low, high = found[1][0], found[1][-1] if len(found[1]) > 1 else 0
        name = source[found.end() : found.end() + (low & 0x7F) + (high << 7)]
        names.add(name.decode())
    return names


def _packages(source: bytes, folder: Path) -> Iterator[bytes]:
    """Yield name and version of each package that a file imports, and Python's version.

    Raises ValueError, with the reason, if the file may run code from elsewhere.
    """
    tree = ast.parse(source)
    modules, imported = _imports(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            package = imported.get(_first_name(node), "")
            _check_name(package, node.attr, node.lineno)
            if package and node.attr in STARTS_PROGRAMS:
                modules.add(node.attr)
        elif isinstance(node, ast.Name) and node.id in RUN_TEXT:
            raise ValueError(f"line {node.lineno} uses {node.id}")
    for part in sorted({part for module in modules for part in module.split(".")}):
        if part in STARTS_PROGRAMS:
            raise ValueError(f"it imports {part}, by which it may run other code")
    names = {module.partition(".")[0] for module in modules}
    yield platform.python_version().encode()
    for name in sorted(names):
        if name in REACHES_OUT:
            raise ValueError(f"it imports {name}, by which it may use other servers")
        yield f"{name} {_version(name, folder)}".encode()


def _imports(tree: ast.AST) -> tuple[set[str], dict[str, str]]:
    """Return the imported modules, and packages by the names that the file gives to their modules.

    Raises ValueError if it imports a neighbour.
    """
    imported: dict[str, str] = {}
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                modules.add(alias.name)
                package = alias.name.partition(".")[0]
                imported[alias.asname or package] = package
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"line {node.lineno} imports a neighbour of the file")
            module = node.module or ""
            package = module.partition(".")[0]
            modules.add(module)
            for alias in node.names:
                _check_name(package, alias.name, node.lineno)
                modules.add(f"{module}.{alias.name}")
                imported[alias.asname or alias.name] = package
    return modules, imported


def _first_name(node: ast.Attribute) -> str:
    """Return `a` of an expression `a.b.c`; "" if it does not begin with a name."""
    value = node.value
    while isinstance(value, ast.Attribute):
        value = value.value
    return value.id if isinstance(value, ast.Name) else ""


def _check_name(package: str, name: str, line: int) -> None:
    """Raise ValueError if a name of a package starts programs, or is a client of servers."""
    prefixes = STARTER_PREFIXES.get(package, ())
    if (package == "os" and name in STARTERS) or (prefixes and name.startswith(prefixes)):
        raise ValueError(f"line {line} uses {package}.{name}, which starts programs")
    if (package, name) in CLIENTS:
        raise ValueError(f"line {line} uses {package}.{name}, the client of a server")


def _version(name: str, folder: Path) -> str:
    """Return the version of a module's package. Raises ValueError if it is not installed."""
    if name == "farm":
        return __version__
    if name in sys.builtin_module_names:
        return "python"
    where = _origin(name)
    standard, installed = _folders()
    for site in installed:
        if where.is_relative_to(site):
            return version_in(site, name) or _version_of_package(name)
    if name in sys.stdlib_module_names and any(where.is_relative_to(lib) for lib in standard):
        return "python"
    raise ValueError(f"it imports {name} from {where}, which is not an installed package")


def _version_of_package(name: str) -> str:
    """Return the version of a package that `version_in` does not find."""
    import importlib.metadata  # takes longer than all else here

    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)  # the search below takes longer
    packages = _distributions().get(name)
    if not packages:
        raise ValueError(f"it imports {name}, which belongs to no installed package")
    return ", ".join(f"{each} {importlib.metadata.version(each)}" for each in sorted(packages))


def _origin(name: str) -> Path:
    """Return where a module lies. Raises ValueError if it is not found."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    try:
        spec = spec or importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        raise ValueError(f"it imports {name}, which cannot be found: {error}") from None
    if spec is None:
        raise ValueError(f"it imports {name}, which cannot be found")
    if spec.origin in ("built-in", "frozen"):
        return Path(sysconfig.get_path("stdlib"))
    where = spec.origin or next(iter(spec.submodule_search_locations or ()), None)
    if where is None:
        raise ValueError(f"it imports {name}, which has no file")
    return Path(where).resolve()


@lru_cache(maxsize=1)
def _folders() -> tuple[list[Path], list[Path]]:
    """Return the folders of Python's own modules, and those of installed packages."""
    standard = [Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib")]
    installed = [Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")]
    return standard, installed


@lru_cache(maxsize=1)
def _distributions() -> dict[str, list[str]]:
    import importlib.metadata

    return {k: list(set(v)) for k, v in importlib.metadata.packages_distributions().items()}


def version_in(folder: Path, name: str) -> str:
    """Return the version of the package `name` that is installed in `folder`, such as "2.1.0".

    Returns "" unless exactly one folder there, NAME-VERSION.dist-info, describes such a package.
    """
    wanted = _normalized(name)
    described = [
        entry
        for entry in folder.glob("*.dist-info")
        if _normalized(entry.name.partition("-")[0]) == wanted
    ]
    if len(described) != 1:
        return ""
    try:
        head = (described[0] / "METADATA").read_bytes().partition(b"\n\n")[0]
    except OSError:
        return ""
    found = re.search(rb"^Version:[ \t]*(\S+)[ \t]*\r?$", head, re.MULTILINE | re.IGNORECASE)
    return found[1].decode() if found else ""


def _normalized(name: str) -> str:
    """Return the form of a package's name in which equal names are equal (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
