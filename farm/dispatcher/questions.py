"""Questions that people and scripts put to a farm, and actions that its owner takes.

Each is a name with a function of text arguments. Native clients ask over their line, HTTP clients
at `/farm/NAME`: questions by GET, actions by POST.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from farm.errors import InvalidInput, UnsupportedFeature

ASKER = "asker"
"""The argument with the client that asks. A text of this name from the client is ignored."""


class _Offered(NamedTuple):
    answer: Callable[[Mapping[str, str]], Any]
    changes: bool
    of_asker: bool


class Questions:
    """The questions that a farm answers about itself, and its actions, by name."""

    def __init__(self) -> None:
        self._offered: dict[str, _Offered] = {}

    def offer(
        self,
        name: str,
        answer: Callable[[Mapping[str, str]], Any],
        *,
        changes: bool = False,
        of_asker: bool = False,
    ) -> None:
        """Answer the question `name` by `answer`.

        answer: returns JSON data, or an awaitable of it. Raises FarmError.
        changes: it is an action, only for the owner. of_asker: `answer` also gets the name of the
        client that asks, as the argument `asker`.
        """
        self._offered[name] = _Offered(answer, changes, of_asker)

    def changes(self, name: str) -> bool | None:
        """Whether a name is that of an action; None if it is not known."""
        offered = self._offered.get(name)
        return None if offered is None else offered.changes

    async def ask(self, name: str, arguments: Mapping[str, str], *, asker: str = "") -> Any:
        """Return the answer as JSON data. Raises FarmError.

        asker: the name of the client that asks.
        """
        offered = self._offered.get(name)
        if offered is None:
            known = ", ".join(sorted(self._offered)) or "none"
            raise UnsupportedFeature(f"this farm has no question {name!r:.60}; it has: {known}")
        answer = offered.answer({**arguments, ASKER: asker} if offered.of_asker else arguments)
        return await answer if inspect.isawaitable(answer) else answer


def needed(arguments: Mapping[str, str], name: str) -> str:
    """Return an argument that a question cannot do without. Raises InvalidInput."""
    value = arguments.get(name, "")
    if not value:
        raise InvalidInput(f"the argument {name!r} is missing")
    return value


def number(
    arguments: Mapping[str, str],
    name: str,
    expected: str = "a number of at least 0",
    *,
    least: float = 0.0,
) -> float | None:
    """Return an argument as a finite number; None if it is not given. Raises InvalidInput.

    expected: what it has to be, in words; least: the smallest allowed.
    """
    text = arguments.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= least):
        raise InvalidInput(f"{name} is {text!r:.60}; expected {expected}")
    return value
