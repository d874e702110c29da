"""farm's own interface is created at its first request."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from farm.dispatcher.dispatcher import Dispatcher
from farm.http1.access import Access
from farm.protocols.interface import Site
from farm.protocols.points import endpoint
from farm.protocols.points.service import serve
from farm.settings import Settings


def test_an_application_is_made_once_by_the_first_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    made_in: list[threading.Thread] = []
    answered: list[Any] = []
    all_have_asked = threading.Event()

    def make(*arguments: Any, **options: Any) -> Any:
        assert all_have_asked.wait(10)
        made_in.append(threading.current_thread())

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            answered.append(scope)

        return answer

    async def ask_together() -> None:
        app: Any = serve(Site(Dispatcher([]), Access(None), Access(None), Settings())).otherwise
        assert made_in == []
        asked = [asyncio.ensure_future(app({}, None, None)) for _ in range(3)]
        await asyncio.sleep(0)
        all_have_asked.set()
        await asyncio.gather(*asked)

    monkeypatch.setattr(endpoint, "create_api", make)
    asyncio.run(ask_together())
    assert len(answered) == 3
    assert len(made_in) == 1
    assert threading.main_thread() not in made_in, "the event loop goes on meanwhile"
