"""Headless Chromium, driven by ChromeDriver over WebDriver without a package of its own.

It needs the Debian packages chromium and chromium-driver.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.time_limits import scaled

WAIT_S = scaled(15.0)
CUT_TABLES = """return [...document.querySelectorAll('.scroll')]
    .filter((box) => box.checkVisibility() && box.scrollWidth > box.clientWidth + 1)
    .map((box) => box.getAttribute('aria-label'))"""

CORNER = """const element = document.querySelector(arguments[0])
    element.scrollIntoView({block: 'center'})
    const box = element.getBoundingClientRect()
    return [box.left, box.top]"""

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""Key of an element's id. Source: WebDriver, 12.1."""

TAB, ENTER, ESCAPE, SPACE = "\ue004", "\ue007", "\ue00c", " "
LEFT, RIGHT = "\ue012", "\ue014"
"""Keys as WebDriver names them, 17.4.2."""

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--hide-scrollbars",
)


def webdriver(method: str, url: str, body: Any = None) -> Any:
    """Return the value that ChromeDriver answers to one WebDriver command."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        why = json.load(error)["value"]["message"]
        raise AssertionError(f"{method} {url} {body}: {why}") from None


class Browser:
    """One window of a running Chromium."""

    def __init__(self, session: str) -> None:
        self._session = session

    def open(self, url: str) -> None:
        """Load a page."""
        self._ask("POST", "url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run the body of a JavaScript function in the page; return its value."""
        return self._ask("POST", "execute/sync", {"script": script, "args": arguments})

    def text(self, selector: str) -> str:
        """Return the text that an element shows, "" if there is none or it is hidden."""
        return "\n".join(self.texts(selector)[:1])

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements that a selector finds, "" for those that are hidden."""
        script = "return [...document.querySelectorAll(arguments[0])]"
        script += ".map((x) => (x.checkVisibility() ? x.innerText : ''))"
        found: list[str] = self.run(script, selector)
        return found

    def cut_tables(self) -> list[str]:
        """Return the names of tables wider than the window: columns of theirs are not seen."""
        return list(self.run(CUT_TABLES))

    def until(self, script: str, *arguments: Any) -> Any:
        """Wait until a script's value is true, and return it."""
        limit = time.monotonic() + WAIT_S
        while not (value := self.run(script, *arguments)):
            assert time.monotonic() < limit, f"never true: {script} {arguments}"
            time.sleep(0.02)
        return value

    def until_text(self, selector: str, text: str) -> str:
        """Wait until an element shows a text, and return all that it shows."""
        limit = time.monotonic() + WAIT_S
        while text not in (shown := self.text(selector)):
            assert time.monotonic() < limit, f"{selector} shows {shown!r}, never {text!r}"
            time.sleep(0.02)
        return shown

    def click(self, selector: str) -> None:
        """Click on the first element that a selector finds, as a person would."""
        found = self._ask("POST", "element", {"using": "css selector", "value": selector})
        self._ask("POST", f"element/{found[ELEMENT]}/click", {})

    def press(self, *keys: str) -> None:
        """Press keys one after another, wherever the focus is."""
        strokes = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        actions = [{"type": "key", "id": "keyboard", "actions": strokes}]
        self._ask("POST", "actions", {"actions": actions})

    def drag(self, selector: str, *places: tuple[float, float]) -> None:
        """Press the mouse at the first of some places, move over all, and release it at the last.

        places: in pixels from the upper left corner of the element, which comes into view. Of one
        place: a click there.
        """
        left, top = self.run(CORNER, selector)
        at = [{"x": round(left + x), "y": round(top + y)} for x, y in places]
        moves: list[dict[str, Any]] = [{"type": "pointerMove", "duration": 0, **p} for p in at]
        down, up = ({"type": kind, "button": 0} for kind in ("pointerDown", "pointerUp"))
        self._mouse([moves[0], down, *moves[1:], up])

    def hover(self, selector: str, place: tuple[float, float]) -> None:
        """Move the mouse to a place of an element, as in `drag`."""
        left, top = self.run(CORNER, selector)
        at = {"x": round(left + place[0]), "y": round(top + place[1])}
        self._mouse([{"type": "pointerMove", "duration": 0, **at}])

    def _mouse(self, actions: list[dict[str, Any]]) -> None:
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}}
        self._ask("POST", "actions", {"actions": [{**mouse, "actions": actions}]})

    def show_as(self, width: int, height: int, scheme: str = "light") -> None:
        """Set the size of the window in pixels and the colour scheme that the reader prefers."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._devtools("Emulation.setDeviceMetricsOverride", size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._devtools("Emulation.setEmulatedMedia", {"features": [feature]})

    def screenshot(self) -> bytes:
        """Return the window as PNG."""
        return base64.b64decode(self._ask("GET", "screenshot"))

    def complaints(self) -> list[str]:
        """Return the errors that the page has caused since the last time, from its console."""
        entries = self._ask("POST", "se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]

    def _devtools(self, command: str, parameters: Any) -> None:
        self._ask("POST", "goog/cdp/execute", {"cmd": command, "params": parameters})

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        return webdriver(method, f"{self._session}/{path}", body)


@contextlib.contextmanager
def window(browser: Browser, *, but_for: str = "") -> Iterator[Browser]:
    """Show a window as on a desk for the block, whose page must cause no error in it.

    but_for: a text of errors that do not count.
    """
    browser.show_as(1120, 900)
    yield browser
    complaints = browser.complaints()
    browser.open("about:blank")
    assert [text for text in complaints if not but_for or but_for not in text] == []


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """Run Chromium for the block, with its profile in a folder."""
    if shutil.which("chromedriver") is None:
        raise RuntimeError("chromedriver is missing; on Debian: apt install chromium-driver")
    command = ["chromedriver", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert driver.stdout is not None
            words = (re.search(r"started successfully on port (\d+)", x) for x in driver.stdout)
            port = next(found[1] for found in words if found)
            sessions = f"http://127.0.0.1:{port}/session"
            options = {"args": [*FLAGS, f"--user-data-dir={folder}"]}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "SEVERE"}}
            asked = {"capabilities": {"alwaysMatch": wanted}}
            session = f"{sessions}/{webdriver('POST', sessions, asked)['sessionId']}"
            try:
                yield Browser(session)
            finally:
                webdriver("DELETE", session)
        finally:
            driver.terminate()
