"""Processes that others are forked from, started by tests."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil

from farm.machine.fork_parent import ForkParent
from farm.provision.local.child import MODULE
from tests.support.running_farm import wait_until


@contextmanager
def warm_parent(*words: str, **variables: str) -> Iterator[ForkParent]:
    """Yield a process that can fork."""
    with closing(ForkParent(MODULE, words, {**os.environ, **variables})) as parent:
        wait_until(lambda: parent.look(time.monotonic()), "the libraries are loaded")
        yield parent


def begins_with(folder: Path, code: str) -> dict[str, str]:
    """Return variables with which each Python runs this code first, as some packages' would."""
    (folder / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def parents_among(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return those of the processes that others are forked from."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it has just ended
            if process.name() == "farm-parent":
                found.append(process)
    return found
