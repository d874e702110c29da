"""The interface between endpoints and the dispatcher."""

from __future__ import annotations

import inspect

import pytest

from farm.call import Hints
from farm.dispatcher.backend import Backend, named
from farm.dispatcher.dispatcher import Dispatcher

ASKED = sorted(
    name
    for name, value in vars(Backend).items()
    if inspect.isfunction(value) and not name.startswith("_")
)


@pytest.mark.parametrize("name", ASKED)
def test_the_dispatcher_takes_what_endpoints_give(name: str) -> None:
    offered = inspect.signature(getattr(Dispatcher, name)).parameters
    asked = inspect.signature(getattr(Backend, name)).parameters
    assert list(offered)[: len(asked)] == list(asked)
    assert all(p.default is not p.empty for p in list(offered.values())[len(asked) :])


def test_a_client_of_whom_only_the_name_is_known() -> None:
    assert named("ada") == Hints(client="ada")
    assert named("ada") is named("ada")
