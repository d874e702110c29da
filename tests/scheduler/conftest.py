"""The scheduler under test; at the end of each test nothing that nobody asked for is left to do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.scheduler.recorder")

from tests.scheduler.recorder import Recorder  # noqa: E402  (rewritten as it is imported)


@pytest.fixture
def farm() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    recorder.expect()
