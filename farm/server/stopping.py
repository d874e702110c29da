"""The action `stop`: the owner ends a farm over a connection, as Ctrl-C does in its terminal."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from farm.dispatcher.dispatcher import Dispatcher
from farm.machine.keeper_line import keeper
from farm.storage.lock import machine

Asked = Callable[[bool], None]
"""Called when a farm shall stop; True: at once, without waiting for running calls."""


def offer_stop(dispatcher: Dispatcher, grace_s: float, asked: Asked) -> None:
    """Offer the action `stop` (argument `now`: true or false), which calls `asked`.

    The answer says what has to end: the processes with their host, calls and jobs.
    """

    def stop(arguments: Mapping[str, str]) -> dict[str, Any]:
        state = dispatcher.snapshot()
        now = arguments.get("now") == "true"
        # The answer is sent first.
        asyncio.get_running_loop().call_soon(asked, now)
        jobs = state.get("cluster", {}).get("jobs", [])
        return {
            "host": socket.gethostname(),
            "machine": machine(),
            "processes": [os.getpid()] if keeper() is None else [os.getpid(), os.getppid()],
            "running": sum(row["in_flight"] for row in state["queues"]),
            "queued": sum(row["queued"] for row in state["queues"]),
            "workers": len(state["workers"]),
            "jobs": len(jobs),
            "grace_s": 0.0 if now else grace_s,
        }

    dispatcher.offer("stop", stop, changes=True)
