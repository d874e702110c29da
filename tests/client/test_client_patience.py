"""Patience looks until something is there, its time is over, or waiting cannot help."""

from __future__ import annotations

import pytest

from farm.client.client import Patience
from farm.errors import Unavailable


def test_it_looks_again_while_there_is_time() -> None:
    looks = []

    def find() -> str:
        looks.append(1)
        if len(looks) < 3:
            raise Unavailable("not yet")
        return "here"

    assert Patience(60.0).with_(find) == "here"
    assert len(looks) == 3


@pytest.mark.parametrize(("seconds", "helps"), [(0.0, True), (60.0, False)])
def test_it_ends_without_time_or_hope(seconds: float, helps: bool) -> None:
    def find() -> str:
        raise Unavailable("gone")

    with pytest.raises(Unavailable, match="gone"):
        Patience(seconds).with_(find, lambda _: helps)
