"""The experiments of a farm: served to AEPsych's clients, and looped on its own workers."""

from __future__ import annotations

from farm.experiment.host import Experiments
from farm.experiment.loop.evaluators import Around
from farm.experiment.loop.runs import Runs
from farm.protocols.aepsych.service import AepsychServer
from farm.protocols.interface import Endpoints, Listening, Site


def serve(site: Site) -> Endpoints:
    """Return the endpoints of AEPsych's protocol; none where the farm has no address for it."""
    if site.options is None:
        return Endpoints()
    server = ExperimentServer(site)
    return Endpoints(listener=server, hurry=server.hurry)


class ExperimentServer:
    """The experiments of one journal, their clients' server, and their closed loops."""

    def __init__(self, site: Site) -> None:
        self._site = site
        journal = site.options.journal or site.settings.dir / "experiments.db"
        self._experiments = Experiments(journal)
        self._runs = Runs(self._experiments, Around(site.backend))
        self._server = AepsychServer(
            self._experiments, access=site.open_access, readers=site.readers
        )

    async def start(self) -> Listening:
        """Load the journal, resume its loops and listen. Raises Unavailable."""
        await self._experiments.start()
        self._site.backend.add_part("experiments", self._experiments.status)
        self._runs.start()
        address = await self._server.start(self._site.options.host, self._site.options.port)
        return Listening(address, [f"experiments for AEPsych's clients at {address}"])

    def hurry(self) -> None:
        """End all work now: asks that wait for it fail."""
        self._experiments.hurry()

    async def stop(self, grace_s: float) -> None:
        """Let running requests end within `grace_s` seconds, then stop loops and close the journal.

        A loop's points are evaluated again after a restart.
        """
        await self._server.stop(grace_s)
        await self._runs.stop()
        await self._experiments.stop()
