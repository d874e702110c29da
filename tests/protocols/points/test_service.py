"""farm's own interface is imported and created at its first request."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from farm.protocols.points.service import Later

made: list[tuple[str, int]] = []
made_in: list[threading.Thread] = []


def make(name: str, *, limit: int) -> ASGIApp:
    made.append((name, limit))
    made_in.append(threading.current_thread())

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "answer", "made": len(made)})

    return answer


def test_an_application_is_made_once_by_the_first_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "the_application", sys.modules[__name__])
    app = Later("the_application", "make", "api", limit=3)
    heard: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("nobody reads")

    async def send(message: Message) -> None:
        heard.append(message)

    async def ask_together() -> None:
        await asyncio.gather(*(app({}, receive, send) for _ in range(3)))

    assert made == []
    asyncio.run(ask_together())
    assert made == [("api", 3)]
    assert threading.main_thread() not in made_in, "the event loop goes on meanwhile"
    assert heard == [{"type": "answer", "made": 1}] * 3
