"""The experiments of a farm: served from one journal, resumed from it, ended with the farm."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import Unavailable
from farm.experiment.ask.fitters import Fitters
from farm.experiment.server import ExperimentServer, serve
from farm.http1.access import Access
from farm.protocols.aepsych.service import AepsychOptions
from farm.protocols.interface import Site
from farm.settings import Settings
from tests.support.experiment_clients import SETUP, Client


def site(folder: Path, options: AepsychOptions | None) -> Site:
    access = Access(None)
    return Site(Dispatcher([]), access, access, Settings(dir=folder), options=options)


def test_without_an_address_nothing_is_served(tmp_path: Path) -> None:
    endpoints = serve(site(tmp_path, None))
    assert (endpoints.listener, endpoints.hurry) == (None, None)
    assert not list(tmp_path.iterdir())


async def test_experiments_outlive_their_server(tmp_path: Path) -> None:
    for number in range(2):
        farm = site(tmp_path, AepsychOptions("127.0.0.1", 0))
        server = ExperimentServer(farm)
        address, lines = await server.start()
        assert lines == [f"experiments for AEPsych's clients at {address}"]
        assert len(farm.backend.snapshot()["experiments"]) == number
        client = Client(*await asyncio.open_connection(*str(address).rsplit(":", 1)))
        assert "strat_id" in await client.ask("setup", SETUP)
        assert len(farm.backend.snapshot()["experiments"]) == number + 1
        with pytest.raises(Unavailable, match=r"experiments\.db"):
            await ExperimentServer(farm).start()
        await server.stop(1.0)
        assert await client.rest() == ""
        client.close()
        await client.writer.wait_closed()


def test_hurry_ends_the_work_of_experiments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Fitters] = []
    monkeypatch.setattr(Fitters, "stop", lambda self: ended.append(self))
    endpoints = serve(site(tmp_path, AepsychOptions("127.0.0.1", 0)))
    assert endpoints.hurry is not None
    endpoints.hurry()
    assert len(ended) == 1
