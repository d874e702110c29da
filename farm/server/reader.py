"""A process that runs codecs for the front door; `readers.py` starts it and talks to it.

    python -m farm.server.reader LIFELINE SOCKET MEMORY

Each message is one byte with descriptors of memory files beside it. In: the job, frames of
`farm.protocols.values`, and perhaps the request's body. Out: what came of it, as frames too.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from farm.errors import FarmError, InvalidInput
from farm.protocols import values
from farm.protocols.graphpipe_tensors import Fault
from farm.protocols.wire_arrays import Buffer
from farm.server.door import Refused, unpacked
from farm.server.memory_file import file_of, frames_in, mapped
from farm.worker.lifeline import end_with

BODY = object()
"""Stands for the request's body among a job's arguments."""

NICENESS = 5
"""The front door answers everybody, a reader one client: the cores are the front door's first."""


def main(lifeline: int, line: socket.socket, memory_bytes: int) -> int:
    """Do jobs until the front door hangs up; the exit status. memory_bytes: the most it may use."""
    # When memory runs out it is this process that is to go, not the front door: it is replaced.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("800")
    end_with(lifeline)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is the farm's to hear
    os.nice(NICENESS)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    while True:
        _, descriptors, _, _ = socket.recv_fds(line, 1, 2)
        if not descriptors:
            return 0
        try:
            answer = file_of(_done(descriptors, memory_bytes))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        try:
            socket.send_fds(line, [b"."], [answer])
        finally:
            os.close(answer)


def _done(descriptors: Sequence[int], memory_bytes: int) -> list[Buffer]:
    """What comes of a job, whatever happens: its kind, and the value or the error."""
    try:
        return values.encode(("done", _carried_out(descriptors)))
    except (FarmError, Fault) as error:
        return values.encode(("error", error))
    except Refused as refused:
        said = (refused.status, refused.kind, refused.message)
        return values.encode(("refused", said))
    except MemoryError:
        most = memory_bytes >> 20
        text = f"the message takes more than {most} MiB to read or to write"
        return values.encode(("error", InvalidInput(text)))
    except Exception:
        return values.encode(("mistake", traceback.format_exc()))


def _carried_out(descriptors: Sequence[int]) -> Any:
    job = frames_in(descriptors[0])
    module, name, encoding, limit, arguments = values.decode(job, BODY)
    function = getattr(importlib.import_module(module), name)

    def whole(argument: Any) -> Any:
        """Codecs take bytes, not views of a file."""
        if argument is not BODY:
            return bytes(argument) if isinstance(argument, memoryview) else argument
        body = bytes(mapped(descriptors[1]))
        if not encoding:
            return body
        return unpacked(body, {b"content-encoding": encoding.encode()}, limit)

    return function(*map(whole, arguments))


if __name__ == "__main__":
    end, its_socket, its_memory = map(int, sys.argv[1:])
    sys.exit(main(end, socket.socket(fileno=its_socket), its_memory))
