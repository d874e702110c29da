"""`farm sweep` as people run it: kills, Ctrl-C, SIGTERM, a restarted farm, a full disk."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import psutil
import pytest

from farm.call import Array
from farm.sweep.file.reading import known_of
from farm.sweep.file.recovery import journal_of
from tests.support.dispatcher_farm import LIMIT_S, run_farm, serving, start_farm
from tests.support.running_farm import wait_until

MODEL = """
import os, time
import farm

class Slow(farm.Model):
    name = "slow"
    inputs = {"x": 2}
    outputs = {"y": SIZE}

    def evaluate(self, inputs, config):
        log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(log, inputs["x"].tobytes())
        os.close(log)
        time.sleep(config.get("sleep", 0.005) if not os.path.exists("hurry") else 0)
        return [inputs["x"].sum() + k for k in range(SIZE)]
"""


class Study:
    """A folder with a model that logs its evaluations, and `farm sweep` processes in it."""

    def __init__(self, folder: Path, *, size: int = 3, log: Path | None = None) -> None:
        self.folder = folder
        self.path = folder / "s.h5"
        self.log = log or folder / "evaluations"
        self.size = size
        constants = f"LOG = {str(self.log)!r}\nSIZE = {size}\n"
        (folder / "slow.py").write_text(constants + MODEL)

    def command(self, *more: str) -> list[str]:
        """Return the command that starts or resumes the sweep."""
        if self.path.exists() or journal_of(self.path).exists():
            return ["sweep", "--resume", "s.h5", *more]
        return ["sweep", *more, "--param", "x=0:1", "--seed", "7", "-o", "s.h5"]

    def start(self, *words: str) -> subprocess.Popen[str]:
        return start_farm(*words, cwd=self.folder)

    def evaluated(self) -> list[bytes]:
        """Return the parameters of all evaluations so far."""
        content = self.log.read_bytes() if self.log.exists() else b""
        return [content[i : i + 16] for i in range(0, len(content), 16)]

    def finished(self) -> set[bytes]:
        """Return the parameters of all points with an outcome."""
        if not self.path.exists() and not journal_of(self.path).exists():
            return set()
        plan, known = known_of(self.path)
        return {plan.theta[point].tobytes() for point in np.flatnonzero(known.status)}

    def check(self, count: int) -> None:
        """Check that all points are there and that each row belongs to its point."""
        with h5py.File(self.path) as file:
            assert file.attrs["state"] == "complete"
            assert file["status"][:].tolist() == [1] * count
            theta: Array = file["theta"][:]
            rows = theta.sum(axis=1)[:, None] + np.arange(self.size)
            assert np.allclose(file["out_0"][:], rows, rtol=1e-15)
        assert not journal_of(self.path).exists()


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path)


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Yield the process; afterwards all its descendants are gone."""
    family = psutil.Process(process.pid)
    children: list[psutil.Process] = []
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            children = family.children(recursive=True)
        if process.poll() is None:
            process.kill()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        print(process.communicate()[1])  # pytest shows it if the test fails


@pytest.mark.slow
def test_ctrl_c_once_waits_and_twice_leaves(study: Study) -> None:
    words = ("slow.py", "-n", "2", "--design", "random:300", "--fix", "sleep=0.2")
    with ended(study.start(*study.command(*words))) as process:
        wait_until(lambda: len(study.finished()) > 3, "the first points")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 3
    assert "stopping: waiting for" in errors
    assert "interrupted; continue with: farm sweep --resume s.h5" in errors
    # Points that started during the stop may be cancelled while they run.
    assert len(study.finished()) <= len(study.evaluated()) <= len(study.finished()) + 2 < 300
    with ended(study.start(*study.command())) as process:
        count = len(study.finished())
        wait_until(lambda: len(study.finished()) > count + 2, "more points")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 3
    assert not study.path.with_name("s.h5.lock").exists()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)]
)
def test_a_signal_ends_it_cleanly_with_its_workers(study: Study, number: signal.Signals) -> None:
    words = ("slow.py", "-n", "2", "--design", "random:40", "--fix", "sleep=0.5")
    before = signal.signal(number, signal.SIG_DFL)  # nohup ignores it; the test needs it
    try:
        started = study.start(*study.command(*words))
    finally:
        signal.signal(number, before)
    with ended(started) as process:
        wait_until(lambda: len(study.finished()) > 3, "the first points")
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2
        process.send_signal(number)
        process.communicate(timeout=LIMIT_S)
        wait_until(lambda: not any(child.is_running() for child in children), "workers gone")
    assert process.returncode == 3
    with h5py.File(study.path) as file:
        assert file.attrs["state"] == "interrupted"
    (study.folder / "hurry").touch()
    status, _, errors = run_farm("sweep", "--resume", "s.h5", cwd=study.folder)
    assert (status, "40/40" in errors) == (0, True), errors
    study.check(40)


@pytest.mark.slow
def test_in_a_job_sigterm_takes_what_runs(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Running evaluations are waited for, and no other one begins, however often it is sent."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 3600))
    words = ("slow.py", "-n", "2", "--design", "random:40", "--fix", "sleep=0.5")
    with ended(study.start(*study.command(*words))) as process:
        wait_until(lambda: len(study.evaluated()) > 1, "two workers at work")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 3
    with h5py.File(study.path) as file:
        assert file.attrs["state"] == "interrupted"
    assert 2 <= len(study.evaluated()) < 40
    assert study.finished() == set(study.evaluated())


@pytest.mark.slow
def test_two_cannot_write_and_anybody_can_look(study: Study) -> None:
    words = ("slow.py", "-n", "2", "--design", "random:200", "--fix", "sleep=0.5")
    with ended(study.start(*study.command(*words))) as process:
        wait_until(lambda: len(study.finished()) > 3, "the first points")
        status, _, errors = run_farm("sweep", "--resume", "s.h5", cwd=study.folder)
        assert status == 2
        assert f"held by process {process.pid} on" in errors
        _, text, _ = run_farm("sweep", "status", "s.h5", "--json", cwd=study.folder)
        progress = json.loads(text)
        assert (progress["state"], progress["pid"]) == ("running", process.pid)
        assert 0 < progress["done"] + progress["in_flight"] <= 200
        run_farm("sweep", "snapshot", "s.h5", "-o", "copy.h5", cwd=study.folder)
        with h5py.File(study.folder / "copy.h5") as file:
            assert np.count_nonzero(file["status"][:]) > 3
        watched = study.start("sweep", "watch", "s.h5")
        with ended(watched):
            (study.folder / "hurry").touch()
            assert process.wait(LIMIT_S) == 0
            assert watched.wait(LIMIT_S) == 0
    study.check(200)


@pytest.mark.slow
def test_a_farm_that_restarts_is_found_again(study: Study) -> None:
    run_folder = study.folder / "run"
    with contextlib.ExitStack() as stack:
        with serving(study.folder, "slow.py", "--workers", "2") as first:
            words = ("--to", str(run_folder), "--design", "random:300", "--fix", "sleep=0.2")
            process = stack.enter_context(ended(study.start(*study.command(*words))))
            wait_until(lambda: len(study.finished()) > 20, "the first points")
            first.process.kill()
            first.process.wait(LIMIT_S)
        assert len(study.finished()) < 300
        (study.folder / "hurry").touch()
        with serving(study.folder, "slow.py", "--workers", "2"):
            _, errors = process.communicate(timeout=2 * LIMIT_S)
            assert process.returncode == 0, errors
    study.check(300)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a folder with room for 4 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    subprocess.run(mount, check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def stands_still(study: Study) -> bool:
    """Whether no point finishes within a second."""
    before = len(study.finished())
    time.sleep(1.0)
    return len(study.finished()) == before


@pytest.mark.root
@pytest.mark.parametrize("how", ["it waits", "it is killed"])
def test_a_full_disk_loses_nothing(small_disk: Path, tmp_path: Path, how: str) -> None:
    study = Study(small_disk, size=100, log=tmp_path / "evaluations")
    ballast = small_disk / "ballast"
    words = ("slow.py", "-n", "2", "--design", "random:1000", "--fix", "sleep=0.001")
    with ended(study.start(*study.command(*words))) as process:
        wait_until(lambda: len(study.finished()) > 50, "the first points")
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        # The last page has room for some points.
        wait_until(lambda: stands_still(study), "a full disk")
        time.sleep(2.0)  # the store retries each second
        evaluated = len(study.evaluated())
        assert len(study.finished()) < 1000
        if how == "it is killed":
            process.kill()
        else:
            time.sleep(1.0)
            assert len(study.evaluated()) == evaluated  # no points are submitted
        ballast.unlink()
        _, errors = process.communicate(timeout=LIMIT_S)
    if how == "it is killed":
        status, _, errors = run_farm("sweep", "--resume", "s.h5", cwd=study.folder)
        assert status == 0, errors
    else:
        assert process.returncode == 0, errors
        assert "No space left on device" in errors
        assert "the sweep continues" in errors
        assert len(study.evaluated()) == 1000
    study.check(1000)


@pytest.mark.root
def test_a_disk_that_is_too_small_is_told_at_once(small_disk: Path) -> None:
    study = Study(small_disk, size=1000)
    words = study.command("slow.py", "-n", "1", "--design", "random:1000")
    status, _, errors = run_farm(*words, cwd=study.folder)
    assert status == 2
    assert "MB are free" in errors
    assert not study.path.exists()
