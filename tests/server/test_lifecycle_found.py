"""Workers are found by name or its beginning, those that left lately too."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.call import WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.events import Departure
from farm.errors import InvalidInput
from farm.server.lifecycle import GONE_KEPT, NamedWorkers
from farm.transports.peers import Peers
from tests.support.coroutines import on_loop


def named() -> NamedWorkers:
    return NamedWorkers(Dispatcher([]), Peers(), Path())


@on_loop
async def test_workers_are_found_by_name_or_its_beginning() -> None:
    known = named()
    infos = [WorkerInfo(name, ()) for name in ("n1/1-a", "n1/11-b", "n1/11-b2", "n2/5-c", "n2/6-d")]
    for info in infos:
        known.joined(info, None)
    assert known.find("n1/11-b") is infos[1]  # although another one begins so
    assert known.find("n2/5") is infos[3]
    with pytest.raises(InvalidInput, match="2 workers begin with n2: n2/5-c, n2/6-d"):
        known.find("n2")
    with pytest.raises(InvalidInput, match=r"5 workers begin with n: .* and 2 more"):
        known.find("n")
    for wrong in ("n3", "", "n2/5-cc"):
        with pytest.raises(InvalidInput, match="has no worker"):
            known.find(wrong)


@on_loop
async def test_those_that_left_are_found_if_wanted_and_after_those_that_are_here() -> None:
    known = named()
    here, left = WorkerInfo("n1/2-b", ()), WorkerInfo("n1/1-a", ())
    for info in (here, left):
        known.joined(info, None)
    known.left(left, Departure("killed"))
    assert known.find("n1", gone=True) is here
    assert known.find("n1/1-a", gone=True) is left
    with pytest.raises(InvalidInput, match="worker n1/1-a has left"):
        known.find("n1/1-a")


@on_loop
async def test_not_all_that_ever_left_are_kept() -> None:
    known = named()
    for number in range(GONE_KEPT + 5):
        info = WorkerInfo(f"n1/{number}-a", ())
        known.joined(info, None)
        known.left(info, Departure("drained", drained=True))
    assert known.find(f"n1/{GONE_KEPT + 4}-a", gone=True)
    assert known.find("n1/5-a", gone=True)
    with pytest.raises(InvalidInput):
        known.find("n1/4-a", gone=True)
