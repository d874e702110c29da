"""A farm with the models of `waves.py`, in threads of this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

import farm
from farm.client import Client
from tests.ops import waves


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    models = (waves.Waves, waves.Density, waves.Plain, waves.Dice, waves.Loose)
    with farm.serve(*models, workers=2) as client:
        yield client


@pytest.fixture
def counted() -> Counter[str]:
    """Return the calls that the models get in this test, by model and operation."""
    waves.COUNTS.clear()
    return waves.COUNTS
