"""Finds private names of other packages in a text: what may change there without notice.

A name is private if it begins with one underscore. It is farm's own if farm defines it: on `self`
or `super()` anywhere in farm, since classes inherit, on any other object in the same file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Set
from functools import cache
from typing import NamedTuple

from tests.support.syntax import nodes_of

DOCUMENTED = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}
"""Names with an underscore that Python documents for all users: those of named tuples."""

LOOK_UPS = {"attrgetter", "delattr", "getattr", "hasattr", "methodcaller", "setattr"}
"""Functions that take the name of an attribute as text."""

_PRIVATE_MODULE = re.compile(r"[a-z]\w*(\.\w+)*\._[a-z]\w*(\.\w+)*")


class Use(NamedTuple):
    """A private name of another package, as the text uses it: `sys._getframe`."""

    line: int
    text: str


def is_private(name: str) -> bool:
    """Whether a name begins with one underscore and has more than that."""
    return name[0] == "_" and name.strip("_") != "" and not name.startswith("__")


@cache
def defined_in(source: str) -> frozenset[str]:
    """The private names that a text defines: functions, classes, variables and attributes."""
    found = set()
    for node in nodes_of(source):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                found.add(name)
    return frozenset(name for name in found if is_private(name))


def foreign_private_names(source: str, inherited: Set[str]) -> list[Use]:
    """Every use of a private name of another package in a text, by line.

    inherited: the private names that the classes of all of farm define.
    """
    own = defined_in(source)
    on_self = own | inherited
    uses = []
    for node in nodes_of(source):
        if isinstance(node, ast.expr | ast.stmt):
            uses += [Use(node.lineno, text) for text in _uses(node, own, on_self)]
    return sorted(uses)


def is_inherited(use: Use, names: Set[str]) -> bool:
    """Whether a use is of one of these names on `self`, `cls` or `super()`."""
    root, _, name = use.text.rpartition(".")
    return root in ("self", "cls", "super()") and name in names


def _uses(node: ast.AST, own: frozenset[str], on_self: frozenset[str]) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (f"import {a.name}" for a in names if _has_private_part(a.name))
        case ast.ImportFrom(module=module, names=names):
            for alias in names:
                if _has_private_part(f"{module}.{alias.name}"):
                    yield f"from {module} import {alias.name}"
        case ast.Attribute(value=value, attr=name):
            known = on_self if _is_self(value) else own
            if is_private(name) and name not in known and name not in DOCUMENTED:
                yield ast.unparse(node)
        case ast.Call(func=ast.Name(id=function) | ast.Attribute(attr=function), args=arguments):
            if function in LOOK_UPS:
                yield from (f"{function} {text}" for text in _texts(arguments) if text not in own)
        case ast.Constant(value=str(text)) if _PRIVATE_MODULE.fullmatch(text):
            yield repr(text)


def _has_private_part(module: str) -> bool:
    return any(is_private(part) for part in module.split("."))


def _is_self(node: ast.expr) -> bool:
    match node:
        case ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super")):
            return True
    return False


def _texts(arguments: list[ast.expr]) -> Iterator[str]:
    for argument in arguments:
        match argument:
            case ast.Constant(value=str(text)) if text and is_private(text):
                yield text


def replaced_names(source: str) -> list[Use]:
    """Every assignment to a name of a module or class that the text imports from elsewhere."""
    foreign: set[str] = set()
    for node in nodes_of(source):
        match node:
            case ast.Import(names=names):
                modules = [(a.asname or a.name).partition(".")[0] for a in names]
                foreign.update(name for name in modules if name != "farm")
            case ast.ImportFrom(module=str(module), names=names):
                if module.partition(".")[0] != "farm":
                    foreign.update(a.asname or a.name for a in names)
    return sorted(
        Use(node.lineno, ast.unparse(node))
        for node in nodes_of(source)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store | ast.Del)
        and _root(node) in foreign
    )


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
