"""The doors of a farm open one after the other and close together; each path has its owner."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import farm
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import Unavailable
from farm.http1.access import Access
from farm.protocols.interface import Endpoints, Listening, Site
from farm.server.doors import Doors
from farm.server.doors import front_door as front_door_of
from farm.server.page import status_page
from farm.settings import Settings
from farm.transports.connection import Connection
from tests.support.front_door import Door, front_door, read_answer


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


async def test_one_that_does_not_open_is_closed_with_those_before_it() -> None:
    listeners, closed = [Listener(), Listener("its port is taken"), Listener()], list[str]()
    opened = doors(Settings(port=0), listeners, closed)
    await opened.open()
    with pytest.raises(Unavailable, match="its port is taken"):
        await opened.listen()
    await opened.close(0.0)
    assert [each.stopped for each in listeners] == [[0.0], [0.0], []]
    assert closed == ["resources"] * 3


TOKEN = "t0ken"
FROM_ELSEWHERE = {"X-Forwarded-For": "203.0.113.9"}


@farm.model(inputs={"x": 1}, outputs={"y": 1})
def double(x: Any) -> Any:
    return 2 * x


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with front_door({"double": double}, token=TOKEN) as opened:
        yield opened


def kind(data: bytes) -> str:
    error = json.loads(data)
    assert list(error) == ["error"]
    return str(error["error"]["type"])


@pytest.mark.parametrize(
    ("method", "path", "status", "content_type"),
    [
        ("GET", "/", 200, "text/html; charset=utf-8"),
        ("HEAD", "/", 200, "text/html; charset=utf-8"),
        ("GET", "/Info", 200, "application/json"),
        ("GET", "//Info", 200, "application/json"),
        ("GET", "/farm/status", 200, "application/json"),
        ("GET", "/farm/models", 200, "application/json"),
        ("GET", "/docs", 200, "text/html; charset=utf-8"),
        ("GET", "/openapi.json", 200, "application/json"),
    ],
)
def test_each_path_has_its_door(
    door: Door, method: str, path: str, status: int, content_type: str
) -> None:
    response = door.ask(method, path)
    assert (response.status, response.headers["content-type"]) == (status, content_type)


@pytest.mark.parametrize(
    ("method", "path", "status", "expected"),
    [
        ("GET", "/info", 404, "NotFound"),
        ("GET", "/Info/", 404, "NotFound"),
        ("POST", "/Evaluate/", 404, "NotFound"),
        ("GET", "/v3/models", 404, "NotFound"),
        ("GET", "/farm/nothing", 404, "NotFound"),
        ("GET", "/%2e%2e/etc/passwd", 404, "NotFound"),
        ("PUT", "/", 405, "MethodNotAllowed"),
        ("DELETE", "/farm/status", 405, "MethodNotAllowed"),
        ("PATCH", "/Evaluate", 405, "MethodNotAllowed"),
    ],
)
def test_whatever_is_wrong_is_told_in_one_form(
    door: Door, method: str, path: str, status: int, expected: str
) -> None:
    response = door.ask(method, path)
    assert (response.status, kind(response.data)) == (status, expected)


@pytest.mark.parametrize("path", ["/", "/Info", "/Evaluate", "/farm/status", "/docs", "/nothing"])
def test_without_the_token_nothing_is_told_to_others(door: Door, path: str) -> None:
    response = door.ask("GET", path, headers=FROM_ELSEWHERE)
    assert (response.status, kind(response.data)) == (401, "Unauthorized")
    assert response.headers["www-authenticate"].startswith("Basic")


def test_with_the_token_others_come_in(door: Door) -> None:
    headers = FROM_ELSEWHERE | {"Authorization": f"Bearer {TOKEN}"}
    evaluate = {"name": "double", "input": [[4]]}
    assert door.ask("POST", "/Evaluate", evaluate, headers).json() == {"output": [[8.0]]}
    assert door.ask("GET", "/farm/models", headers=headers).status == 200


def test_a_body_from_a_stranger_is_not_read(door: Door) -> None:
    with door.connect() as connection:
        head = (
            b"POST /Evaluate HTTP/1.1\r\nHost: localhost\r\n"
            b"X-Real-IP: 1.2.3.4\r\nContent-Length: 99\r\n\r\n"
        )
        connection.sendall(head)
        assert read_answer(connection)[0] == 401


def test_a_websocket_is_not_answered_with_a_crash(door: Door) -> None:
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "eA=="}
    assert door.ask("GET", "/farm/status", headers=headers).status == 200
    assert door.ask("GET", "/Info").status == 200


def test_two_protocols_cannot_answer_the_same_path() -> None:
    access = Access(None)
    site = Site(Dispatcher([]), access, access, Settings())
    one = Endpoints(paths={"/x": status_page}, root=status_page, otherwise=nothing)  # type: ignore[arg-type]  # it is not asked
    with pytest.raises(Unavailable, match="two protocols answer /x"):
        front_door_of(site, [one, Endpoints(paths={"/x": status_page})])
    with pytest.raises(Unavailable, match="2 protocols answer POST at /"):
        front_door_of(site, [one, Endpoints(root=status_page)])
