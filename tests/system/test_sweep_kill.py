"""SIGKILL at any moment: the file opens, rows are correct, finished points stay finished."""

from __future__ import annotations

import multiprocessing
import random
import signal
import time
from multiprocessing.context import ForkServerContext
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr

from farm.sweep.file.journal import PointStatus
from farm.sweep.file.recovery import journal_of
from tests.support.time_limits import scaled
from tests.system import sweep_writer
from tests.system.sweep_writer import POINTS, evaluations, fails, outcomes, outputs_of, write

LIMIT_S = scaled(60.0)
LATEST_KILL_S = 0.8
"""Covers creating the files, the first batches and resuming; the sweep needs several kills."""


@pytest.fixture(scope="module")
def context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([sweep_writer.__name__, "scipy.stats"])
    return context


class Loop:
    """Runs sweeps in processes that are killed, and checks the files after each kill."""

    def __init__(
        self, folder: Path, context: ForkServerContext, design: str, gzip: bool, together: bool
    ) -> None:
        self._folder = folder
        self._context = context
        self._design = design
        self._gzip = gzip
        self._together = together
        self._next()
        self.sweeps = self.kills = self.broken = 0

    def _next(self) -> None:
        self._path = self._folder / f"{len(list(self._folder.iterdir()))}.h5"
        self._finished: set[bytes] = set()
        self._sessions = 0

    def kill_after(self, seconds: float) -> None:
        """Run the sweep for some seconds, kill it, and check its files."""
        self._sessions += 1
        log = self._path.with_name(f"{self._path.name}.log{self._sessions}")
        process = self._context.Process(
            target=write, args=(self._path, log, self._design, self._gzip, self._together)
        )
        process.start()
        process.join(seconds)
        process.kill()
        process.join(LIMIT_S)
        killed = process.exitcode != 0
        assert process.exitcode in (0, -signal.SIGKILL)
        again = self._finished & {row.tobytes() for row in evaluations(log)}
        assert not again, f"{len(again)} finished points were evaluated again"
        self.kills += killed
        if killed:
            self._look_at_what_is_left()
        else:
            self._look_at_the_end()

    def _look_at_what_is_left(self) -> None:
        if self._path.exists():
            with h5py.File(self._path) as file:
                in_file = check_rows(file)
            with xr.open_dataset(self._path, engine="h5netcdf") as data:
                assert int((data.status > 0).sum()) == len(in_file)
        else:
            in_file = set()
        in_journal = outcomes(journal_of(self._path))
        assert in_file <= in_journal or not journal_of(self._path).exists()
        assert self._finished <= in_journal | in_file
        self._finished = in_journal | in_file
        self.broken += self._path.with_name(self._path.name + ".broken").exists()

    def _look_at_the_end(self) -> None:
        with h5py.File(self._path) as file:
            assert file.attrs["state"] == "complete"
            assert len(check_rows(file)) == POINTS
            bad = [bool(fails(theta)) for theta in file["theta"][:]]
            assert np.array_equal(
                file["status"][:], np.where(bad, PointStatus.FAILED, PointStatus.DONE)
            )
            assert sorted(file["failures/point"][:].tolist()) == np.flatnonzero(bad).tolist()
            assert set(file["failures/error"][:]) == {b"ModelFailed: ValueError: x is too large"}
        assert not journal_of(self._path).exists()
        self.sweeps += 1
        self._next()


def check_rows(file: h5py.File) -> set[bytes]:
    """Check that each row belongs to its point; return the finished points' parameters."""
    theta, status, y = file["theta"][:], file["status"][:], file["out_0"][:]
    for point in np.flatnonzero(status == PointStatus.DONE):
        assert np.array_equal(y[point], outputs_of(theta[point])), f"row {point} is wrong"
    return {theta[point].tobytes() for point in np.flatnonzero(status)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "design", "gzip", "together"),
    [
        pytest.param(40, "random:8000", False, True, id="together"),
        pytest.param(60, "random:8000", False, False, id="60 kills"),
        pytest.param(30, "random:8000", True, False, id="compressed"),
        pytest.param(60, "grid", False, False, id="shuffled"),
        pytest.param(120, "random:8000", False, False, marks=pytest.mark.nightly, id="120 kills"),
        pytest.param(60, "random:8000", True, False, marks=pytest.mark.nightly, id="60 compressed"),
        pytest.param(120, "grid", False, False, marks=pytest.mark.nightly, id="120 shuffled"),
    ],
)
@pytest.mark.timeout(600)
def test_killed_at_random_moments(
    tmp_path: Path,
    context: ForkServerContext,
    kills: int,
    design: str,
    gzip: bool,
    together: bool,
) -> None:
    moments = random.Random(f"{kills} {design} {gzip}")
    design = "grid:100,80" if design == "grid" else design
    loop = Loop(tmp_path, context, design, gzip, together)
    began = time.monotonic()
    while loop.kills < kills:
        loop.kill_after(moments.uniform(0.0, LATEST_KILL_S))
    loop.kill_after(LIMIT_S)  # the rest runs to its end
    print(
        f"{loop.kills} kills in {time.monotonic() - began:.0f} s, {loop.sweeps} sweeps, "
        f"{loop.broken} files rebuilt"
    )
    assert loop.sweeps >= 1
