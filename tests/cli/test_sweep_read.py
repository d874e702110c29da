"""The subcommands that read a sweep: their output and exit statuses."""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from pathlib import Path

import h5py
import pytest
import xarray as xr

from farm.cli.sweep_read import describe
from farm.sweep.file.progress import Meter, Progress, status_of, write_status
from farm.sweep.file.reading import SILENT
from farm.sweep.file.recovery import RUNNING, lock_of
from farm.sweep.file.store import COMPLETE, Store, SweepLock
from tests.cli.conftest import Command
from tests.support.dispatcher_farm import run_farm
from tests.sweep.samples import done, failed, plan_of

PLAN = plan_of("random:6", title="beam study")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "s.h5"


def made(path: Path, state: str = COMPLETE, *, failures: bool = True) -> None:
    """Make a sweep with a status file, as a process leaves it."""
    store = Store.create(path, PLAN)
    worker = store.worker_id("node1/1")
    for point in range(6 if state == COMPLETE else 4):
        bad = failures and point == 3
        store.add(failed(point, worker=worker) if bad else done(PLAN, point, worker=worker))
    meter = Meter(store.known, PLAN, 0.0)
    store.close(state, {})
    write_status(status_of(path), meter.now(state, 0.0))


def test_status_in_words(sweep: Command, path: Path) -> None:
    made(path)
    status, out, _ = sweep("status s.h5")
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "beam study: complete"
    assert lines[1] == "6 points: 5 done, 1 failed"
    assert lines[2] == "run time: mean 500 ms, p50 500 ms, p95 500 ms"
    assert any(line.split()[:3] == ["node1", "5", "1"] for line in lines)


def test_status_as_json(sweep: Command, path: Path) -> None:
    made(path)
    _, out, _ = sweep("status s.h5 --json")
    data = json.loads(out)
    assert (data["state"], data["total"], data["done"], data["failed"]) == (COMPLETE, 6, 5, 1)


def test_status_of_a_process_that_is_silent() -> None:
    progress = Progress(SILENT, "t", 6, done=2, time=time.time() - 3900, host="node", pid=7)
    text = describe(progress)
    assert "its process 7 on node has not reported for 1 h 05 min" in text
    assert "farm sweep --resume" in text


def test_status_of_a_running_sweep_says_what_the_order_is_by() -> None:
    progress = Progress("running", "t", 10, basis="n**3")
    assert describe(progress).splitlines()[-1] == "order: longest first, by n**3"
    assert "order" not in describe(Progress("running", "t", 10))
    assert "order" not in describe(Progress("complete", "t", 10, basis="n**3"))


def test_status_of_a_running_sweep_tells_rate_and_message() -> None:
    text = describe(
        Progress(RUNNING, "t", 6, pending=4, rate_per_s=2.0, eta_s=2.0, message="disk is full")
    )
    assert "2/s, 2 s left" in text
    assert text.endswith("disk is full")


@pytest.mark.parametrize(
    ("state", "failures", "expected"),
    [(COMPLETE, False, 0), (COMPLETE, True, 1), ("interrupted", False, 3)],
)
def test_watch_tells_how_it_ended(
    sweep: Command, path: Path, state: str, failures: bool, expected: int
) -> None:
    made(path, state, failures=failures)
    status, _, err = sweep("watch s.h5")
    assert status == expected
    assert f"beam study: {state}" in err


def test_watch_gives_up(sweep: Command, path: Path) -> None:
    made(path, "interrupted")
    write_status(status_of(path), Progress(RUNNING, "t", 6, time=time.time()))
    lock = SweepLock(lock_of(path))
    status, _, err = sweep("watch s.h5 --timeout 0")
    lock.release()
    assert status == 7
    assert "still running" in err


def test_failures_in_words_and_as_csv(sweep: Command, path: Path) -> None:
    made(path)
    _, out, _ = sweep("failures s.h5")
    assert out.startswith("3\tattempt 1 on node1/1\tModelFailed: boom\t(E[0]=")
    _, out, _ = sweep("failures s.h5 --csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert (row["point"], row["traceback"]) == ("3", "line 1")
    assert float(row["load"]) == PLAN.theta[3, 3]


def test_no_failures_is_said(sweep: Command, path: Path) -> None:
    made(path, failures=False)
    assert sweep("failures s.h5")[1] == "no point failed\n"
    assert sweep("failures s.h5 --csv")[1].startswith("point,attempt,status,error")


def test_export(sweep: Command, path: Path) -> None:
    made(path)
    status, out, _ = sweep("export s.h5 --csv -")
    assert status == 0
    assert len(out.splitlines()) == 7
    assert sweep("export s.h5 --csv out.csv --netcdf out.nc")[0] == 0
    assert Path("out.csv").read_text() == out
    with xr.open_dataset("out.nc") as data:
        assert data.sizes["point"] == 6
    assert sweep("export s.h5 --parquet out.parquet")[0] == 0
    assert Path("out.parquet").read_bytes()[:4] == b"PAR1"
    assert "exists" in sweep("export s.h5 --csv out.csv")[2]
    status, _, err = sweep("export s.h5")
    assert status == 2
    assert "--csv out.csv" in err


def test_plot(sweep: Command, path: Path) -> None:
    made(path)
    assert sweep("plot s.h5")[1] == "s.html\n"
    assert Path("s.html").read_text().startswith("<!doctype html>")
    assert sweep("plot s.h5 -o r.html --output mass")[1] == "r.html\n"
    assert sweep("plot s.h5 --output nothing")[0] == 2


def test_plot_needs_no_matplotlib(
    sweep: Command, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert sweep("plot s.h5") == (0, "s.html\n", "")


def test_plot_opens_the_report_in_the_browser_that_the_user_has_set(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`webbrowser` runs the command of BROWSER, and reports whether it succeeded."""
    made(path)
    browser = Path("browser").resolve()
    browser.write_text('#!/bin/sh\nprintf %s "$1" > opened\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    assert run_farm("sweep", "plot", "s.h5", "--open", cwd=Path.cwd()) == (0, "s.html\n", "")
    assert Path("opened").read_text() == Path("s.html").resolve().as_uri()
    browser.write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("PATH", "")
    status, out, err = run_farm("sweep", "plot", "s.h5", "--open", cwd=Path.cwd())
    assert (status, out) == (0, "s.html\n")
    assert "no web browser was found" in err


def test_snapshot(sweep: Command, path: Path) -> None:
    store = Store.create(path, PLAN)
    store.add(done(PLAN, 2))
    assert sweep("snapshot s.h5 -o copy.h5")[1] == "copy.h5\n"
    store.abandon()
    with h5py.File("copy.h5") as file:
        assert file["status"][:].tolist() == [0, 0, 1, 0, 0, 0]
