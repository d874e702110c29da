"""The format of the log on stderr, of `farm serve` and `farm worker`."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from typing import get_args

import click

from farm.machine.json_log import LOG_FORMAT, JsonFormatter, JsonLines, nothing
from farm.settings import LogFormat

log_format_option = click.option(
    "--log-format",
    type=click.Choice(get_args(LogFormat)),
    default="text",
    envvar=LOG_FORMAT,
    show_default=True,
    help="Format of the log on stderr and of the models' logs; json: one object a line, in which "
    "each request of HTTP and gRPC has an id.",
)


@contextlib.contextmanager
def logged(log_format: LogFormat, program: str) -> Iterator[None]:
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
