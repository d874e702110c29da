"""A group of ranks from its supervisor's side."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from farm.provision.local.group import Group, Launch
from farm.worker.mpi.world import WorldError
from tests.support.running_farm import LIMIT_S, Farm, wait_until

Start = Callable[..., Group]


@pytest.fixture
def start(farm: Farm, models: Path, tmp_path: Path) -> Iterator[Start]:
    groups: list[Group] = []

    def start(launch: Launch, *, model: str = "sleep") -> Group:
        arguments = [f"{models}:{model}", "--connect", str(farm.connect)]
        log = tmp_path / "log"
        groups.append(Group(launch, arguments, log=log, environment=os.environ, loopback=True))
        return groups[-1]

    yield start
    for group in groups:
        group.close()


def wait_for_code(group: Group) -> int:
    def ended() -> bool:
        # In the supervisor's order: messages sent before the end are read first.
        over = group.code() is not None
        group.listen()
        return over

    wait_until(ended, "the group has ended")
    code = group.code()
    assert code is not None
    return code


def pid_of(worker: str) -> int:
    """That of rank 0."""
    return int(worker.split("/")[1].split("-")[0])


def test_the_words_of_a_launch_line() -> None:
    assert Launch(3).words()[1:] == ["-n", "3"]
    assert Launch(8, f"'{sys.executable}' -x 'a b' --ntasks={{ranks}}").words() == [
        sys.executable,
        *("-x", "a b", "--ntasks=8"),
    ]
    with pytest.raises(WorldError, match="no launcher 'sruhn'"):
        Launch(3, "sruhn -n {ranks}").words()


def test_a_group_tells_its_name_what_it_runs_and_its_goodbye(
    farm: Farm, start: Start, tmp_path: Path
) -> None:
    group = start(Launch(2), model="gate")
    names = farm.wait_for_workers(1)
    group.listen()
    assert [group.status.worker] == names
    assert (group.talks, group.status.done, group.busy_since()) == (True, False, None)
    call = farm.submit("gate", 0.5)

    def busy() -> bool:
        group.listen()
        return group.busy_since() is not None

    wait_until(busy, "the call runs")
    running = group.running()
    assert running is not None
    assert len(running.tasks or ()) == 1
    group.drain()
    (tmp_path / "open").touch()
    assert call.result(LIMIT_S).outputs[0][0] == 0.5
    assert wait_for_code(group) == 0
    group.listen()
    assert (group.talks, group.status.done, group.busy_since()) == (False, True, None)
    assert farm.losses() == []


def test_a_killed_group_says_no_goodbye_and_its_ranks_are_gone(farm: Farm, start: Start) -> None:
    group = start(Launch(2))
    (name,) = farm.wait_for_workers(1)
    rank_0 = pid_of(name)
    group.kill()
    assert wait_for_code(group) != 0
    group.listen()
    assert (group.talks, group.status.done) == (False, False)
    wait_until(lambda: not Path(f"/proc/{rank_0}/exe").exists(), "rank 0 is gone")
    group.kill()
    group.drain()


def test_a_stopped_rank_is_seen_although_it_is_the_launchers_child(
    farm: Farm, start: Start
) -> None:
    group = start(Launch(2))
    farm.wait_for_workers(1)
    group.listen()
    assert [group.stopped_s(now) for now in (0.0, 0.5)] == [0.0, 0.0]
    ranks = [
        child
        for child in psutil.Process(group.pid).children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE and "farm.provision.local.rank" in child.cmdline()
    ]
    assert len(ranks) == 2
    for rank in ranks:
        rank.suspend()
        wait_until(lambda: rank.status() == psutil.STATUS_STOPPED, "it is stopped")  # noqa: B023
        assert [group.stopped_s(now) for now in (1.0, 1.5)] == [0.0, 0.5]
        rank.resume()
        wait_until(lambda: rank.status() != psutil.STATUS_STOPPED, "it goes on")  # noqa: B023
        assert group.stopped_s(2.0) == 0.0


def test_a_launcher_that_does_not_notice_is_killed(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.provision.local.group.NOTICE_WITHIN_S", 0.2)
    deaf = tmp_path / "deaf"
    deaf.write_text("#!/bin/sh\ntrap '' TERM\ntouch $0.started\nwhile :; do sleep 0.05; done\n")
    deaf.chmod(0o755)
    group = start(Launch(1, str(deaf)))
    wait_until((tmp_path / "deaf.started").exists, "the launcher has started")
    group.kill()
    assert wait_for_code(group) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("launch", "model", "said"),
    [
        (Launch(2), "none_such", ["of 2: ", "there is no 'none_such' in"]),
        (
            Launch(2, f"{Path(sys.executable).parent / 'mpiexec'} -n 1"),
            "sleep",
            ["this MPI world has 1 rank, expected 2", "--mpi=pmi2"],
        ),
    ],
    ids=["no such model", "lone worlds"],
)
def test_what_keeps_a_group_from_starting_is_told(
    start: Start, launch: Launch, model: str, said: list[str]
) -> None:
    group = start(launch, model=model)
    assert wait_for_code(group) == 78
    group.listen()
    assert all(text in group.status.error for text in said), group.status.error
    assert group.status.ready_at is None


def test_the_status_that_a_rank_reports_counts_from_the_first_look_at_the_end(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the launcher ends during the look before."""
    group = start(Launch(1, "false"))
    wait_until(group._process.has_ended, "the launcher has ended")
    has_ended = iter([False, True])
    monkeypatch.setattr(group._process, "has_ended", lambda: next(has_ended, True))
    monkeypatch.setattr(group._lines, "read", lambda: iter([{"code": 78}]))
    assert [group.code(), group.code()] == [None, 78]


def test_a_launcher_that_passes_no_environment_on_is_told(start: Start, tmp_path: Path) -> None:
    group = start(Launch(1, "env -u FARM_SUPERVISOR"))
    assert wait_for_code(group) == 78
    assert "FARM_SUPERVISOR is not set here" in group.last_lines()


def test_deaths_in_words(farm: Farm, start: Start) -> None:
    group = start(Launch(2))
    (name,) = farm.wait_for_workers(1)
    os.kill(pid_of(name), signal.SIGKILL)
    code = wait_for_code(group)
    assert group.why(code, out_of_memory=False) == "rank 0 of 2 died: signal SIGKILL"
    assert group.why(code, out_of_memory=True) == "rank 0 of 2 died: killed (out of memory?)"
    assert not group.crashed(), "it was killed from outside"


def test_the_end_of_a_launcher_that_takes_its_ranks_along_names_none(
    farm: Farm, start: Start
) -> None:
    group = start(Launch(2))
    farm.wait_for_workers(1)
    for process in psutil.Process(group.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "rank_parent.py" in " ".join(process.cmdline()):
                process.kill()
    code = wait_for_code(group)
    assert group.why(code, out_of_memory=False).startswith("the launcher ended its 2 ranks: ")
    assert not group.crashed()
