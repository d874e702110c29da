"""Fixtures for tests of the worker's end of the wire: the dispatcher's end that a test scripts."""

from __future__ import annotations

from tests.transports.conftest import desk, road

__all__ = ["desk", "road"]
