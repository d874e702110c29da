"""Names of client and chain for all calls that a thread, a task or a block of code makes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from farm.call import LONGEST_CALL_ID, Hints, checked_call_id

NUMBER = "{i}"
"""Stands for the number of a thread in the names of an Executor."""


class GivenNames(NamedTuple):
    """Names of client and chain of calls; None: the name that was given to `connect`."""

    client: str | None = None
    chain: str | None = None

    def checked(self) -> GivenNames:
        """Return these names. Raises TypeError if one of them is not a text."""
        for name in self:
            if not isinstance(name, str | None):
                raise TypeError(f"the name of a client or chain is {name!r}; expected a text")
        return self

    def of_thread(self, number: int) -> GivenNames:
        """Return the names with the number of a thread in place of `{i}`."""
        return GivenNames(*(name and name.replace(NUMBER, str(number)) for name in self))

    def of_no_thread(self) -> GivenNames:
        """Return the names without those that need the number of a thread."""
        return GivenNames(*(None if name and NUMBER in name else name for name in self))


_HERE: ContextVar[GivenNames | None] = ContextVar("names of calls", default=None)


def set_names(names: GivenNames) -> None:
    """Name all calls that this thread makes from now on."""
    _HERE.set(names)


@contextlib.contextmanager
def named(names: GivenNames) -> Iterator[None]:
    """Name the calls that the block makes; a name that is None stays that of the outer block."""
    outer = _HERE.get() or GivenNames()
    inner = GivenNames(
        *(old if new is None else new for old, new in zip(outer, names, strict=True))
    )
    token = _HERE.set(inner)
    try:
        yield
    finally:
        _HERE.reset(token)


@contextlib.contextmanager
def chain(name: str, *, client: str | None = None) -> Iterator[None]:
    """Name the chain of all calls in a block: of every model, over every connection.

        def run_chain(i):
            with farm.chain(f"chain {i}"):
                ...  # sample, calling the model

    name: in place of the `chain` given to `connect`, or of that of an outer block. client: likewise
    in place of the `client`; if None, that one stays.

    The names hold in the thread or asyncio task that runs the block, in the tasks and forked
    processes that it starts, but not in other threads. As a decorator it names the calls of a
    function. Raises TypeError if a name is not a text.
    """
    if name is None:
        raise TypeError("the name of a chain is None; expected a text")
    with named(GivenNames(client, name).checked()):
        yield


_CALL_ID: ContextVar[str] = ContextVar("id of calls", default="")


@contextlib.contextmanager
def call_id(text: str) -> Iterator[None]:
    """Give all calls of a block this id, which logs of the farm and of its workers name.

        with farm.call_id("order-17"):
            y = model(x)

    An error of such a call has the id as `call_id`. It holds where the names of `chain` hold; in an
    inner block, that one's id. Raises ValueError unless it has 1 to 128 visible ASCII characters.
    """
    if not isinstance(text, str) or not checked_call_id(text):
        raise ValueError(
            f"the id of a call is {text!r}; expected 1 to {LONGEST_CALL_ID} visible ASCII "
            "characters without spaces"
        )
    token = _CALL_ID.set(text)
    try:
        yield
    finally:
        _CALL_ID.reset(token)


def with_names(hints: Hints) -> Hints:
    """Return `hints` with the names and the id that hold here."""
    names, call_id = _HERE.get(), _CALL_ID.get()
    if names is not None:
        hints = _replaced(hints, names)
    return replace(hints, call_id=call_id) if call_id else hints


@lru_cache(maxsize=1024)
def _replaced(hints: Hints, names: GivenNames) -> Hints:
    client = hints.client if names.client is None else names.client
    chain = hints.chain if names.chain is None else names.chain
    return replace(hints, client=client, chain=chain)
