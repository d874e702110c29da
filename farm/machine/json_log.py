"""Logs for programs: one JSON object on each line.

Keys: `time` (UTC, RFC 3339), `level`, `logger`, `message`, for errors `exception`, and those of
`FIELDS` that apply.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TextIO

import orjson

FIELDS = ("call", "client", "model", "operation", "worker")
"""What a record may have besides, from `extra` or from the context."""

LOG_FORMAT = "FARM_LOG_FORMAT"
"""Environment variable that tells the processes of a farm its log format: `text` or `json`."""

LONGEST_LINE = 100_000
"""Characters of a printed line after which it is cut in two, so that memory is bounded."""


def nothing() -> Mapping[str, str]:
    """Return no fields, for a process without a context."""
    return {}


class JsonFormatter(logging.Formatter):
    """Formats records as JSON objects. context: returns the fields of the current thread."""

    def __init__(self, context: Callable[[], Mapping[str, str]] = nothing) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        fields = dict(self._context())
        fields.update((name, str(getattr(record, name))) for name in FIELDS if has(record, name))
        exception = ""
        if record.exc_info:
            exception = self.formatException(record.exc_info)
        elif record.stack_info:
            exception = record.stack_info
        return line_of(
            record.created, record.levelname, record.name, record.getMessage(), fields, exception
        )


def has(record: logging.LogRecord, name: str) -> bool:
    """Whether a record has a field that is not empty."""
    return getattr(record, name, "") not in ("", None)


def line_of(
    at: float, level: str, logger: str, message: str, fields: Mapping[str, str], exception: str = ""
) -> str:
    """Return one line of a log. at: Unix time."""
    time = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    data = {
        "time": time.replace("+00:00", "Z"),
        "level": level,
        "logger": logger,
        "message": message,
        **{name: fields[name] for name in FIELDS if fields.get(name)},
    }
    if exception:
        data["exception"] = exception
    # Surrogates, such as those of file names that are not UTF-8, have no place in JSON.
    clean = {name: text.encode("utf-8", "replace").decode() for name, text in data.items()}
    return orjson.dumps(clean).decode()


class _BegunLine(threading.local):
    """The line that each thread has begun."""

    text = ""

    def replace(self, text: str) -> str:
        """Begin another line and return the one before."""
        before, self.text = self.text, text
        return before


class JsonLines(io.TextIOBase):
    """A text stream that writes each line it is given as a JSON object to another one.

    The lines of several threads do not mix. Programs that a process starts, and C code, write to
    the descriptor itself, past this stream.
    """

    def __init__(
        self,
        to: TextIO,
        logger: str,
        now: Callable[[], float],
        context: Callable[[], Mapping[str, str]],
    ) -> None:
        super().__init__()
        self._to = to
        self._logger = logger
        self._now = now
        self._context = context
        self._begun = _BegunLine()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a constant in its class
        """That of the other stream."""
        return self._to.encoding

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the other stream."""
        return self._to.fileno()

    def write(self, text: str) -> int:
        """Write the lines that end in `text`, and keep the rest."""
        *lines, rest = (self._begun.text + text).split("\n")
        while len(rest) > LONGEST_LINE:
            lines.append(rest[:LONGEST_LINE])
            rest = rest[LONGEST_LINE:]
        self._begun.replace(rest)
        for line in lines:
            self._put(line)
        return len(text)

    def flush(self) -> None:
        """Flush the other stream; a line that has only begun stays here."""
        if not self._to.closed:  # when this object is deleted, the other stream may be gone
            self._to.flush()

    def end(self) -> None:
        """Write the line that this thread has begun."""
        if rest := self._begun.replace(""):
            self._put(rest)

    def _put(self, line: str) -> None:
        if line.strip():
            text = line_of(self._now(), "INFO", self._logger, line, self._context())
            self._to.write(text + "\n")
            self._to.flush()


@contextlib.contextmanager
def logged(log_format: str, program: str) -> Iterator[None]:
    """Log in this format for the length of the block, also in the processes that it starts.

    program: the logger's name of lines that are printed to stderr for people.
    """
    before = os.environ.get(LOG_FORMAT)
    os.environ[LOG_FORMAT] = log_format
    try:
        if log_format == "text":
            yield
            return
        handlers = logging.getLogger().handlers
        formatters = [handler.formatter for handler in handlers]
        for handler in handlers:
            handler.setFormatter(JsonFormatter())
        lines = JsonLines(sys.stderr, program, time.time, nothing)
        try:
            with contextlib.redirect_stderr(lines):
                yield
        finally:
            lines.end()
            for handler, formatter in zip(handlers, formatters, strict=True):
                handler.setFormatter(formatter)
    finally:
        if before is None:
            del os.environ[LOG_FORMAT]
        else:
            os.environ[LOG_FORMAT] = before
