"""Conversations that have begun."""

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
    """In the strategy with a model, two trials told."""
    fake = Fake()
    fake.setup(MODEL)
    fake.tell({"x1": [1, 2], "x2": [3, 4]}, [0.5, 1.5])
    return fake
