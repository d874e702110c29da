"""The doors of a farm open one after the other and close together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import Unavailable
from farm.http.access import Access
from farm.protocols.site import Endpoints, Listening, Site
from farm.server.doors import Doors
from farm.settings import Settings
from farm.transports.connection import Connection
from tests.support.coroutines import on_loop


class Listener:
    """A protocol with an address of its own, which `problem` keeps from opening."""

    def __init__(self, problem: str = "") -> None:
        self.problem = problem
        self.stopped: list[float] = []

    async def start(self) -> Listening:
        if self.problem:
            raise Unavailable(self.problem)
        return Listening("there:1", ["it is there"])

    async def stop(self, grace_s: float) -> None:
        self.stopped.append(grace_s)


def nothing(*_: object) -> None:
    raise AssertionError("no request comes")


def doors(settings: Settings, listeners: Sequence[Listener], closed: list[str]) -> Doors:
    access = Access(None)
    site = Site(Dispatcher([]), access, access, settings)
    served = {
        f"own{number}": Endpoints(listener=each, close=lambda: closed.append("resources"))
        for number, each in enumerate(listeners)
    }
    served["web"] = Endpoints(root=nothing, otherwise=nothing)  # type: ignore[arg-type]
    return Doors(site, served, Connection("", host="here"))


@on_loop
async def test_their_addresses_are_for_the_connection_file() -> None:
    listener, closed = Listener(), list[str]()
    opened = doors(Settings(port=0, host="0.0.0.0"), [listener], closed)
    await opened.open()
    assert opened.connection.url.startswith("http://here:")
    assert not opened.connection.addresses
    await opened.listen()
    assert opened.connection.addresses == {"own0": "there:1"}
    assert opened.announced == ["it is there"]
    assert opened._site.backend.snapshot()["http"]["received"] == 0
    await opened.close(7.0)
    assert (listener.stopped, closed) == ([7.0], ["resources"])


@on_loop
async def test_one_that_does_not_open_is_closed_with_those_before_it() -> None:
    listeners, closed = [Listener(), Listener("its port is taken"), Listener()], list[str]()
    opened = doors(Settings(port=0), listeners, closed)
    await opened.open()
    with pytest.raises(Unavailable, match="its port is taken"):
        await opened.listen()
    await opened.close(0.0)
    assert [each.stopped for each in listeners] == [[0.0], [0.0], []]
    assert closed == ["resources"] * 3
