"""One command line, killed by SIGKILL at random moments and started again until it is complete."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from farm.sweep.file.journal import PointStatus
from farm.sweep.file.recovery import journal_of
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import environment, start_farm
from tests.support.time_limits import scaled
from tests.system.sweep_writer import outcomes

POINTS = 96
LIMIT_S = scaled(120.0)
LATEST_KILL_S = 5.0
"""Covers the start, the model's loading, the probe and most of the run."""

NIGHTLY = [pytest.mark.slow, pytest.mark.nightly]

TOO_LARGE = 0.95
"""Points above it fail."""

MODEL = (
    f"TOO_LARGE = {TOO_LARGE}"
    + """
import os, time
import farm

@farm.model(inputs={"x": 2}, outputs={"y": 2})
def logged(x):
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(log, x.tobytes())
    os.close(log)
    time.sleep(0.02)
    if x[0] > TOO_LARGE:
        raise ValueError("x is too large")
    return [x[0] + x[1], x[0] - x[1]]
"""
)
SCRIPT = f"""
{MODEL}
import sys
settings = dict(n={POINTS}, seed=7, workers=2, out=sys.argv[1])
sweep = farm.sweep(logged, {{"x": (0, 1)}}, design="random", **settings)
assert len(list(sweep.as_completed())) == {POINTS}
sys.exit(1 if sweep.progress.failed else 0)
"""
SWEEPS = {
    "command line": f"sweep model.py -n 2 --param x=0:1 --design random:{POINTS} --seed 7 -o",
    # Of the first four points of a Sobol sequence one lies in each quarter, whatever the seed: the
    # three that are tried first never all fail, as three random ones may.
    "no seed": f"sweep model.py -n 2 --param x=0:1 --design sobol:{POINTS} -o",
}


def evaluated(folder: Path) -> list[bytes]:
    """Return the inputs of all evaluations so far, in order."""
    log = folder / "log"
    content = log.read_bytes() if log.exists() else b""
    return [content[k : k + 16] for k in range(0, len(content), 16)]


def finished(path: Path) -> set[bytes]:
    """Return the inputs of the points that have an outcome in the files of a killed sweep."""
    found = outcomes(journal_of(path))
    if path.exists():
        with h5py.File(path) as file:
            found |= {row.tobytes() for row in file["theta"][:][file["status"][:] > 0]}
    return found


def status_of(path: Path) -> int:
    """Return the exit status of a complete sweep: 1 if points fail, which few draws do not have."""
    with h5py.File(path) as file:
        return int((file["theta"][:, 0] > TOO_LARGE).any())


@pytest.mark.parametrize(
    ("how", "kills"),
    [
        pytest.param("command line", 1, id="1 kill"),
        pytest.param("command line", 3, marks=pytest.mark.slow, id="3 kills"),
        pytest.param("script", 2, marks=pytest.mark.slow, id="script, 2 kills"),
        pytest.param("no seed", 10, marks=pytest.mark.slow, id="no seed, 10 kills"),
        pytest.param("command line", 20, marks=NIGHTLY, id="20 kills"),
        pytest.param("script", 10, marks=NIGHTLY, id="script, 10 kills"),
    ],
)
@pytest.mark.timeout(900)
def test_killed_and_started_again_until_complete(tmp_path: Path, how: str, kills: int) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "script.py").write_text(SCRIPT)
    moments = random.Random(f"{how} {kills}")
    killed = sweeps = 0
    undisturbed = tmp_path / "undisturbed.h5"
    assert started(tmp_path, how, undisturbed, LIMIT_S) == status_of(undisturbed)
    while killed < kills:
        sweeps += 1
        path = tmp_path / f"{sweeps}.h5"
        (tmp_path / "log").unlink()
        known: set[bytes] = set()
        while True:
            before = len(evaluated(tmp_path))
            limit_s = moments.uniform(0.0, LATEST_KILL_S) if killed < kills else LIMIT_S
            status = started(tmp_path, how, path, limit_s)
            again = known & set(evaluated(tmp_path)[before:])
            assert not again, f"{len(again)} finished points were evaluated again"
            if status is not None:
                break
            killed += 1
            known, lost = finished(path), known - finished(path)
            assert not lost, f"{len(lost)} finished points were lost"
        assert status == status_of(path)
        check(path, undisturbed if how != "no seed" else None)
        count = len(evaluated(tmp_path))
        assert started(tmp_path, how, path, LIMIT_S) == status_of(path)
        assert len(evaluated(tmp_path)) == count, "a complete sweep evaluates nothing"
    print(f"{killed} kills in {sweeps} sweeps")


def started(folder: Path, how: str, path: Path, limit_s: float) -> int | None:
    """Run the command; None if it was killed after `limit_s` seconds."""
    if how in SWEEPS:
        process = start_farm(*SWEEPS[how].split(), str(path), cwd=folder)
    else:
        words = [sys.executable, "script.py", str(path)]
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        try:
            _, said = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            settled(folder)
            return None
    assert process.returncode in (0, 1), said
    return process.returncode


def settled(folder: Path) -> None:
    """Wait until the workers of a killed sweep, which end by themselves, evaluate no more."""

    def is_here(process: Path) -> bool:
        return f"{folder}".encode() in cmdline(process)

    wait_until(lambda: not any(map(is_here, Path("/proc").glob("[0-9]*"))), LIMIT_S)


def cmdline(process: Path) -> bytes:
    """Return the command line and the folder of a process; empty if it has ended."""
    try:
        return (process / "cmdline").read_bytes() + str((process / "cwd").readlink()).encode()
    except OSError:
        return b""


def check(path: Path, undisturbed: Path | None) -> None:
    """Check that each row is there once, and the design that of an undisturbed sweep."""
    with h5py.File(path) as file:
        theta, status, outputs = file["theta"][:], file["status"][:], file["out_0"][:]
        assert file.attrs["state"] == "complete"
        assert file["attempts"][:].tolist() == [1] * POINTS
        bad = theta[:, 0] > TOO_LARGE
        assert np.array_equal(status, np.where(bad, PointStatus.FAILED, PointStatus.DONE))
        expected = np.stack([theta[:, 0] + theta[:, 1], theta[:, 0] - theta[:, 1]], axis=1)
        assert np.array_equal(outputs[~bad], expected[~bad])
        assert sorted(file["failures/point"][:].tolist()) == np.flatnonzero(bad).tolist()
        assert not journal_of(path).exists()
        if undisturbed is None:
            return
        with h5py.File(undisturbed) as other:
            for name in ("theta", "unit", "out_0", "status"):
                assert file[name][:].tobytes() == other[name][:].tobytes(), name
            sums = [f["provenance"].attrs["theta_sha256"] for f in (file, other)]
            assert sums[0] == sums[1]
