"""Files of records."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test writes a record; there is nothing yet."""
    return tmp_path / "a.record"
