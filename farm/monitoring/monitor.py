"""All parts that watch a farm, connected to its dispatcher."""

from __future__ import annotations

from farm.dispatcher.dispatcher import Dispatcher
from farm.monitoring.workers import WorkerFacts


class Monitor:
    """The parts that watch one farm; each adds its data to the dispatcher's snapshot."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.workers = WorkerFacts(dispatcher)
