"""All parts that watch one farm, put together."""

from __future__ import annotations

from farm.dispatcher.dispatcher import Dispatcher
from farm.monitoring.losses import Losses


class Monitor:
    """Watches the farm of a dispatcher; each part adds its data to the farm's snapshot."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        losses = Losses()
        dispatcher.on_left.append(losses.left)
        dispatcher.add_part("losses", losses.snapshot)
