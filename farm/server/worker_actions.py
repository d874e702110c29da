"""What the owner of a farm does about a worker: read its output, drain it, restart it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.questions import needed
from farm.errors import Unavailable, UnsupportedFeature
from farm.monitoring.known_workers import KnownWorkers
from farm.monitoring.logs import WorkerLogs
from farm.transports.peers import Peers


class WorkerActions:
    """Offers the actions `drain` and `restart`, and the questions about the output of workers.

    folder: the farm's run folder.
    """

    def __init__(self, dispatcher: Dispatcher, peers: Peers, folder: Path) -> None:
        self._dispatcher = dispatcher
        self._peers = peers
        self._known = KnownWorkers(dispatcher)
        WorkerLogs(dispatcher, self._known, folder)
        dispatcher.offer("drain", self.drain, changes=True)
        dispatcher.offer("restart", self.restart, changes=True)

    def drain(self, arguments: Mapping[str, str]) -> dict[str, str]:
        """Have `worker` finish its running calls and leave.

        Raises InvalidInput, UnsupportedFeature.
        """
        info = self._known.find(needed(arguments, "worker"))
        if not self._peers.drain(info.name):
            raise UnsupportedFeature(
                f"worker {info.name} cannot be drained alone: it is a thread of the front door, a "
                "Dask cluster, or not connected now"
            )
        self._dispatcher.note("drain", info.name, "the owner asks it to leave")
        return {"draining": info.name}

    def restart(self, arguments: Mapping[str, str]) -> dict[str, str]:
        """Have the supervisor of `worker` kill it, in a call too, and start another.

        Raises InvalidInput, UnsupportedFeature, Unavailable.
        """
        info = self._known.find(needed(arguments, "worker"))
        supervisor = info.labels.get("supervisor", "")
        if not supervisor:
            raise UnsupportedFeature(
                f"worker {info.name} has no supervisor that starts it again: it is a thread of the "
                "front door, a Dask cluster, was started by a launcher of its own, or is of an "
                "older release; drain it, or restart it where it was started"
            )
        if not self._peers.restart(info.name, supervisor):
            raise Unavailable(
                f"supervisor {supervisor} of worker {info.name} is not connected now; try again"
            )
        self._dispatcher.note("restart", info.name, "the owner asks its supervisor to restart it")
        return {"restarting": info.name}
