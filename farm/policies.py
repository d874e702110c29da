"""How a farm treats the calls of one model: its reserve and its priority, also read from text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

MOST_PRIORITY = 1000
"""Largest priority of a model, as that of a call; the least is its negative."""

RESERVE = "a whole number of workers, 0 or more, or a share of them from 0% to 100%"
PRIORITY = f"a whole number from {-MOST_PRIORITY} to {MOST_PRIORITY}"

_COUNT = re.compile(r"[0-9]{1,9}")
_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)%")


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """How the scheduler treats the calls of one model.

    reserve, reserve_percent: slots of the model's workers that calls of much longer classes leave
    free, as a number or as a share of all; the larger one counts. priority: added to that of each
    call of the model.
    """

    reserve: int = 0
    reserve_percent: float = 0.0
    priority: int = 0

    @property
    def has_reserve(self) -> bool:
        """Whether there is a reserve at all."""
        return self.reserve > 0 or self.reserve_percent > 0

    def reserved(self, slots: int) -> int:
        """Return how many of the `slots` slots of the model's workers are reserved."""
        return max(self.reserve, math.ceil(self.reserve_percent * slots / 100))


USUAL = ModelPolicy()
"""The policy of a model without settings of its own."""


def read_policies(reserves: Iterable[str], priorities: Iterable[str]) -> dict[str, ModelPolicy]:
    """Return the policies by the models' names.

    reserves: texts such as `beam=1` or `beam=25%`. priorities: texts such as `beam=5`. The last
    text of a model counts. Raises ValueError, which names the setting and quotes a wrong text.
    """
    found: dict[str, ModelPolicy] = {}
    for text in reserves:
        name, _, value = text.rpartition("=")
        share = _SHARE.fullmatch(value)
        percent = 0.0 if share is None else float(share[1])
        if not name or percent > 100 or not (share or _COUNT.fullmatch(value)):
            raise ValueError(f"reserve has {text!r}; expected NAME=RESERVE with {RESERVE}")
        count = 0 if share else int(value)
        found[name] = replace(found.get(name, USUAL), reserve=count, reserve_percent=percent)
    for text in priorities:
        name, _, value = text.rpartition("=")
        number = int(value) if _COUNT.fullmatch(value.removeprefix("-")) else None
        if not name or number is None or abs(number) > MOST_PRIORITY:
            raise ValueError(f"model_priority has {text!r}; expected NAME=PRIORITY with {PRIORITY}")
        found[name] = replace(found.get(name, USUAL), priority=number)
    return found
