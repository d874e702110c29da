"""A fingerprint of a model's own code, for models that are objects of this process.

It tells a script or a notebook that continues a sweep whether the model's class or function was
edited meanwhile. Comments do not count, and functions that the model calls are not looked at.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from hashlib import blake2b
from types import CodeType, FunctionType
from typing import Any

from farm.functions import FunctionModel, PlainFunction
from farm.model import Model


def code_of(model: Model) -> str:
    """Return the fingerprint of a model's class, or of the function that it was made of."""
    found = blake2b(digest_size=8)
    for function in _functions(model):
        for text in _texts(function.__code__):
            found.update(f"{len(text)} {text}".encode("utf-8", "surrogatepass"))
    return f"code:{found.hexdigest()}"


def _functions(model: Model) -> Iterator[FunctionType]:
    if isinstance(model, FunctionModel | PlainFunction):
        members: list[Any] = [model.function]
    else:
        mro = type(model).__mro__
        classes = mro[: mro.index(Model)]
        members = [member for each in classes for _, member in sorted(vars(each).items())]
    for member in members:
        bare = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if callable(bare) and isinstance(function := inspect.unwrap(bare), FunctionType):
            yield function


def _texts(code: CodeType) -> Iterator[str]:
    """Yield all that a function does, in texts that are the same in every process."""
    yield repr((code.co_code, code.co_names, code.co_varnames, code.co_freevars))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _texts(constant)
        elif isinstance(constant, frozenset):  # its order differs from process to process
            yield repr(sorted(map(repr, constant)))
        else:
            yield repr(constant)
