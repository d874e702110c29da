"""The list of checks, and a run through them that always ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import Empty, Queue

from farm.doctor import batch, folder, machine, packages, target
from farm.doctor.finding import Finding, warning

LIMIT_S = 20.0
"""Time limit of one check; those that ask other programs have shorter ones of their own."""

Check = Callable[[], list[Finding]]


def checks(named: str | None, cluster: Path | None) -> dict[str, Check]:
    """Return all checks by their subjects. named: the farm; cluster: a file for `--cluster`."""
    where = target.folder_of(named)
    return {
        "Python": packages.python_is_new_enough,
        "interpreter": packages.interpreter,
        "packages": packages.versions,
        "program farm": packages.program_is_this_one,
        "environment": packages.environment,
        "memory": machine.memory,
        "open files": machine.open_files,
        "processors": machine.processes,
        "GPUs": machine.gpus,
        "containers": machine.containers,
        "clock": machine.clock,
        "time limits": machine.time_limits,
        "disk": partial(folder.disk, where),
        "keys": partial(folder.permissions, where),
        "left on disk": partial(folder.left, where),
        "port": partial(target.port, named),
        "farm": partial(target.answers, named),
        "batch system": lambda: batch.systems(cluster, target.batch_system(named)),
        **({} if cluster is None else {"cluster file": partial(batch.plan, cluster)}),
    }


def examine(all_checks: dict[str, Check], *, limit_s: float = LIMIT_S) -> Iterator[Finding]:
    """Carry out the checks, at most `limit_s` each; a check that fails is a finding, too."""
    for subject, check in all_checks.items():
        yield from _within(limit_s, subject, check)


def _within(limit_s: float, subject: str, check: Check) -> list[Finding]:
    """Run a check in a thread that is left alone if it hangs, as on a dead file server."""
    answers: Queue[list[Finding]] = Queue()

    def run() -> None:
        try:
            answers.put(check())
        except Exception as error:
            text = f"the check failed: {type(error).__name__}: {error}"
            answers.put([warning(subject, text, "look at that by hand")])

    threading.Thread(target=run, name=f"check {subject}", daemon=True).start()
    try:
        return answers.get(timeout=limit_s)
    except Empty:
        text = f"no result in {limit_s:g} s"
        return [warning(subject, text, "a file server, a command or a server does not answer")]
