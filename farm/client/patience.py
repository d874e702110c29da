"""Patience with a farm that is not there yet."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from farm.errors import FarmError, ModelNotFound, Unavailable

LOOK_EVERY_S = 0.25
"""Interval at which a farm that is not up yet, or has no models yet, is looked for."""

T = TypeVar("T")


class Patience:
    """Time to wait for something that is not there yet."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def left_s(self) -> float:
        """Return the rest of the time, at least 0."""
        return max(0.0, self._until - time.monotonic())

    def with_(
        self, find: Callable[[], T], may_come: Callable[[FarmError], bool] = lambda _: True
    ) -> T:
        """Return what `find` returns once it finds something.

        may_come: whether it helps to wait after this error of `find`. Raises the last error.
        """
        while True:
            try:
                return find()
            except (Unavailable, ModelNotFound) as error:
                if not self.left_s() or not may_come(error):
                    raise
            time.sleep(min(LOOK_EVERY_S, self.left_s()))
