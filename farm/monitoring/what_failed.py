"""The question `failures`: what failed at a farm, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import InvalidInput
from farm.monitoring.failures import Failures
from farm.monitoring.losses import Losses


class WhatFailed:
    """Groups failed calls and lost workers, and answers the question `failures` from them."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._failures = Failures(dispatcher)
        self._losses = Losses(dispatcher)
        dispatcher.offer("failures", self.answer)

    def answer(self, arguments: Mapping[str, str]) -> Any:
        """Return the groups of failed calls as JSON data, the one seen last first.

        arguments: `detail=all` adds their details, such as tracebacks; `id` selects one group, also
        of lost workers, with its detail. Raises InvalidInput if there is no such group.
        """
        wanted = arguments.get("id", "")
        if not wanted:
            details = arguments.get("detail") == "all"
            return self._failures.with_details() if details else self._failures.snapshot()
        groups = [*self._failures.with_details(), *self._losses.snapshot()]
        for group in groups:
            if group["id"] == wanted:
                return group
        raise InvalidInput(
            f"no reason of failures has the id {wanted!r:.40}; `farm failures --all` lists the "
            f"{len(groups)} that are kept"
        )
