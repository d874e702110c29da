"""The state of a closed loop: what its stages allow, and what its points need."""

from __future__ import annotations

import pytest

from farm.experiment.loop.pacing import Need, Pace
from farm.experiment.loop.progress import LOOPS, LoopPoints, LoopStage
from farm.transitions import NoTransition


@pytest.mark.parametrize("stage", [LoopStage.PAUSED, LoopStage.ENDED])
def test_a_loop_at_its_end_cannot_be_resumed(stage: LoopStage) -> None:
    with pytest.raises(NoTransition, match="loop: 'told to run' cannot happen in"):
        LOOPS.event("told to run")[stage]


def test_a_pause_can_be_revoked_until_the_last_point_is_recorded() -> None:
    pausing = LOOPS.event("told to pause")[LoopStage.RUNNING]
    assert LOOPS.event("told to run")[pausing] is LoopStage.RUNNING
    assert LOOPS.event("last point recorded")[pausing] is LoopStage.PAUSED


def test_points_are_needed_until_a_search_for_them_runs() -> None:
    points, pace = LoopPoints(free_since=0.0), Pace(2)
    assert points.need(pace, left=5, now=1.0).ask > 0
    points.search(2, now=1.0)
    assert points.need(pace, left=3, now=2.0) == Need()
    points.search(0, now=3.0)
    points.flying |= {0, 1}
    assert points.need(pace, left=3, now=3.0) == Need()
    points.landed(1, now=4.0)
    assert (points.flying, points.free_since) == ({0}, 4.0)
    assert points.need(pace, left=3, now=4.0).ask == 1
