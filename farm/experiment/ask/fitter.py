"""A process that does the work of one experiment; `parent.py` forks it, `fitters.py` talks to it.

Each message is its length, u64 little-endian, and a pickle. Work arrives on a socket, its outcome
leaves on the same one. Both ends are farm's own processes of the same user.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import traceback
from typing import Any, BinaryIO

from farm.errors import FarmError, Unavailable
from farm.experiment.ask.execute import execute
from farm.experiment.config.work import Answered, Generated, Work
from farm.machine.lifeline import tie_to

LENGTH = struct.Struct("<Q")


def message(value: Any) -> bytes:
    """Return a value encoded for the pipe."""
    body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


def received(pipe: BinaryIO) -> Any:
    """Return the next value from the pipe; None if it closes before its end."""
    head = pipe.read(LENGTH.size)
    length = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else 0
    body = pipe.read(length)
    return pickle.loads(body) if length and len(body) == length else None


def outcome(work: Work) -> Generated | Answered | FarmError:
    """Return the result of the work, or the error if it failed for any reason."""
    try:
        return execute(work)
    except FarmError as error:
        return error
    except MemoryError:
        return Unavailable("there is not enough memory for the surrogate of this experiment")
    except Exception as error:
        said = " ".join(str(error).split())
        return Unavailable(
            f"the surrogate cannot be fitted to this data: {type(error).__name__}: {said}",
            detail=traceback.format_exc(),
        )


def be_killed_first(score: int) -> None:
    """Have the kernel kill this process rather than the server if memory runs out."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(score))


def main(lifeline: int, channel: int) -> int:
    """Do work until the socket `channel` closes; return the exit status."""
    be_killed_first(800)  # it is replaced
    tie_to(lifeline)
    with socket.socket(fileno=channel) as line, line.makefile("rb") as requests:
        while (work := received(requests)) is not None:
            line.sendall(message(outcome(work)))
    return 0
