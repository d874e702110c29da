"""A process that does the work of one experiment; `fitters.py` talks to it.

    python -m farm.experiment.ask.fitter --lifeline N --line N
    python -m farm.experiment.ask.fitter --forks=N [load]

The second one loads the libraries of surrogates, and forks such processes. Work and its outcome are
pickles, as both ends are farm's own processes of the same user.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import sys
from collections.abc import Sequence

from farm.experiment.ask.execute import load, outcome
from farm.machine.forking import forked
from farm.machine.job_process import be_killed_first, do_jobs
from farm.machine.lifeline import end_with
from farm.machine.memory_file import frames_in


def main(words: Sequence[str]) -> int:
    """Do work until the server disconnects; return the exit status."""
    if words[0].startswith("--forks="):
        libraries = words[1:] == ["load"]
        words = forked(int(words[0].partition("=")[2]), lambda: _load(libraries=libraries))
    _, lifeline, _, line = words
    be_killed_first(800)
    end_with(int(lifeline))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is handled by the server
    do_jobs(int(line), _done)
    return 0


def _load(*, libraries: bool) -> None:
    be_killed_first(700)  # after those that it forks, which can be replaced one by one
    if libraries:
        # The work of each process imports them again, and reports the error.
        with contextlib.suppress(Exception):
            load()


def _done(files: Sequence[int]) -> list[bytes]:
    (work,) = frames_in(files[0])
    return [pickle.dumps(outcome(pickle.loads(work)), protocol=pickle.HIGHEST_PROTOCOL)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
