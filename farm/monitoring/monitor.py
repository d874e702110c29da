"""The parts that watch a farm, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farm.monitoring.progress import ProgressBoard
from farm.monitoring.why import Why

if TYPE_CHECKING:
    from farm.dispatcher.dispatcher import Dispatcher


class Monitor:
    """Makes each part and connects it with the dispatcher."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.why = Why(dispatcher)
        self.progress = ProgressBoard(dispatcher)
