"""The question `failures`: all groups, or one of them in full."""

from __future__ import annotations

import pytest

from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.events import Departure
from farm.errors import InvalidInput
from farm.monitoring.losses import Losses
from farm.monitoring.what_failed import WhatFailed
from tests.monitoring.test_failures import failure
from tests.monitoring.test_losses import worker


@pytest.fixture
def what_failed() -> WhatFailed:
    dispatcher = Dispatcher([])
    what_failed = WhatFailed(dispatcher)
    for text, line in (("no root", "line 3"), ("no minimum", "line 4")):
        for tell in dispatcher.on_failed:
            tell(failure(text, detail=line))
    for left in dispatcher.on_left:
        left(worker(), Departure("exit code 3", detail="the end of its log"))
    return what_failed


def test_all_groups_come_without_their_details_unless_these_are_asked_for(
    what_failed: WhatFailed,
) -> None:
    rows = what_failed.answer({})
    assert [(row["text"], "detail" in row) for row in rows] == [
        ("no minimum", False),
        ("no root", False),
    ]
    details = [row["detail"] for row in what_failed.answer({"detail": "all"})]
    assert details == ["line 4", "line 3"]


def test_one_group_is_shown_in_full_also_one_of_lost_workers(what_failed: WhatFailed) -> None:
    wanted = what_failed.answer({})[1]
    assert what_failed.answer({"id": wanted["id"]}) == {**wanted, "detail": "line 3"}
    losses = Losses(Dispatcher([]))
    losses.left(worker(), Departure("exit code 3"))
    loss = what_failed.answer({"id": losses.snapshot()[0]["id"]})
    assert (loss["text"], loss["detail"]) == ("exit code 3", "the end of its log")


def test_an_unknown_group_is_named_with_what_to_do(what_failed: WhatFailed) -> None:
    with pytest.raises(InvalidInput, match=r"the id 'x'; `farm failures --all` lists the 3 that"):
        what_failed.answer({"id": "x"})
