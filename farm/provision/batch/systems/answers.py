"""Reads what commands of batch systems print: JSON among a site's banners, ids, messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

SHOWN = 80
"""Longest part of an answer to quote in a message."""

IN_DOUBT = re.compile(
    r"time[d ]*-?out|end of file|premature|protocol error|reset by peer|broken pipe"
    r"|interrupted|communication|did not respond|no reply|not responding",
    re.IGNORECASE,
)
"""Messages of a submission that may have reached the server: the answer was lost on its way."""


def quoted(text: str) -> str:
    """Return an answer in quotation marks, shortened, for a message."""
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 3] + "...")


def json_object(text: str, key: str) -> dict[str, Any]:
    """Return the first JSON object with this key that begins on a line of its own.

    Lines before and after it, such as banners, are skipped. Raises ValueError if there is none.
    """
    if "\0" in text:
        raise ValueError("a NUL byte")
    decoder = json.JSONDecoder(strict=False)
    for match in re.finditer(r"^[ \t]*(?=\{)", text, re.MULTILINE):
        try:
            found, _ = decoder.raw_decode(text, match.end())
        except ValueError:
            continue
        if key in found:
            return dict(found)
    raise ValueError("no such object")


def only_id(text: str, form: re.Pattern[str]) -> str:
    """Return the job id in a submission's output: group 1 of `form`, which fits a whole line.

    Empty if no line fits, or several with different ids.
    """
    found = {match[1] for line in text.splitlines() if (match := form.fullmatch(line.strip()))}
    return found.pop() if len(found) == 1 else ""


def text_of(row: Mapping[str, Any], key: str) -> str:
    """Return a value of a JSON object as a text on one line; empty if it is not there."""
    value = row.get(key)
    return "" if value is None else " ".join(str(value).split())
