"""The parts that watch a farm are connected with its dispatcher."""

from __future__ import annotations

from farm.monitoring.monitor import Monitor
from tests.dispatcher.test_dispatcher import up
from tests.support.coroutines import on_loop


@on_loop
async def test_the_questions_of_all_parts_are_offered() -> None:
    dispatcher, _ = up()
    Monitor(dispatcher)
    assert await dispatcher.questions.ask("progress", {}) == []
    assert (await dispatcher.questions.ask("why", {"call": "1"}))["phase"] is None
    assert dispatcher.snapshot()["progress"] == []
