"""One model process from its supervisor's side, and causes of death in words."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.provision.local.child import Child, OutOfMemory, counters_here
from tests.support.running_farm import LIMIT_S, Farm, wait_until


@pytest.fixture
def children() -> Iterator[list[Child]]:
    started: list[Child] = []
    yield started
    for child in started:
        child.close()


@pytest.fixture
def child(children: list[Child], farm: Farm, models: Path, tmp_path: Path) -> Child:
    arguments = [f"{models}:gate", "--connect", str(farm.connect)]
    children.append(Child(arguments, log=tmp_path / "log", environment=os.environ))
    return children[0]


def wait_for_code(child: Child) -> int:
    wait_until(lambda: child.code() is not None, "the process has ended")
    code = child.code()
    assert code is not None
    return code


def test_a_child_tells_its_name_what_it_runs_and_its_goodbye(
    farm: Farm, child: Child, tmp_path: Path
) -> None:
    farm.wait_for_workers(1)
    child.listen()
    assert [child.status.worker] == farm.wait_for_workers(1)
    assert child.status.worker.split("/")[1].startswith(f"{child.pid}-")
    assert child.status.ready_at is not None

    def joined() -> bool:
        child.listen()
        return child.status.joined

    wait_until(joined, "it says that the farm has accepted it")
    assert child.log.stat().st_mode & 0o777 == 0o600
    assert (child.talks, child.status.done, child.status.error) == (True, False, "")
    assert child.busy_since() is None
    call = farm.submit("gate", 0.5)
    wait_until(child.busy_since, "the call runs")
    running = child.running()
    assert running is not None
    assert len(running.tasks or ()) == 1
    child.drain()
    (tmp_path / "open").touch()
    call.result(LIMIT_S)
    assert wait_for_code(child) == 0
    child.listen()
    assert (child.talks, child.status.done) == (False, True)
    assert child.busy_since() is None


def test_models_that_cannot_be_had(children: list[Child], farm: Farm, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of an earlier life\n" * 100)
    arguments = ["no.py", "--connect", str(farm.connect)]
    child = Child(arguments, log=log, environment=os.environ)
    children.append(child)
    assert wait_for_code(child) == 78
    child.listen()
    assert "there is no file 'no.py'" in child.status.error
    assert child.status.ready_at is None
    assert "earlier life" not in child.last_lines()


def test_a_process_that_cannot_be_started_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        Child(["m.py"], log=tmp_path / "log", environment=os.environ)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_kernels_count_is_evidence_for_a_few_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = tmp_path / "vmstat"
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    counters.write_text("nr_free_pages 5\noom_kill 3\nx 1\n")
    watch = OutOfMemory(counters)
    assert not watch.happened()
    counters.write_text("nr_free_pages 5\noom_kill 4\nx 1\n")
    assert watch.happened()
    for _ in range(20):
        now += 1.5
        watch.look()
    assert not watch.happened()


def test_a_machine_without_such_a_count(tmp_path: Path) -> None:
    watch = OutOfMemory(tmp_path / "none")
    watch.look()
    assert not watch.happened()


def test_the_count_of_the_own_control_group_is_read(tmp_path: Path) -> None:
    """Others on the machine may run out of memory, too."""
    machine = tmp_path / "proc/vmstat"
    assert counters_here(tmp_path) == machine
    groups = tmp_path / "proc/self/cgroup"
    groups.parent.mkdir(parents=True)
    groups.write_text("9:name=systemd:/x\n5:cpu,cpuset:/x\n4:memory:/jobs/1\n0::/jobs/2\n")
    assert counters_here(tmp_path) == machine
    for name in ("memory/jobs/1/memory.oom_control", "jobs/2/memory.events"):
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True)
        file.write_text("under_oom 0\n")
        assert counters_here(tmp_path) == machine  # an old kernel
        file.write_text("under_oom 0\noom_kill 2\n")
        assert counters_here(tmp_path) == file
        watch = OutOfMemory(file)
        assert not watch.happened()
        file.write_text("under_oom 0\noom_kill 3\n")
        assert watch.happened()
        file.unlink()
