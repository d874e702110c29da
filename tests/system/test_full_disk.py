"""A disk that is really full: the sweep says so, loses nothing, and goes on when there is room."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

pytestmark = pytest.mark.root

POINTS, SIZE = 100, 2000
IN_FLIGHT = 10
LIMIT_S = 60.0
MODEL = f"""
import farm, os, time
import numpy as np

@farm.model(inputs={{"x": 1}}, outputs={{"y": {SIZE}}})
def wide(x):
    with open(os.environ["EVALUATIONS"], "a") as log:
        log.write(f"{{x[0]}}\\n")
    time.sleep(0.02)  # so that the disk fills up under way
    return x * np.arange({SIZE})
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def wait_until(running: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    """Until the condition holds, while the program runs."""
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert running.poll() is None, "it ended too early"
        assert time.monotonic() < limit, "it takes too long"
        time.sleep(0.02)


def fill(ballast: Path) -> None:
    """Leave no byte free on the disk."""
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def check(path: Path) -> None:
    """All rows are there and right."""
    with h5py.File(path) as file:
        assert (file["status"][:] == 1).all()
        np.testing.assert_array_equal(file["out_0"][:], file["theta"][:] * np.arange(SIZE))


@pytest.mark.parametrize("waits", [True, False], ids=["waits for room", "interrupted, resumed"])
@pytest.mark.timeout(150)
def test_a_full_disk(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    (tmp_path / "wide.py").write_text(MODEL)
    evaluations, said = tmp_path / "evaluations", tmp_path / "stderr"
    evaluations.touch()
    monkeypatch.setenv("EVALUATIONS", str(evaluations))
    out, ballast = small_disk / "sweep.h5", small_disk / "ballast"
    sweep = [sys.executable, "-m", "farm", "sweep"]
    first = [*sweep, str(tmp_path / "wide.py"), "--param", "x=0:1", "--design", f"random:{POINTS}"]
    first += ["--in-flight", str(IN_FLIGHT)]
    with said.open("wb") as stderr:
        running = subprocess.Popen([*first, "-o", str(out)], stderr=stderr)
    with running:
        try:
            wait_until(running, lambda: len(evaluations.read_text().split()) > 10)
            fill(ballast)
            wait_until(running, lambda: b"No space left" in said.read_bytes())
            if not waits:
                running.terminate()
                assert running.wait(LIMIT_S) != 0
            ballast.unlink()
            if waits:
                assert running.wait(LIMIT_S) == 0, said.read_text()
        finally:
            running.kill()
    if not waits:
        subprocess.run([*sweep, "--resume", str(out)], check=True, timeout=LIMIT_S)
    check(out)
    # What was finished and could not be written when it was interrupted has to run again.
    again = len(evaluations.read_text().split()) - POINTS
    assert again == 0 if waits else again <= IN_FLIGHT
