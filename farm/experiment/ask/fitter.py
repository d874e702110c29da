"""A process that does the work of one experiment; `fitters.py` starts it and communicates with it.

    python -m farm.experiment.ask.fitter LIFELINE [warm]

Each message is its length, u64 little-endian, and a pickle. Work arrives on standard input, its
outcome leaves on standard output. Both ends are farm's own processes of the same user.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import struct
import sys
import traceback
from typing import Any, BinaryIO

from farm.errors import FarmError, Unavailable
from farm.experiment.ask.execute import execute, load
from farm.experiment.config.work import Answered, Generated, Work
from farm.machine.lifeline import end_with

LENGTH = struct.Struct("<Q")


def message(value: Any) -> bytes:
    """Return a value encoded for the pipe."""
    body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


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


def main(lifeline: int, *, warm: bool) -> int:
    """Do work until the input ends; return the exit status.

    warm: first load the libraries that surrogates need, which takes seconds.
    """
    # If memory runs out, the kernel should kill this process rather than the server: it is
    # replaced.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("800")
    end_with(lifeline)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is handled by the server
    # Output that a library prints would be read as a message.
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    if warm:
        load()
    while (work := _read(requests)) is not None:
        answers.write(message(outcome(work)))
        answers.flush()
    return 0


def _read(requests: BinaryIO) -> Work | None:
    head = requests.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    work: Work = pickle.loads(requests.read(LENGTH.unpack(head)[0]))
    return work


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), warm="warm" in sys.argv[2:]))
