"""A process that runs codecs for the server; `readers.py` starts it and communicates with it.

    python -m farm.bodies.reader --lifeline N --line N MEMORY

A request has the job and optionally the body, each in a memory file. A job is the names of the
codec's module and function, then its arguments as frames of `farm.bodies.values`. The reply has the
job's result as such frames.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from farm.bodies import values
from farm.bodies.unpacking import Refused, unpacked
from farm.call import Buffer
from farm.errors import FarmError, InvalidInput
from farm.machine.job_process import be_killed_first, do_jobs
from farm.machine.lifeline import end_with
from farm.machine.memory_file import frames_in, mapped

BODY = object()
"""Placeholder for the request's body among a job's arguments."""

NICENESS = 5
"""Lower priority than the server's: the server answers every client, a reader only one."""


def main(lifeline: int, line: int, memory_bytes: int) -> int:
    """Run jobs until the server disconnects; return the exit status. memory_bytes: memory limit."""
    be_killed_first(800)
    end_with(lifeline)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is handled by the farm
    os.nice(NICENESS)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    do_jobs(line, lambda files: _done(files, memory_bytes))
    return 0


def _done(descriptors: Sequence[int], memory_bytes: int) -> list[Buffer]:
    """Return the outcome of a job: its kind, and the value or the error."""
    kinds = values.PLAIN
    try:
        where, *arguments = frames_in(descriptors[0])
        module, name = bytes(where).decode("ascii").split()
        codec = importlib.import_module(module)
        kinds = values.kinds_of(codec)
        result = _carried_out(
            getattr(codec, name), values.decode(arguments, BODY, kinds), descriptors
        )
        return values.encode(("done", result), kinds=kinds)
    except FarmError as error:
        return values.encode(("error", error))
    except Refused as refused:
        said = (refused.status, refused.kind, refused.message)
        return values.encode(("refused", said))
    except MemoryError:
        most = memory_bytes >> 20
        text = f"the message takes more than {most} MiB to read or to write"
        return values.encode(("error", InvalidInput(text)))
    except Exception as error:
        if type(error) in kinds.names:
            return values.encode(("error", error), kinds=kinds)
        return values.encode(("mistake", traceback.format_exc()))


def _carried_out(function: Callable[..., Any], job: Any, descriptors: Sequence[int]) -> Any:
    encoding, limit, arguments = job

    def whole(argument: Any) -> Any:
        """Return an argument with a view of a file as bytes, which codecs require."""
        if argument is not BODY:
            return bytes(argument) if isinstance(argument, memoryview) else argument
        body = bytes(mapped(descriptors[1]))
        if not encoding:
            return body
        return unpacked(body, {b"content-encoding": encoding.encode()}, limit)

    return function(*map(whole, arguments))


if __name__ == "__main__":
    _, its_lifeline, _, its_line, its_memory = sys.argv[1:]
    sys.exit(main(int(its_lifeline), int(its_line), int(its_memory)))
