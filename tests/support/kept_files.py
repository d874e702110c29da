"""Writes the files that each release keeps, so that later versions are tested on them.

    .venv/bin/python -m tests.support.kept_files

makes `tests/kept/VERSION/` with this version of farm: a sweep that has ended and one that was
killed, a record, and the journal of an experiment that was killed. Run it once for a release,
before its tag; `tests/system/test_kept_files.py` opens them from then on. The files name the user,
the machine and a temporary folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import farm
from farm.errors import ModelFailed
from farm.experiment.state.events import Told
from farm.experiment.state.journal import read_journal
from farm.sweep.file import layout
from farm.sweep.file.journal import PointStatus
from farm.sweep.file.reading import open_sweep
from farm.version import __version__

KEPT = Path(__file__).parent.parent / "kept"
LIMIT_S = 60.0

STUDY = KEPT / "0.2.0"
"""Its model and its config of an experiment are those of each release."""
DESIGN = (
    *("--param", "x[0]=0:1", "--param", "x[1]=log:0.1:1", "--param", "kind=single,double"),
    *("--design", "sobol:16", "--seed", "1"),
)
EVALUATED = np.array([[0.1, 0.2], [0.3, 0.4], [0.95, 0.5]])
"""The points of the record; the last one fails."""


def command(*arguments: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start farm in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "farm", *arguments],
        cwd=folder,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def run(*arguments: str, folder: Path, expected: int = 0) -> None:
    """Run farm to its end."""
    status = command(*arguments, folder=folder).wait(LIMIT_S)
    assert status == expected, (arguments, status)


def kept(folder: Path) -> int:
    """Return how many outcomes of the command that runs are on disk."""
    if (folder / "killed.db").exists():
        events = read_journal(folder / "killed.db")
        return sum(isinstance(event, Told) for event in events)
    with open_sweep(folder / "killed.h5") as file:
        return int((layout.read_known(file).status != PointStatus.PENDING).sum())


def killed(*arguments: str, folder: Path) -> None:
    """Run farm with one worker, and kill it once a sixth evaluation has begun."""
    log = folder / "calls.log"
    log.unlink(missing_ok=True)
    (folder / "stalls").touch()
    process = command(*arguments, "--workers", "1", folder=folder)
    limit = time.monotonic() + LIMIT_S
    while not log.exists() or len(log.read_text().split()) < 6:
        assert time.monotonic() < limit, arguments
        assert process.poll() is None, arguments
        time.sleep(0.05)
    while kept(folder) < 5:  # the answers before it are on disk
        assert time.monotonic() < limit, arguments
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (folder / "stalls").unlink()


def record(path: Path) -> None:
    """Record evaluations and a gradient."""
    with farm.serve(path.parent / "curve.py", workers=1, record=path) as client:
        curve = client.model("curve")
        for x in EVALUATED:
            try:
                curve(x)
            except ModelFailed:
                assert x[0] > 0.9
        curve.gradient(0, 0, [EVALUATED[0]], [1.0, 0.5])


def make(folder: Path) -> Sequence[Path]:
    """Write the files of this version; return their paths."""
    for name in ("curve.py", "tune.ini"):
        shutil.copy(STUDY / name, folder)
    sweep = ("sweep", "curve.py", *DESIGN)
    run(*sweep, "--workers", "2", "-o", "ended.h5", folder=folder, expected=1)
    killed(*sweep, "-o", "killed.h5", folder=folder)
    killed("experiment", "run", "tune.ini", "curve.py", "--journal", "killed.db", folder=folder)
    record(folder / "curve.record")
    names = ("curve.py", "tune.ini", "ended.h5", "killed.h5", "killed.h5.journal")
    return [folder / name for name in (*names, "curve.record", "killed.db")]


def main() -> None:
    into = KEPT / __version__
    into.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="study-") as name:
        for path in make(Path(name)):
            (into / path.name).write_bytes(path.read_bytes())


if __name__ == "__main__":
    main()
