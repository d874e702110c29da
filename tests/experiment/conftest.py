"""Fixtures with conversations that have begun."""

from __future__ import annotations

import pytest

from tests.experiment.talk import MODEL, Fake, Talk


@pytest.fixture
def talk() -> Talk:
    talk = Talk()
    talk.setup()
    return talk


@pytest.fixture
def fake() -> Fake:
    """Return a client in the strategy with a model, with two trials recorded."""
    fake = Fake()
    fake.setup(MODEL)
    fake.tell({"x1": [1, 2], "x2": [3, 4]}, [0.5, 1.5])
    return fake
