"""Descriptors of protocols, and the search for them.

A protocol is a package with a module `protocol`, which holds a `Protocol` called PROTOCOL. It names
functions as text, "package.module:function". They are imported when first needed, so that a worker
does not load code that only the server uses. BUILT_IN lists the protocols that come with farm;
another package adds its own by an entry point in the group `farm.protocols`:

    [project.entry-points."farm.protocols"]
    line = "farm_line.protocol:PROTOCOL"

farm looks these up in `farm serve`, which offers their options, and when no built-in protocol
knows the scheme of a model's URL.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from farm.errors import Unavailable

T = TypeVar("T")

GROUP = "farm.protocols"
"""The group of entry points in which other packages register their descriptors."""

BUILT_IN = (
    "farm.protocols.umbridge.protocol",
    "farm.protocols.kserve.protocol",
    "farm.protocols.graphpipe.protocol",
    "farm.protocols.mip.protocol",
    "farm.protocols.aepsych.protocol",
    "farm.protocols.points.protocol",
)
"""Modules with the descriptors of the built-in protocols."""


@dataclass(frozen=True, slots=True)
class Option:
    """A setting of a protocol, for `farm serve`, its environment, farm.toml and `farm.serve()`.

    name: as in farm.toml; `--name-so` on the command line. help, metavar: for --help. kind: str,
    int or Path. default: the value when nothing is set. repeatable: it may be given several times,
    and the value is a tuple of texts.
    """

    name: str
    help: str = ""
    metavar: str = ""
    kind: type[str | int | Path] = str
    default: Any = None
    repeatable: bool = False


@dataclass(frozen=True, slots=True)
class Remote:
    """How to use running servers of the protocol as models of farm.

    schemes: URL schemes, such as `mip` for mip://host:9000; after a scheme that ends with +unix
    comes a path. form: an example URL for --help.
    models_at: names a function (URL, model name or None for all) -> models by name. The function
    raises FarmErrors.
    """

    schemes: tuple[str, ...]
    form: str
    models_at: str


@dataclass(frozen=True, slots=True)
class Objects:
    """How to use objects of another package as models of farm.

    kind: the type of the objects, such as "umbridge.Model"; methods: only these
    objects have all of them. adapt: names a function from such an object to a farm.model.Model.
    while_loading: names a function (path of a user's file, list) -> context manager. The file runs
    within the context, which appends to the list the models that the file passes to the package's
    own server. Only objects of built-in protocols are recognized: a search for others would cost
    every worker about 10 ms.
    """

    kind: str
    methods: tuple[str, ...]
    adapt: str
    while_loading: str

    def include(self, value: Any) -> bool:
        """Whether `value` is such an object or class."""
        return all(callable(getattr(value, method, None)) for method in self.methods)


@dataclass(frozen=True, slots=True)
class Protocol:
    """The descriptor of a protocol, for serving it and for using its servers.

    name: as in farm.json.
    serve: names a function from a `farm.protocols.interface.Site` to its `Endpoints`.
    options: its settings. check: names a function from their values by name and the Settings of the
    farm to the options in the form that `serve` expects; it raises SettingsError. Without it,
    `serve` receives the mapping itself.
    remotes, objects: other sources of models that it adds.
    """

    name: str
    serve: str
    options: tuple[Option, ...] = ()
    check: str = ""
    remotes: tuple[Remote, ...] = ()
    objects: Objects | None = None


def resolve(name: str) -> Any:
    """Import the module of "package.module:object" and return the object."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


@lru_cache(maxsize=1)
def built_in() -> tuple[Protocol, ...]:
    """Return the protocols that come with farm."""
    return tuple(resolve(f"{module}:PROTOCOL") for module in BUILT_IN)


@lru_cache(maxsize=1)
def installed() -> tuple[Protocol, ...]:
    """Return the protocols of other packages. Raises Unavailable if one cannot be used."""
    return tuple(_installed())


def every() -> tuple[Protocol, ...]:
    """Return all protocols, built-in ones first. Raises Unavailable as `installed` does."""
    return built_in() + installed()


def _installed() -> Iterator[Protocol]:
    names = {protocol.name for protocol in built_in()}
    options = {option.name for protocol in built_in() for option in protocol.options}
    for protocol, shown in of_packages(GROUP, Protocol, "protocol"):
        clash = options & {option.name for option in protocol.options}
        if protocol.name in names or clash:
            what = f"option {min(clash)!r}" if clash else f"name {protocol.name!r}"
            raise Unavailable(f"{shown} has the {what}, which another protocol already has")
        names.add(protocol.name)
        options |= {option.name for option in protocol.options}
        yield protocol


def of_packages(group: str, kind: type[T], what: str) -> Iterator[tuple[T, str]]:
    """Yield the descriptors that installed packages register in a group, with words for messages.

    kind: their type. what: the noun for one of them. Raises Unavailable if one cannot be loaded or
    is of another type.
    """
    from importlib.metadata import entry_points  # takes longer to import than all of this module

    for point in entry_points(group=group):
        package = point.dist.name if point.dist is not None else "an installed package"
        shown = f"the {what} {point.name!r} of {package} ({point.value})"
        try:
            descriptor = point.load()
        except Exception as error:
            raise Unavailable(f"{shown} cannot be loaded: {error!r}") from error
        if not isinstance(descriptor, kind):
            expected = f"{kind.__module__}.{kind.__qualname__}"
            raise Unavailable(f"{shown} is a {type(descriptor).__name__}; expected a {expected}")
        yield descriptor, shown
