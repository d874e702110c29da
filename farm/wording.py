"""Errors for whoever gets them: words of Python or of the command line, and short tracebacks."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
Kinds = tuple[type[Exception], ...]

_on_command_line = False


def worded(flag: str, python: str) -> str:
    """Return `flag` if this process runs a command of `farm`, otherwise `python`.

    For example `worded("--overwrite", "overwrite=True")`.
    """
    return flag if _on_command_line else python


@contextlib.contextmanager
def on_command_line() -> Iterator[None]:
    """Word messages of all threads for the command line, for the length of the block."""
    global _on_command_line
    before, _on_command_line = _on_command_line, True
    try:
        yield
    finally:
        _on_command_line = before


MOST_LINES = 20
"""Most lines of a model's traceback in a note."""


def short(error: E) -> E:
    """Return an error without its traceback in farm, which does not help its receiver.

    The traceback of a model's own code, in `detail`, becomes a note of the error.
    """
    lines = str(getattr(error, "detail", "")).splitlines()
    if lines and lines[0].startswith("Traceback"):
        frames = [line for line in lines[1:] if line.startswith("  ")]
        note = "\n".join(["in the model:", *frames[-MOST_LINES:]])
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
    return error.with_traceback(None)


def briefly(*kinds: type[Exception]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator: errors of these kinds leave `function` as `short` makes them, without a cause.

    Of a coroutine function or a generator, synchronous or not, these are the errors of the caller's
    `await`, `for` or `async for`.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        made: Callable[P, Any]
        if inspect.isasyncgenfunction(function):
            made = _asynchronous_generator(function, kinds)
        elif inspect.iscoroutinefunction(function):
            made = _coroutine(function, kinds)
        elif inspect.isgeneratorfunction(function):
            made = _generator(function, kinds)
        else:
            made = _function(function, kinds)
        return functools.wraps(function)(made)

    return decorate


def _function(function: Callable[P, T], kinds: Kinds) -> Callable[P, T]:
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except kinds as error:
            raise short(error) from None

    return call


def _generator(
    function: Callable[P, Generator[T, Any, Any]], kinds: Kinds
) -> Callable[P, Generator[T, Any, Any]]:
    def call(*args: P.args, **kwargs: P.kwargs) -> Generator[T, Any, Any]:
        try:
            return (yield from function(*args, **kwargs))
        except kinds as error:
            raise short(error) from None

    return call


def _coroutine(
    function: Callable[P, Coroutine[Any, Any, T]], kinds: Kinds
) -> Callable[P, Coroutine[Any, Any, T]]:
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await function(*args, **kwargs)
        except kinds as error:
            raise short(error) from None

    return call


def _asynchronous_generator(
    function: Callable[P, AsyncGenerator[T, None]], kinds: Kinds
) -> Callable[P, AsyncGenerator[T, None]]:
    async def call(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T, None]:
        try:
            async with contextlib.aclosing(function(*args, **kwargs)) as items:
                async for item in items:
                    yield item
        except kinds as error:
            raise short(error) from None

    return call
