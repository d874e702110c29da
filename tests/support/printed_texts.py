"""The texts that farm may print, as its source has them."""

from __future__ import annotations

import functools
import re
from pathlib import Path

FARM = Path(__file__).parents[2] / "farm"
JOINED = re.compile(r'"\s+[rfb]*"')
"""The end of one part of a text and the beginning of the next."""


@functools.cache
def texts() -> list[str]:
    """Return the source of each module and script of farm with its texts in one piece."""
    files = [path for path in FARM.rglob("*.*") if path.suffix in (".py", ".sh")]
    return [JOINED.sub("", path.read_text()) for path in files]


def is_printed(message: str) -> bool:
    """Whether one line of farm has all parts of a message, between its `…`, in their order."""
    parts = [part.strip() for part in message.split("…") if part.strip()]
    return bool(parts) and any(
        _in_order(parts, line)
        for text in texts()
        if parts[0] in text
        for line in text.splitlines()
        if parts[0] in line
    )


def _in_order(parts: list[str], text: str) -> bool:
    place = 0
    for part in parts:
        place = text.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return True
