"""The scheduler under test; after each test it must have no unexpected actions left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.scheduler_recorder import Recorder


@pytest.fixture
def farm() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    recorder.expect()
