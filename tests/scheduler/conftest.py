"""The scheduler under test; at the end of each test nothing that nobody asked for is left to do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scheduler.recorder import Recorder


@pytest.fixture
def farm() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    recorder.expect()
