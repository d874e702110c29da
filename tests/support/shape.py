"""Counts what makes code heavy to hold in mind: wide classes, long constructors and the like.

`facts_of` reads one file; `counts` puts the facts of all files together, because an alias or a
field that one file defines is used in others.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from tests.support.syntax import is_within, nodes_of

MOST_FIELDS = 12
MOST_ARGUMENTS = 6
LONE_LINES = 100
FULL_LINES = 470


class Facts(NamedTuple):
    """What one file contributes.

    fields: of each class, how many attributes of self it assigns. owned: names of all such
    attributes, and of annotated ones. constructors: of each, the number of its arguments and the
    names in their annotations. aliases: module-level names for Callable. far: assignments to an
    attribute of another object's attribute. outside: attributes of local objects that are assigned.
    imports: whole names of modules, or of names in them.
    """

    lines: int
    fields: list[tuple[str, int]]
    owned: frozenset[str]
    constructors: list[tuple[str, int, frozenset[str]]]
    aliases: list[str]
    far: list[str]
    outside: list[tuple[str, str]]
    imports: frozenset[tuple[str, str]]


def facts_of(source: str) -> Facts:
    """Return the facts of one file, by its text."""
    nodes = nodes_of(source)
    assert isinstance(nodes[0], ast.Module)
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    assigned = _assigned(nodes, classes)
    owned = frozenset[str]().union(_declared(nodes, classes), *assigned)
    aliases, imports = _aliases(nodes[0]), _imports(nodes)
    found = Facts(source.count("\n"), [], owned, [], aliases, [], [], imports)
    for each, attributes in zip(classes, assigned, strict=True):
        found.fields.append((each.name, len(attributes)))
        found.constructors.extend(_constructors(each))
    modules = {
        alias.asname or alias.name.partition(".")[0]
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Attribute(value=base), ctx=ast.Store()):
                if not (isinstance(base, ast.Name) and base.id in modules):
                    found.far.append(ast.unparse(node))
            case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store()):
                if name not in {"self", "cls", *modules}:
                    found.outside.append((node.attr, ast.unparse(node)))
    return found


def _assigned(nodes: Iterable[ast.AST], classes: Sequence[ast.ClassDef]) -> list[set[str]]:
    """Return the attributes of self that are assigned inside each class."""
    stores = [
        node
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    ]
    return [{node.attr for node in stores if is_within(node, [each])} for each in classes]


def _declared(nodes: Iterable[ast.AST], classes: Sequence[ast.ClassDef]) -> set[str]:
    """Return the names that have an annotation inside of classes."""
    return {
        node.target.id
        for node in nodes
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if is_within(node, classes)
    }


def _constructors(node: ast.ClassDef) -> Iterable[tuple[str, int, frozenset[str]]]:
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
            taken = inner.args.posonlyargs + inner.args.args[1:] + inner.args.kwonlyargs
            annotations = [each.annotation for each in taken if each.annotation]
            names = frozenset(part for each in annotations for part in _named(each))
            yield node.name, len(taken), names


def _named(annotation: ast.expr) -> Iterator[str]:
    for part in ast.walk(annotation):
        match part:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name


def _aliases(module: ast.Module) -> list[str]:
    return [
        target.id
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Callable[")
        for target in node.targets
        if isinstance(target, ast.Name)
    ]


def _imports(nodes: Iterable[ast.AST]) -> frozenset[tuple[str, str]]:
    """Return pairs of module and name; the name is empty where the module is imported whole."""
    found: set[tuple[str, str]] = set()
    for node in nodes:
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                found.update((module, alias.name) for alias in names)
            case ast.Import(names=names):
                found.update((alias.name, "") for alias in names)
    return frozenset(found)


def counts(facts: Mapping[str, Facts]) -> dict[str, list[str]]:
    """Return the places of each kind of weight; facts: those of each file, by its path.

    fields: classes that assign more than 12 attributes of self. arguments: constructors with more
    than 6 arguments. callbacks: constructors that take a Callable, or an alias of one. far:
    assignments to an attribute of another object's attribute. outside: assignments to an attribute
    of a local object which some class assigns to itself. aliases: module-level names for Callable.
    lone: files of at most 100 lines with one importer. full: files of more than 470 lines.
    """
    aliases = {"Callable"}.union(*(each.aliases for each in facts.values()))
    owned = frozenset[str]().union(*(each.owned for each in facts.values()))
    dotted = {_module(path): path for path in facts}
    importers: Counter[str] = Counter()
    for each in facts.values():
        whole = {(f"{module}.{name}", module) for module, name in each.imports}
        importers.update({name if name in dotted else module for name, module in whole})
    found: dict[str, list[str]] = {
        name: []
        for name in (
            *("fields", "arguments", "callbacks", "far"),
            *("outside", "aliases", "lone", "full"),
        )
    }
    for path, each in facts.items():
        wide = [f"{path} {name} {count}" for name, count in each.fields if count > MOST_FIELDS]
        found["fields"] += wide
        for name, count, names in each.constructors:
            if count > MOST_ARGUMENTS:
                found["arguments"].append(f"{path} {name} {count}")
            if names & aliases:
                found["callbacks"].append(f"{path} {name}")
        found["far"] += [f"{path} {text}" for text in each.far]
        found["outside"] += [f"{path} {text}" for name, text in each.outside if name in owned]
        found["aliases"] += [f"{path} {name}" for name in each.aliases]
        is_package = PurePosixPath(path).name == "__init__.py"
        if not is_package and each.lines <= LONE_LINES and importers[_module(path)] == 1:
            found["lone"].append(f"{path} {each.lines}")
        if each.lines > FULL_LINES:
            found["full"].append(f"{path} {each.lines}")
    return found


def _module(path: str) -> str:
    return ".".join(PurePosixPath(path).with_suffix("").parts).removesuffix(".__init__")
