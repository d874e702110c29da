"""Words for people: errors for Python or the command line, short tracebacks, time spans."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from typing import Any, ParamSpec, TypeVar

from farm.errors import Detail

JOIN_S = 30.0
"""Time after which a farm, and `farm worker`, say that workers have not joined."""

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


@contextlib.contextmanager
def needs(extra: str, what: str, kind: type[Exception] = ImportError) -> Iterator[None]:
    """Import packages of an extra in the block. what: a sentence such as "FMUs need FMPy".

    Raises an error of this kind, which names the extra; an ImportError also says what is missing.
    """
    try:
        yield
    except ImportError as error:
        text = f'{what}: pip install "modelfarm[{extra}]"'
        if kind is ImportError:
            raise ImportError(f"{text} ({error})") from error
        raise kind(text) from None


def imported(extra: str, what: str, *modules: str) -> Any:
    """Return the first of these modules of an extra. Raises ImportError, as `needs` does."""
    with needs(extra, what):
        found = [importlib.import_module(module) for module in modules]
    return found[0]


def one_line(text: object) -> str:
    """Return a text, such as that of a foreign error, on one line."""
    return " ".join(str(text).split())


def counted(number: int, what: str) -> str:
    """Return a number and a noun that fits it: 1 worker, 0 workers."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def have_joined(expected: int, number: int) -> str:
    """Return the words for workers of which only some have joined after `JOIN_S` seconds."""
    have = "has" if number == 1 else "have"
    return f"{counted(expected, 'worker')} expected, {number} {have} joined after {JOIN_S:g} s"


def short(error: E) -> E:
    """Return an error without its traceback in farm, which does not help its receiver."""
    return error.with_traceback(None)


def _detail(error: BaseException) -> Detail | None:
    """Return the traceback of a model's own code, the one cause that helps the receiver."""
    return error.__cause__ if isinstance(error.__cause__, Detail) else None


def briefly(*kinds: type[Exception]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator: errors of these kinds leave `function` as `short` makes them.

    Their only cause is the traceback of a model, if a model raised.

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
            raise short(error) from _detail(error)

    return call


def _generator(
    function: Callable[P, Generator[T, Any, Any]], kinds: Kinds
) -> Callable[P, Generator[T, Any, Any]]:
    def call(*args: P.args, **kwargs: P.kwargs) -> Generator[T, Any, Any]:
        try:
            return (yield from function(*args, **kwargs))
        except kinds as error:
            raise short(error) from _detail(error)

    return call


def _coroutine(
    function: Callable[P, Coroutine[Any, Any, T]], kinds: Kinds
) -> Callable[P, Coroutine[Any, Any, T]]:
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await function(*args, **kwargs)
        except kinds as error:
            raise short(error) from _detail(error)

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
            raise short(error) from _detail(error)

    return call


MINUTE, HOUR, DAY = 60, 3600, 86400


def timespan(seconds: float | None) -> str:
    """Return a time span as text: 31 us, 250 ms, 12.3 s, 4 min 05 s, 3 h 20 min, 2 d 04 h.

    A negative one, as clocks of two machines may give, is `0 s`; an unknown or endless one is `?`.
    """
    if seconds is None or not math.isfinite(seconds):
        return "?"
    if seconds <= 0:
        return "0 s"
    digits = float(f"{seconds:.3g}")  # rounded first, so that 999.9 ms is 1 s
    if digits < 2 * MINUTE:
        unit, scale = ("s", 1.0) if digits >= 1 else ("ms", 1e3) if digits >= 1e-3 else ("us", 1e6)
        return f"{digits * scale:.3g} {unit}"
    whole = round(seconds)
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE:02d} s"
    if whole < 2 * DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE:02d} min"
    return f"{whole // DAY} d {whole % DAY // HOUR:02d} h"
