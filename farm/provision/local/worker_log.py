"""The log of a process that runs models: farm's messages, and what the models log and print.

Each line that belongs to a call with an id names it: in the text format between brackets, in JSON
as a field.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import time
from collections.abc import Mapping

from farm.machine.json_log import LOG_FORMAT, JsonFormatter, JsonLines, line_of
from farm.worker.running import CallFilter, context

BEGINS = "--- farm starts a worker process"
"""The beginning of the first line of a process, in the text format."""


def first_line(environment: Mapping[str, str]) -> str:
    """Return the line that begins the log of a worker process with this environment."""
    if environment.get(LOG_FORMAT) == "json":
        return line_of(time.time(), "INFO", "farm", "farm starts a worker process", {}) + "\n"
    return f"{BEGINS}, {time.strftime('%F %T %z')} ---\n"


def log_to_stderr() -> None:
    """Log farm's messages and tracebacks of failed calls; other loggers belong to the models.

    In JSON, if the environment asks for that, lines that the models print to stdout and stderr
    become objects, too, and so do the lines of their loggers.
    """
    handler = logging.StreamHandler()  # to stderr as it is now
    logger = logging.getLogger("farm")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False
    if os.environ.get(LOG_FORMAT) != "json":
        handler.addFilter(CallFilter())
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s%(of_call)s: %(message)s"))
        return
    handler.setFormatter(JsonFormatter(context))
    out, err = sys.stdout, sys.stderr
    stdout, stderr = (
        JsonLines(stream, name, time.time, context)
        for stream, name in ((out, "stdout"), (err, "stderr"))
    )
    streams = contextlib.ExitStack()  # never closed: it lasts as long as the process
    streams.enter_context(contextlib.redirect_stdout(stdout))
    streams.enter_context(contextlib.redirect_stderr(stderr))
    atexit.register(stdout.end)
    atexit.register(stderr.end)
