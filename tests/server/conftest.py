"""A browser for the tests of the status page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import Browser, chromium, window


@pytest.fixture(scope="module")
def chromium_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(chromium_of_module: Browser) -> Iterator[Browser]:
    """A window as on a desk. The page must have caused no error in it, but for refused answers."""
    with window(chromium_of_module, but_for="Failed to load resource") as shown:
        yield shown
