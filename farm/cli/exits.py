"""The exit statuses of all commands, which scripts can rely on.

`TABLE` is the one list of them: `farm --help` prints it, docs/seeing.md shows it.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

import click

from farm import errors
from farm.errors import FarmError, Unavailable

DONE = 0
FAILURES = 1
USAGE = 2
INCOMPLETE = 3
MODEL_FAILED = 4
WORKER_LOST = 5
UNREACHABLE = 6
TIME_OUT = 7
CANCELLED = 8
FAULT = 70
INTERRUPTED = 130
BROKEN_PIPE = 141

TABLE = {
    DONE: "done",
    FAILURES: "ended, but some points failed, or farm doctor found something wrong",
    USAGE: "wrong command line, input, file or model; or a server cannot start here",
    INCOMPLETE: "a sweep or an experiment stopped before its end; the same command continues it",
    MODEL_FAILED: "the model failed",
    WORKER_LOST: "the workers that ran the call died",
    UNREACHABLE: "the farm cannot be reached, has no worker yet, or its queue is full",
    TIME_OUT: "time-out: of the call, of the model's run, or of --timeout",
    CANCELLED: "the call was cancelled",
    FAULT: "a fault of farm itself, with a traceback",
    INTERRUPTED: "interrupted by Ctrl-C",
    BROKEN_PIPE: "the reader of the output, such as head, ended first",
}
"""The meaning of each exit status. 128 + N further means: ended by signal N."""

OF_ERROR: dict[type[FarmError], int] = {
    errors.InvalidRequest: USAGE,
    errors.InvalidInput: USAGE,
    errors.ModelNotFound: USAGE,
    errors.UnsupportedFeature: USAGE,
    errors.ModelFailed: MODEL_FAILED,
    errors.InvalidOutput: MODEL_FAILED,
    errors.WorkerLost: WORKER_LOST,
    errors.TimeLimitExceeded: TIME_OUT,
    errors.DeadlineExceeded: TIME_OUT,
    errors.Cancelled: CANCELLED,
    errors.Overloaded: UNREACHABLE,
    errors.Unavailable: UNREACHABLE,
}
"""The exit status of a command that ends with an error of this class, or of one derived from it."""


def status_of(error: BaseException) -> int:
    """Return the exit status for an error, or for the FarmError that caused it; else USAGE."""
    reason: BaseException | None = error
    while reason is not None:
        for kind in type(reason).__mro__:
            if kind in OF_ERROR:
                return OF_ERROR[kind]
        reason = reason.__cause__
    return USAGE


PLACE = "use another folder, or ask the owner of this one"
REMEDIES: dict[int, str] = {
    errno.EACCES: PLACE,
    errno.EPERM: PLACE,
    errno.EROFS: "use another folder: nothing can be written to this file system",
    errno.ENOSPC: "make room there, or use another folder",
    errno.EDQUOT: "make room there, as your quota is used up, or use another folder",
    errno.EFBIG: "the file system or `ulimit -f` allows no larger file",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path: a part of it is not a folder",
    errno.EISDIR: "name a file, as this is a folder",
    errno.EEXIST: "name another file, or remove it",
    errno.ELOOP: "name the file itself instead of a symbolic link",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "raise the number of open files: ulimit -n",
}
"""Remedies for errors that a user can mend, by errno. Other OSErrors are faults of farm."""


def in_one_line(error: OSError) -> str:
    """Return an OSError that the user can mend as one line with its remedy; "" for others."""
    if error.errno is None:  # a library's, or farm's own, with a text of its own
        return str(error)
    remedy = REMEDIES.get(error.errno)
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror}; {remedy}" if remedy else ""


class VerbFailed(click.ClickException):
    """Ends a command with one line on stderr and the exit status of the error behind it."""

    def __init__(self, error: BaseException, message: str = "") -> None:
        super().__init__(message or str(error))
        self.status = status_of(error)


@contextlib.contextmanager
def on_this_machine() -> Iterator[None]:
    """Report what cannot be used in the block as the user's mistake, not as an unreachable farm.

    That suits files, and addresses to listen on.
    """
    try:
        yield
    except Unavailable as error:
        raise click.ClickException(error.message) from error


def table() -> str:
    """Return the table for `farm --help`."""
    lines = [f"  {number:<4}{meaning}" for number, meaning in TABLE.items()]
    return "\n".join(["\b", "Exit status:", *lines])
