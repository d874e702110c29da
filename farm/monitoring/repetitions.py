"""Recognises errors that repeat, by texts without changing parts, and keeps a log of them short.

The first event of a kind is logged at once, further ones are counted, and every few seconds one
line reports their number.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise

MOST_COMPARED = 300
"""Characters of a text that count; more would cost time in calls that fail."""

TEMPORARY = len("tmp") + 8
"""Length of the names that Python's tempfile makes."""

_UUID = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_WORKER = re.compile(
    r"(?<![\w.-])[\w.-]+/\d+-[0-9a-f]{4}\b"
)  # as provision/local/process.py names it
_PATH = re.compile(r"(?<![\w./])(?:~|\.{1,2})?(?:/[\w.+@%-]+){2,}/?")
_KEPT = re.compile(r"(\b(?:exit code|code|status|signal|line|input|output|axis) \d+\b)")
_TOKEN = re.compile(r"(?<![\w.])[-+]?[\w.]+(?:(?<=\d[eE])[-+]\d+\b)?")
_LIST = re.compile(r"<N>(?:[\s,;]+<N>)+")


@lru_cache(maxsize=512)
def shape_of(text: str, worker: str = "") -> str:
    """Return a text with "<N>" and the like in place of parts that differ between failures.

    These are numbers and lists of them, addresses, random words, parts of paths, and the names of
    workers. The kind of an exit status and the place in a program stay: `exit code 3`,
    `input 1`, `line 7`. Only the first line counts.
    """
    text = text.partition("\n")[0][:MOST_COMPARED]
    if worker:
        text = text.replace(worker, "<worker>")
    if not any(map(str.isdigit, text)) and "/" not in text and "tmp" not in text:
        return text
    text = _WORKER.sub("<worker>", _UUID.sub("<id>", text))
    text = _PATH.sub(lambda found: "/".join(map(_part, found[0].split("/"))), text)
    parts = _KEPT.split(text)
    for at in range(0, len(parts), 2):  # between two of these is a text to keep
        parts[at] = _LIST.sub("<N>", _TOKEN.sub(lambda found: _token(found[0]), parts[at]))
    return "".join(parts)


def _token(token: str) -> str:
    """Return a number as such, and a name without its numbers."""
    try:
        complex(token)
    except ValueError:
        return ".".join(map(_word, token.split(".")))
    return "<N>" if any(map(str.isdigit, token)) else token  # nan and inf stay


def _part(part: str) -> str:
    """Return a part of a path; of one that may change, only the ending."""
    stem, _, ending = part.rpartition(".")
    name = stem or ending
    if not any(map(str.isdigit, name)) and not name.startswith("tmp"):
        return part
    return f"<*>.{ending}" if stem and not any(map(str.isdigit, ending)) else "<*>"


def _word(word: str) -> str:
    """Return a word with digits in it: a random one as a whole, otherwise its letters."""
    if word.startswith("tmp") and len(word) == TEMPORARY:
        return "<id>"
    if not any(map(str.isdigit, word)):
        return word
    if word.startswith(("0x", "0X")):
        return "<address>"
    changes = sum(a.isdigit() != b.isdigit() for a, b in pairwise(word))
    return "<id>" if len(word) >= 8 and changes >= 3 else re.sub(r"\d+", "<N>", word)


def id_of(*key: str) -> str:
    """Return a short name of a group, the same for the same key in every farm."""
    return blake2b("\n".join(key).encode(errors="replace"), digest_size=4).hexdigest()


def cut(text: str, most: int) -> str:
    """Return a text of at most `most` characters, with an ellipsis where it was cut."""
    return text if len(text) <= most else text[: most - 1] + "\u2026"


def end_of(text: str, most: int) -> str:
    """Return the end of a long text, such as a traceback, of at most `most` characters."""
    return text if len(text) <= most else "\u2026" + text[1 - most :]


EVERY_S = 5.0
"""Time in seconds between two lines about one kind of event."""

MOST_KINDS = 20
"""Most kinds that are logged in that time; a last line has the number of the others."""

_Unsaid = tuple[int, int, Callable[[int], str]]
"""Events of one kind since the last line about it: level, how often, and the words for the last."""


class Repetitions:
    """Logs events at a bounded rate; the subclass calls `report` when it is time.

    others: the line for events of other kinds, if there are more kinds than are logged, with %d for
    their number.
    """

    def __init__(self, log: logging.Logger, others: str) -> None:
        self._log = log
        self._others_line = others
        self._held: dict[object, _Unsaid] = {}  # while there are any, `report` will be called
        self._others = 0

    def report_later(self, seconds: float) -> None:
        """Call `report` after this number of seconds."""
        raise NotImplementedError

    def happened(self, key: object, level: int, count: int, line: Callable[[int], str]) -> None:
        """Log a line now, or count for the next one.

        key: the kind of event; count: how many there were; line: returns the text for a number.
        """
        if key in self._held:
            self._held[key] = level, self._held[key][1] + count, line
            return
        if not self._log.isEnabledFor(level):
            return
        if len(self._held) >= MOST_KINDS:
            self._others += count
            return
        self._log.log(level, "%s", line(count))
        if not self._held:
            self.report_later(EVERY_S)
        self._held[key] = level, 0, line

    def report(self) -> None:
        """Log the events since the last lines; forget the kinds that had none."""
        before, self._held = self._held, {}
        for key, (level, count, line) in before.items():
            if count:
                self._log.log(level, "%s", line(count))
                self._held[key] = level, 0, line
        if self._others:
            self._log.info(self._others_line, self._others)
            self._others = 0
        if self._held:
            self.report_later(EVERY_S)
