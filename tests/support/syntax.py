"""The syntax of a text, parsed once for the rules that read it one after another."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import lru_cache


@lru_cache(maxsize=2)  # the trees of all files together take hundreds of megabytes
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    """Return all nodes of the text's syntax tree. Raises SyntaxError."""
    return tuple(ast.walk(ast.parse(source)))


def is_within(node: ast.stmt | ast.expr, statements: Iterable[ast.stmt]) -> bool:
    """Whether the node is a part of one of these statements: by lines, as they have whole lines."""
    line = node.lineno
    return any(each.lineno <= line <= (each.end_lineno or 0) for each in statements)
