"""The order of the scheduler's actions."""

from __future__ import annotations

from farm.errors import DeadlineExceeded
from tests.support.scheduler_recorder import SHORT_S, Recorder, asked_back, replied, sent


def test_replies_come_first_then_what_is_sent_then_what_is_asked_back(farm: Recorder) -> None:
    farm.learn(SHORT_S)
    farm.join("w")
    tasks = farm.submit_many(3)
    farm.expect(sent("w", *tasks[:2]))
    farm.scheduler.cancel(tasks[1])
    late = farm.submit(deadline=farm.now)
    farm.join("other")
    farm.expect(
        replied(late, DeadlineExceeded, None), sent("other", tasks[2]), asked_back("w", tasks[1])
    )
