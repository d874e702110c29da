"""Which calls a thread of this process runs now, for the lines that a model logs and prints.

Only calls with an origin are noted; for all others nothing is done.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextvars import ContextVar

from farm.call import Call

CALLS_NAMED = 8
"""Calls of one batch that are named; a batch may have thousands."""

Fields = dict[str, str]

_fields: ContextVar[Fields | None] = ContextVar("running", default=None)


def now_running(calls: Sequence[Call]) -> None:
    """Note that this thread is about to run these calls, which share a model; none: it ended."""
    origins = [call.origin for call in calls if call.origin is not None]
    if not origins:
        _fields.set(None)
        return
    named = origins[:CALLS_NAMED]
    more = [f"and {len(origins) - len(named)} more"] if len(origins) > len(named) else []
    clients = dict.fromkeys(origin.client for origin in named if origin.client)
    _fields.set(
        {
            "call": ", ".join([*(origin.call_id for origin in named), *more]),
            "client": ", ".join(clients),
            "model": calls[0].model,
        }
    )


def runs_for(others: Fields) -> None:
    """Note the `context` of the process for which this thread is about to run a part of a call.

    Empty: that has ended.
    """
    _fields.set(others or None)


def fields() -> Fields:
    """Return id, client and model of the calls that this thread runs; empty if they have no id."""
    return _fields.get() or {}


_process: Fields = {}


def name_worker(name: str) -> None:
    """Note the name of the worker that this process is."""
    _process["worker"] = name


def context() -> Fields:
    """Return `fields`, and the name of the worker."""
    return {**_process, **fields()}


class CallFilter(logging.Filter):
    """Gives every record an attribute `call`, the id of the call that the thread runs, or ""."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let all records pass."""
        call = fields().get("call", "")
        record.__dict__.update(call=call, of_call=f" [{call}]" if call else "")
        return True
