"""A process that does the work of one experiment; `fitters.py` starts it and talks to it.

    python -m farm.experiment.fitter LIFELINE [warm]

Each message is its length, u64 little-endian, and a pickle: work in at the standard input, what
came of it out at the standard output. Both ends are farm's own, in processes of the same user.
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
from farm.experiment.perform import load, perform
from farm.experiment.work import Answered, Generated, Work
from farm.worker.lifeline import end_with

LENGTH = struct.Struct("<Q")


def message(value: Any) -> bytes:
    """A value as it goes over the pipe."""
    body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


def outcome(work: Work) -> Generated | Answered | FarmError:
    """What comes of the work, whatever happens."""
    try:
        return perform(work)
    except FarmError as error:
        return error
    except MemoryError:
        return Unavailable("there is not enough memory for the surrogate of this experiment")
    except Exception as error:
        said = " ".join(str(error).split())
        return Unavailable(
            f"the surrogate cannot be had from this data: {type(error).__name__}: {said}",
            detail=traceback.format_exc(),
        )


def main(lifeline: int, *, warm: bool) -> int:
    """Do work until the input ends; the exit status.

    warm: begin with what takes seconds to load, as a surrogate is going to be wanted.
    """
    # When memory runs out it is this process that is to go, not the server: it is replaced.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("800")
    end_with(lifeline)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is the server's to hear
    # What a library prints would be taken for a message.
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
