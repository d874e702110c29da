"""All parts that watch a farm, connected to its dispatcher."""

from __future__ import annotations

from farm.dispatcher.dispatcher import Dispatcher
from farm.monitoring.history import History


class Monitor:
    """The parts that watch one farm; make it on the farm's event loop, and close it there."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._history = History(dispatcher)

    def close(self) -> None:
        """End what runs by a timer."""
        self._history.close()
