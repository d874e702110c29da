"""The page of a real farm."""

from __future__ import annotations

from pathlib import Path

import pytest

import farm
from tests.support.browser import Browser
from tests.support.dispatcher_farm import BEAM, run_farm, serving

pytestmark = pytest.mark.browser


def test_the_address_with_the_token_works_and_charts_begin_with_the_farm(
    browser: Browser, tmp_path: Path
) -> None:
    """As `farm url` prints it. Browsers refuse to ask for a path of such an address."""
    (tmp_path / "beam.py").write_text(BEAM)
    with serving(tmp_path, "beam.py", "--workers", "2", "--auth", "always") as served:
        served.wait_for_workers(2)
        status, address, errors = run_farm("url", str(served.folder), cwd=tmp_path)
        assert status == 0, errors
        assert "@" in address
        browser.open(address.strip())
        browser.until_text("#link", "live")
        browser.until("return document.querySelectorAll('#charts path').length == 6")
        browser.until_text("#charts", "2 there")
        assert browser.text("#ranges [aria-pressed=true]") == "5 min"
        with farm.connect(served.folder) as client:
            assert client.history()["series"]["workers"][-1] == 2.0
