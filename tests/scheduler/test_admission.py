"""Admission: whether the queue accepts another call."""

from __future__ import annotations

import pytest

from farm.errors import Overloaded
from farm.scheduler.admission import FEW_QUEUED, check_room
from tests.scheduler.recorder import Recorder


@pytest.mark.parametrize(
    ("queued", "of_client", "text"),
    [
        (999, 999, ""),
        (1000, FEW_QUEUED, "1000 calls are waiting"),
        (1000, FEW_QUEUED - 1, ""),
        (1099, 0, ""),
        (1100, 0, "1100 calls are waiting"),
        (500, 500, ""),
    ],
)
def test_a_full_queue_has_a_reserve_for_clients_with_few_calls(
    queued: int, of_client: int, text: str
) -> None:
    if not text:
        check_room(queued, 1000, "ann", of_client, 1000)
        return
    with pytest.raises(Overloaded, match=text):
        check_room(queued, 1000, "ann", of_client, 1000)


def test_a_client_has_a_bound_of_its_own() -> None:
    check_room(50, 1000, "ann", 4, 5)
    with pytest.raises(Overloaded, match="5 calls of client 'ann' are waiting"):
        check_room(50, 1000, "ann", 5, 5)


def test_one_client_that_fills_the_queue_keeps_no_other_out() -> None:
    farm = Recorder(max_queued=1000)
    farm.join("w")
    busy = farm.submit(client="greedy")
    farm.forget_actions()
    farm.submit_many(1000, client="greedy")
    with pytest.raises(Overloaded):
        farm.submit(client="greedy")
    modest = farm.submit(client="modest")
    farm.finish("w", busy)
    farm.forget_actions()
    assert farm.worker("w").held.keys() == {modest}, "and it is its turn"
