"""The workers of a farm by name, those that left lately too."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from farm.call import WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.events import Departure
from farm.errors import InvalidInput

GONE_KEPT = 1000
"""Workers that left and are still known: a worker's output is most wanted when it has died."""

NAMED = 3
"""Names in an error, of workers that may be meant."""


class KnownWorkers:
    """Finds a worker by its name or the beginning of its name."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._here: dict[str, WorkerInfo] = {}
        self._gone: OrderedDict[str, WorkerInfo] = OrderedDict()
        dispatcher.on_joined.append(self.joined)
        dispatcher.on_left.append(self.left)

    def joined(self, info: WorkerInfo, before: WorkerInfo | None) -> None:
        """Note a worker."""
        self._here[info.name] = info
        self._gone.pop(info.name, None)

    def left(self, info: WorkerInfo, departure: Departure) -> None:
        """Note that a worker left."""
        self._here.pop(info.name, None)
        self._gone[info.name] = info
        if len(self._gone) > GONE_KEPT:
            self._gone.popitem(last=False)

    def __iter__(self) -> Iterator[tuple[WorkerInfo, bool]]:
        """Yield each known worker with whether it is here; those that left last come first."""
        for info in self._here.values():
            yield info, True
        for info in reversed(self._gone.values()):
            yield info, False

    def find(self, name: str, *, gone: bool = False) -> WorkerInfo:
        """Return the worker of this name, or the only one whose name begins so.

        gone: look among those that left, too. Raises InvalidInput.
        """
        for workers in (self._here, self._gone) if gone else (self._here,):
            if name in workers:
                return workers[name]
            found = [each for each in workers if name and each.startswith(name)]
            if len(found) == 1:
                return workers[found[0]]
            if found:
                some = ", ".join(found[:NAMED])
                more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
                raise InvalidInput(f"{len(found)} workers begin with {name:.100}: {some}{more}")
        if not gone and name in self._gone:
            raise InvalidInput(f"worker {name:.100} has left")
        raise InvalidInput(f"the farm has no worker {name:.100}; farm status lists its workers")
