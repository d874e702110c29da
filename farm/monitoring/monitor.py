"""The parts that watch one farm, together."""

from __future__ import annotations

from farm.dispatcher.dispatcher import Dispatcher
from farm.monitoring.call_log import CallLog
from farm.monitoring.tally import Tally


class Monitor:
    """Makes each part that watches a farm, and connects it to the farm's dispatcher."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        Tally().watch(dispatcher)
        CallLog().watch(dispatcher)
