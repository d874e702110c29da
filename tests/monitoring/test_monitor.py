"""All parts are connected to the dispatcher."""

from __future__ import annotations

from farm.dispatcher.dispatcher import Dispatcher
from farm.monitoring.monitor import Monitor
from tests.support.coroutines import on_loop


@on_loop
async def test_its_parts_answer_their_questions() -> None:
    dispatcher = Dispatcher([])
    monitor = Monitor(dispatcher)
    answer = await dispatcher.questions.ask("history", {})
    assert answer["times"] == []
    monitor.close()
    await dispatcher.close(grace_s=0.0)
