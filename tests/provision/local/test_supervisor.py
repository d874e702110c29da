"""The supervisor with real processes: deaths, restarts, limits, drains, and its own end."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from farm.cli.signals import drained_by_signals
from farm.errors import ModelFailed, TimeLimitExceeded, Unavailable, WorkerLost
from farm.monitoring import repetitions
from farm.provision.local.child import OutOfMemory
from farm.provision.local.group import Launch
from farm.provision.local.starter import WorkerSettings
from farm.provision.local.supervisor import Deaths, Workers, WorkersFailed
from farm.scheduler.state import WorkerId
from farm.worker.mpi.world import launcher_path
from tests.provision.conftest import Start, kill_one
from tests.support.ended import has_ended
from tests.support.running_farm import LIMIT_S, Farm, wait_until


@pytest.fixture
def start(begin: Start, models: Path) -> Start:
    """Starts workers of the given models."""

    def start(*names: str, count: int = 1, **settings: Any) -> Workers:
        return begin([f"{models}:{name}" for name in names] or [str(models)], count, **settings)

    return start


def log_text(tmp_path: Path) -> str:
    return "".join(path.read_text() for path in sorted((tmp_path / "logs").iterdir()))


def wait_for_losses(farm: Farm, count: int) -> None:
    wait_until(lambda: len(farm.losses()) == count, f"{count} losses are told")


def begun(tmp_path: Path) -> None:
    """Wait until the model `sleep` or `hold` has begun."""
    wait_until((tmp_path / "sleeping").exists, "the model has begun")


# --- serving ----------------------------------------------------------------------------------


def test_processes_serve_and_end_when_drained(farm: Farm, start: Start, tmp_path: Path) -> None:
    workers = start("double", "die", count=2)
    assert len(set(workers.pids())) == 2
    names = farm.wait_for_workers(2)
    assert all(re.fullmatch(r".+/\d+-[0-9a-f]{4}", name) for name in names)
    workers._restart(["a worker of another supervisor", ""])
    assert not workers.ready.cancel()
    assert not workers.ended.cancel()
    futures = [farm.submit("double", i) for i in range(100)]
    assert [f.result(LIMIT_S).outputs[0][0] for f in futures] == [2 * i for i in range(100)]
    pids = workers.pids()
    workers.drain()
    workers.drain()
    assert workers.ended.result(LIMIT_S) is None
    assert workers.pids() == []
    assert all(has_ended(pid) for pid in pids)
    assert farm.snapshot()["workers"] == []
    assert farm.losses() == []
    assert len(list((tmp_path / "logs").glob("worker-*.log"))) == 2


def test_they_have_an_environment_and_the_dispatcher_may_end_them(
    farm: Farm, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("NPROC", raising=False)
    workers = start("environment", devices=["7"])
    cores = len(os.sched_getaffinity(0))
    assert farm.call("environment", 0) == 1_000_000 * cores + 7000 + cores
    (row,) = farm.snapshot()["workers"]
    assert row["device"] == "7"
    farm.stop_workers()
    workers.ended.result(LIMIT_S)


# --- deaths -----------------------------------------------------------------------------------


def test_a_death_is_told_with_its_reason_and_a_new_process_comes(
    farm: Farm, start: Start, tmp_path: Path
) -> None:
    start("die")
    with pytest.raises(WorkerLost, match="signal SIGSEGV"):
        farm.submit("die", 1).result(LIMIT_S)
    assert set(farm.losses()) == {"signal SIGSEGV"}
    assert farm.call("die", 7) == 7
    text = log_text(tmp_path)
    assert text.count("about to die") == len(farm.losses()) + 1
    assert text.count("--- farm starts a worker process") == len(farm.losses()) + 1
    assert "Segmentation fault" in text, "faulthandler tells where"


def test_what_python_can_catch_kills_no_process(farm: Farm, start: Start, tmp_path: Path) -> None:
    workers = start("die")
    (pid,) = workers.pids()
    for how, message in ((4, "SystemExit: leaving"), (5, "MemoryError")):
        with pytest.raises(ModelFailed, match=message):
            farm.submit("die", how).result(LIMIT_S)
    assert farm.call("die", 7) == 7
    assert workers.pids() == [pid]
    assert log_text(tmp_path).count("model 'die' failed: Traceback") == 2


def test_what_a_model_started_dies_with_its_process(farm: Farm, start: Start) -> None:
    workers = start("spawn")
    program = int(farm.call("spawn", 0))
    assert not has_ended(program)
    os.kill(workers.pids()[0], signal.SIGKILL)
    wait_until(lambda: has_ended(program), "the program has ended")


@pytest.mark.parametrize(
    ("crashes", "served_s", "delay_s"),
    [
        (1, 5.0, 0.0),
        (2, 5.0, 0.5),
        (3, 5.0, 1.0),
        (5, 5.0, 4.0),
        (6, 5.0, 5.0),
        (9, 0.1, 0.5),
        (1, None, 0.5),
        (2, None, 1.0),
        (6, None, 16.0),
        (7, None, 20.0),
        (5000, None, 20.0),
    ],
)
def test_restarts_come_ever_later_but_not_later_than_a_process_served(
    crashes: int, served_s: float | None, delay_s: float
) -> None:
    settings = WorkerSettings(["m.py"], 1, Path("f"), Path("logs"), first_s=0.5, longest_s=20.0)
    assert settings.restart_delay_s(crashes, served_s) == delay_s


@pytest.mark.slow
def test_crashes_in_a_row_delay_the_restart_and_a_good_while_ends_the_row(
    farm: Farm,
    start: Start,
    models: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flag = tmp_path / "broken"
    models.write_text(models.read_text() + f"if os.path.exists({str(flag)!r}): os._exit(9)\n")
    monkeypatch.setattr(repetitions, "EVERY_S", 0.0)
    workers = start("double", good_while_s=0.0)
    flag.touch()
    with caplog.at_level(logging.WARNING, "farm.provision.local.supervisor"):
        os.kill(workers.pids()[0], signal.SIGKILL)
        wait_until(lambda: caplog.text.count("crashes at start") == 2, "two crashes at start")
        flag.unlink()
        farm.wait_for_workers(1)
        kill_one(farm, workers)
    delays = re.findall(r"again in (\S+) s", caplog.text)
    assert [float(d) for d in delays] in ([0, 0.1, 0.2, 0], [0, 0.1, 0.2, 0.4, 0])


@pytest.mark.slow
def test_processes_that_die_again_and_again_are_few_lines(
    farm: Farm, start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repetitions, "EVERY_S", 1e6)
    with caplog.at_level(logging.WARNING, "farm.provision.local.supervisor"):
        workers = start("double", good_while_s=0.0)
        for _ in range(4):
            kill_one(farm, workers)
        assert caplog.text.count("WARNING") == 1
        workers.stop(0.0)
    first, last = [record.getMessage() for record in caplog.records]
    assert first.startswith("worker process 0 died: signal SIGKILL; starting again in 0 s; log: ")
    assert last.startswith(
        "worker processes died 3 times: signal SIGKILL; the last was process 0, starting again in "
    )


# --- processes that cannot start --------------------------------------------------------------


def failure(workers: Workers) -> WorkersFailed:
    with pytest.raises(WorkersFailed) as caught:
        workers.ended.result(LIMIT_S)
    assert workers.ready.exception() is caught.value
    return caught.value


def test_models_that_cannot_be_loaded_end_it_with_one_line(start: Start, tmp_path: Path) -> None:
    workers = start("no_such_model", ready=False)
    message = str(failure(workers))
    assert "there is no 'no_such_model' in" in message
    assert "worker-" in message
    assert "\n" not in message
    (tmp_path / "models.py").write_text("import no_such_package")
    message = str(failure(start(ready=False)))
    assert "ModuleNotFoundError: No module named 'no_such_package'" in message
    assert "models.py:1" in message
    assert "Traceback" in log_text(tmp_path)


def test_crashes_at_start_end_it_with_the_last_lines(start: Start, tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(
        "import ctypes\nprint('loading the solver', flush=True)\nctypes.string_at(0)\n"
    )
    failed = failure(start(ready=False))
    assert "crashes at start: signal SIGSEGV" in str(failed)
    assert "loading the solver" in failed.detail
    assert log_text(tmp_path).count("loading the solver") == 3


def test_a_signal_at_start_costs_nothing_and_the_next_one_a_pause(
    farm: Farm,
    start: Start,
    models: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pause of a quarter of an hour, which no test waits for."""
    flag, text = tmp_path / "may load", models.read_text()
    waits = f"import time\nprint('loading', flush=True)\nwhile not os.path.exists({str(flag)!r}): "
    models.write_text(f"import os\n{waits}time.sleep(0.01)\n{text}")
    monkeypatch.setattr(repetitions, "EVERY_S", 0.0)

    def killed(process: int, number: int) -> None:
        wait_until(lambda: log_text(tmp_path).count("loading") == process, "it loads")
        (pid,) = workers.pids()
        os.kill(pid, number)

    with caplog.at_level(logging.WARNING, "farm.provision.local.supervisor"):
        workers = start("double", ready=False, first_s=1000.0, longest_s=1000.0)
        killed(1, signal.SIGKILL)
        killed(2, signal.SIGKILL)
        wait_until(lambda: "crashes at start" in caplog.text, "it is a crash")
        assert workers.pids() == []
        workers._seats[0].start_at, workers._seats[0].killed_at = 0.0, -1e9  # long after that
        killed(3, signal.SIGTERM)
        flag.touch()
        workers.ready.result(LIMIT_S)
    lines = [record.getMessage().partition("; log")[0] for record in caplog.records]
    assert lines == [
        "worker process 0 was killed at start: signal SIGKILL; starting again at once",
        "worker process 0 crashes at start: signal SIGKILL; starting again in 1e+03 s",
        "worker process 0 was killed at start: signal SIGTERM; starting again at once",
    ]


def test_what_the_kernel_kills_at_start_crashes(
    start: Start,
    models: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For lack of memory the next one would be killed, too."""
    models.write_text("import time\nprint('loading', flush=True)\ntime.sleep(1000)")
    monkeypatch.setattr(OutOfMemory, "happened", lambda self: True)
    with caplog.at_level(logging.WARNING, "farm.provision.local.supervisor"):
        workers = start(ready=False, first_s=1000.0, longest_s=1000.0)
        wait_until(lambda: "loading" in log_text(tmp_path), "it loads")
        os.kill(workers.pids()[0], signal.SIGKILL)
        wait_until(lambda: "crashes at start: killed (out of memory?)" in caplog.text, "a crash")


def test_a_file_that_breaks_later_does_not_end_what_serves(
    farm: Farm, start: Start, models: Path, tmp_path: Path
) -> None:
    workers = start("double", count=2)
    good = models.read_text()
    models.write_text("this is no Python")
    first, second = workers.pids()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: "SyntaxError" in log_text(tmp_path), "the new process cannot load")
    assert farm.call("double", 4) == 8
    assert second in workers.pids()
    models.write_text(good)
    farm.wait_for_workers(2)


def test_no_connection_file(tmp_path: Path) -> None:
    settings = WorkerSettings(["m.py"], 1, tmp_path / "farm.json", tmp_path / "logs")
    with pytest.raises(Unavailable, match="no connection file"):
        Workers(settings).start()


# --- time limit -------------------------------------------------------------------------------


def test_a_call_over_the_time_limit_is_killed_and_not_repeated(farm: Farm, start: Start) -> None:
    workers = start("sleep", "hold", time_limit_s=1.5)
    pids = workers.pids()
    within = [farm.submit("sleep", 0.6) for _ in range(3)]  # which add up to more
    assert [f.result(LIMIT_S).outputs[0][0] for f in within] == [0.6] * 3
    assert workers.pids() == pids
    began = time.monotonic()
    with pytest.raises(TimeLimitExceeded, match=r"time limit of 1\.5 s"):
        farm.submit("hold", 1000).result(LIMIT_S)
    assert time.monotonic() - began >= 1.5
    assert farm.losses() == ["time limit of 1.5 s"]
    assert farm.call("hold", 0.01) == 0.01


@pytest.mark.slow
def test_holding_the_interpreter_is_not_death(farm: Farm, start: Start) -> None:
    start("hold", time_limit_s=60)
    assert farm.call("hold", 12) == 12
    assert farm.losses() == []


# --- stopped processes ------------------------------------------------------------------------


def test_a_busy_process_that_is_stopped_is_given_up_and_replaced(
    farm: Farm, start: Start, tmp_path: Path
) -> None:
    workers = start("gate", frozen_after_s=1.0)
    (old,) = workers.pids()
    call = farm.submit("gate", 1.5)
    begun(tmp_path)
    os.kill(old, signal.SIGSTOP)
    wait_for_losses(farm, 1)
    (tmp_path / "open").touch()
    assert call.result(LIMIT_S).outputs[0][0] == 1.5
    assert farm.losses() == ["it was stopped (SIGSTOP) for 1 s"]
    assert has_ended(old)
    assert workers.pids() != [old]


# --- drain and stop ---------------------------------------------------------------------------


def test_drain_finishes_what_runs_and_hands_back_the_rest(
    farm: Farm, start: Start, tmp_path: Path
) -> None:
    workers = start("gate")
    running = farm.submit("gate", 1.0)
    begun(tmp_path)
    waiting = [farm.submit("gate", 2.0) for _ in range(3)]
    workers.drain()
    wait_until(lambda: farm.snapshot()["workers"][0]["slots"] == 0, "the drain is heard")
    (tmp_path / "open").touch()
    assert running.result(LIMIT_S).outputs[0][0] == 1.0
    workers.ended.result(LIMIT_S)
    assert farm.losses() == []
    assert not any(f.done() for f in waiting)
    start("gate")
    assert [f.result(LIMIT_S).outputs[0][0] for f in waiting] == [2.0] * 3


def test_stop_kills_after_its_grace_and_the_call_runs_elsewhere(
    farm: Farm, start: Start, tmp_path: Path
) -> None:
    workers = start("gate")
    call = farm.submit("gate", 1.5)
    begun(tmp_path)
    began = time.monotonic()
    workers.stop(0.2)
    assert time.monotonic() - began >= 0.2
    assert farm.losses() == ["stopped by its supervisor"]
    assert not call.done()
    (tmp_path / "open").touch()
    start("gate")
    assert call.result(LIMIT_S).outputs[0][0] == 1.5


def test_draining_while_models_load_does_not_wait_for_them(
    start: Start, models: Path, tmp_path: Path
) -> None:
    models.write_text("import time\nprint('loading', flush=True)\ntime.sleep(1000)")
    workers = start(ready=False)
    wait_until(lambda: "loading" in log_text(tmp_path), "the models are loading")
    workers.drain()
    workers.ended.result(LIMIT_S)


def test_a_thread_of_the_model_that_never_ends_does_not_hold_the_end(
    start: Start, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.provision.local.supervisor.GOODBYE_S", 0.2)
    endless = "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"
    models.write_text(models.read_text() + endless)
    workers = start("double")
    workers.drain()
    workers.ended.result(LIMIT_S)


def test_an_idle_process_that_is_killed_is_replaced_and_leaves_no_descriptor(
    farm: Farm, start: Start
) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    workers = start("double", count=2)
    farm.call("double", 1)
    before = descriptors()
    os.kill(workers.pids()[0], signal.SIGKILL)
    wait_until(lambda: farm.losses() == ["signal SIGKILL"], "the loss is told")
    farm.wait_for_workers(2)
    farm.call("double", 1)
    wait_until(lambda: descriptors() <= before, f"{before} descriptors again")


# --- the dispatcher is gone -------------------------------------------------------------------


def test_a_dispatcher_that_is_gone_for_good_ends_all(farm: Farm, start: Start) -> None:
    workers = start("double", lost_after_s=0.5)
    farm.vanish()
    with pytest.raises(WorkersFailed, match="the dispatcher cannot be reached") as caught:
        workers.ended.result(LIMIT_S)
    assert "no farm listens at" in caught.value.detail
    farm.come_back()


def test_workers_find_the_dispatcher_that_takes_the_place_of_the_lost_one(
    farm: Farm, start: Start
) -> None:
    workers = start("double", lost_after_s=2.0)
    farm.vanish()
    farm.come_back()
    farm.wait_for_workers(1)
    assert farm.call("double", 3) == 6
    os.kill(workers.pids()[0], signal.SIGKILL)
    wait_until(lambda: farm.losses() == ["signal SIGKILL"], "the loss is told to the new one")


# --- the supervisor as a process --------------------------------------------------------------

SUPERVISOR = """
import sys
from pathlib import Path
from farm.cli.signals import drained_by_signals
from farm.provision.local.starter import WorkerSettings
from farm.provision.local.supervisor import Workers
workers = Workers(WorkerSettings(sys.argv[3:], 2, Path(sys.argv[1]), Path(sys.argv[2])))
with drained_by_signals(workers):
    workers.start()
    workers.ended.result()
"""


@pytest.fixture
def supervisor(farm: Farm, models: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A separate program that supervises two workers of the file `models`."""
    words = [str(farm.connect), str(tmp_path / "logs"), f"{models}:sleep", f"{models}:hold"]
    process = subprocess.Popen([sys.executable, "-c", SUPERVISOR, *words])
    farm.wait_for_workers(2)
    yield process
    process.kill()
    process.wait()


@pytest.mark.slow  # tests/machine/test_lifeline.py has it with less around it
def test_the_processes_die_with_a_supervisor_that_is_killed(
    farm: Farm, supervisor: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    children = [child.pid for child in psutil.Process(supervisor.pid).children()]
    assert len(children) == 2 + (sys.platform == "linux"), "the workers and their warm parent"
    call = farm.submit("hold", 1000)
    begun(tmp_path)
    supervisor.kill()
    wait_until(lambda: all(has_ended(pid) for pid in children), "the processes have ended")
    assert not call.done()
    call.cancel()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT])
def test_the_signals_that_drain(tmp_path: Path, number: signal.Signals) -> None:
    workers = Workers(WorkerSettings(["m.py"], 1, tmp_path / "farm.json", tmp_path))
    with drained_by_signals(workers):
        signal.raise_signal(number)
        assert workers.draining
        once = workers._requests.kill_at
        signal.raise_signal(number)
        assert once is None
        assert workers._requests.kill_at


def test_a_signal_drains_and_a_second_one_hurries(
    farm: Farm, supervisor: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    call = farm.submit("sleep", 1000)
    begun(tmp_path)
    supervisor.send_signal(signal.SIGUSR1)
    farm.wait_for_workers(1)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(LIMIT_S) == 0
    wait_until(lambda: farm.losses() == ["stopped by its supervisor"], "the loss is told")
    call.cancel()


def test_a_stop_is_heard_while_the_supervisor_asks_the_dispatcher(
    farm: Farm, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = start("sleep")
    asked = workers._reports.stop_asked

    def meanwhile() -> bool:
        stop = asked()
        workers.hurry(0.0)  # as from another thread
        return stop

    monkeypatch.setattr(workers._reports, "stop_asked", meanwhile)
    workers._requests.wakes.wake()
    wait_until(workers.ended.done, "the end")


# Restarts by the farm's owner


@pytest.mark.slow
@pytest.mark.parametrize("model", ["sleep", "hold"])
def test_a_worker_that_hangs_is_replaced_and_its_call_runs_elsewhere(
    farm: Farm, start: Start, tmp_path: Path, model: str
) -> None:
    start(model, "double", count=2)
    call = farm.submit(model, 1000)
    begun(tmp_path)
    (hangs,) = [row for row in farm.snapshot()["workers"] if row["in_flight"]]
    assert farm.restart(hangs["name"])
    wait_for_losses(farm, 1)
    assert farm.losses() == ["restarted by the farm's owner"]
    wait_until(lambda: hangs["name"] not in farm.wait_for_workers(2), "another one joins")
    (again,) = [row for row in farm.snapshot()["workers"] if row["in_flight"]]
    assert again["name"] != hangs["name"]
    call.cancel()


@pytest.mark.slow
def test_a_group_whose_launcher_lingers_is_replaced_too(
    farm: Farm, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.provision.local.group.NOTICE_WITHIN_S", 0.5)
    launcher = tmp_path / "launcher"
    mpiexec = launcher_path("mpiexec")
    launcher.write_text(f"#!/bin/sh\ntrap '' TERM\n{mpiexec} -n 2 \"$@\"\nsleep 1000\n")
    launcher.chmod(0o755)
    workers = start("double", launch=Launch(2, str(launcher)))
    (before,) = farm.wait_for_workers(1)
    assert farm.restart(before)
    wait_for_losses(farm, 1)
    wait_until(lambda: farm.wait_for_workers(1) != [before], "another group joins")
    assert farm.losses() == ["restarted by the farm's owner"]
    assert not workers.ended.done()


@pytest.mark.slow
def test_a_restart_counts_for_its_place_and_as_no_crash(
    farm: Farm, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    start("double", first_s=1000.0)
    for count in (1, 2, 3, 4):
        (before,) = farm.wait_for_workers(1)
        assert farm.restart(before)
        wait_for_losses(farm, count)
        # The loss is told before the worker has left.
        wait_until(lambda: farm.wait_for_workers(1) != [before], "another one joins")  # noqa: B023
        (now,) = farm.wait_for_workers(1)
        labels = farm.dispatcher._workers[WorkerId(now)].labels
        assert labels["restarts"] == str(count)
    assert farm.call("double", 2.0) == 4.0
    assert "died" not in caplog.text


@pytest.mark.slow
def test_a_worker_whose_run_is_not_needed_any_more_is_replaced_at_once(
    farm: Farm, start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If it is not its first, and has taken longer than the start of a process."""
    start("sleep", first_s=1000.0)
    farm.submit("sleep", 0).result(LIMIT_S)
    (tmp_path / "sleeping").unlink()
    call = farm.submit("sleep", 1000)
    begun(tmp_path)
    (before,) = farm.wait_for_workers(1)
    farm.answered_elsewhere(before)
    wait_until(lambda: before not in farm.wait_for_workers(1), "another one joins")
    assert farm.losses() == []
    assert "died" not in caplog.text
    call.cancel()


def test_deaths_of_one_reason_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    deaths = Deaths()
    deaths.died(0, "died", "exit code 3", "starting again in 1 s")
    deaths.died(1, "died", "exit code 4", "starting again in 1 s")
    for number in range(5):
        deaths.died(number, "died", "exit code 3", "starting again in 2 s")
    deaths.report_if_due(-math.inf)
    assert [record.getMessage() for record in caplog.records] == [
        "worker process 0 died: exit code 3; starting again in 1 s",
        "worker process 1 died: exit code 4; starting again in 1 s",
    ]
    caplog.clear()
    deaths.report_if_due(math.inf)
    assert [record.getMessage() for record in caplog.records] == [
        "worker processes died 5 times: exit code 3; the last was process 4, starting again in 2 s"
    ]
    caplog.clear()
    deaths.report()
    assert caplog.records == []
