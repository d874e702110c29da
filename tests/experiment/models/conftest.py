"""Runs the tests of models on one thread, like the models themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from farm.experiment.models.libraries import alone


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with alone(0):
        yield
