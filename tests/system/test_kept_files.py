"""Files of each release since 0.2.0 are read and continued: docs/sweeps/running.md promises it.

`tests/support/kept_files.py` wrote them.
"""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

import farm
from farm.sweep.file.journal import PointStatus
from farm.version import __version__
from tests.support.dispatcher_farm import run_farm, run_here
from tests.support.kept_files import EVALUATED, KEPT

RELEASES = sorted(path.name for path in KEPT.iterdir())


@pytest.fixture(params=RELEASES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(KEPT / request.param, tmp_path / "study"))


def evaluations(folder: Path) -> int:
    """How often the model was called in `folder`."""
    log = folder / "calls.log"
    return len(log.read_text().split()) if log.exists() else 0


def assert_right(path: Path) -> None:
    """Each point of a sweep of all 16 is right, and failed where the model raises."""
    with h5py.File(path) as file:
        theta, status = file["theta"][:], file["status"][:]
        y, total = file["out_0"][:], file["out_1"][:]
    failed = theta[:, 0] > 0.9
    assert 0 < failed.sum() < len(theta) == 16
    assert (status == np.where(failed, PointStatus.FAILED, PointStatus.DONE)).all()
    right = (1 + theta[:, 2:3]) * theta[:, :2] ** 2  # single, then double
    assert y[~failed] == pytest.approx(right[~failed])
    assert total.ravel()[~failed] == pytest.approx(right[~failed].sum(axis=1))


def test_this_version_keeps_its_own() -> None:
    assert __version__ in RELEASES


def test_a_sweep_that_has_ended_is_read(folder: Path) -> None:
    assert_right(folder / "ended.h5")
    status, out, errors = run_here("sweep", "status", "ended.h5", cwd=folder)
    assert (status, errors) == (0, "")
    assert "16 points: 14 done, 2 failed" in out
    status, out, errors = run_here("sweep", "export", "ended.h5", "--csv", "-", cwd=folder)
    assert (status, errors) == (0, "")
    with h5py.File(folder / "ended.h5") as file:
        theta = file["theta"][:]
    rows = list(csv.DictReader(out.splitlines()))
    assert [float(row["x[0]"]) for row in rows] == pytest.approx(theta[:, 0])
    assert {row["kind"] for row in rows} == {"single", "double"}
    status, out, _ = run_here("sweep", "failures", "ended.h5", cwd=folder)
    assert (status, out.count("expected at most 0.9") > 0) == (0, True)


@pytest.mark.slow
def test_a_sweep_that_was_killed_is_continued(folder: Path) -> None:
    status, _, errors = run_farm(
        "sweep", "--resume", "killed.h5", "curve.py", "--workers", "1", cwd=folder
    )
    assert status == 1, errors  # some points fail
    assert_right(folder / "killed.h5")
    assert evaluations(folder) == 16 - 5  # its journal has five of them


@pytest.mark.slow
def test_a_sweep_is_extended(folder: Path) -> None:
    extend = ("sweep", "extend", "ended.h5", "--points", "32", "curve.py", "--workers", "1")
    status, _, errors = run_farm(*extend, cwd=folder)
    assert status == 1, errors
    with h5py.File(folder / "ended.h5") as file:
        assert len(file["theta"]) == 32
        assert not (file["status"][:] == PointStatus.PENDING).any()


def test_a_record_answers(folder: Path) -> None:
    with farm.serve(
        folder / "curve.py", workers=1, record=folder / "curve.record", reuse=True
    ) as client:
        curve = client.model("curve")
        answer = curve(EVALUATED[0])
        gradient = curve.gradient(0, 0, [EVALUATED[0]], [1.0, 0.5])
    assert answer["y"] == pytest.approx(EVALUATED[0] ** 2)
    assert answer["total"] == pytest.approx((EVALUATED[0] ** 2).sum())
    assert gradient == pytest.approx(2 * EVALUATED[0] * [1.0, 0.5])
    assert evaluations(folder) == 0
    export = ("record", "export", "curve.record", "-o", "points.h5")
    status, _, errors = run_here(*export, cwd=folder)
    assert (status, errors) == (0, "")
    with h5py.File(folder / "points.h5") as file:
        assert file["theta"][:] == pytest.approx(EVALUATED)


@pytest.mark.slow
def test_an_experiment_that_was_killed_is_continued(folder: Path) -> None:
    status, out, _ = run_here("experiment", "status", "killed.db", cwd=folder)
    assert (status, "interrupted" in out) == (0, True)
    run = ("experiment", "run", "tune.ini", "curve.py", "--journal", "killed.db", "--resume")
    status, _, errors = run_farm(*run, "--workers", "1", cwd=folder)
    assert status == 0, errors
    status, _, _ = run_here("experiment", "export", "killed.db", "trials.csv", cwd=folder)
    assert status == 0
    trials = list(csv.DictReader((folder / "trials.csv").read_text().splitlines()))
    assert len(trials) == 8
    for trial in trials:
        expected = float(trial["a"]) ** 2 + float(trial["b"]) ** 2
        assert float(trial["height"]) == pytest.approx(expected)
    assert evaluations(folder) == 8 - 5  # its journal has five outcomes
