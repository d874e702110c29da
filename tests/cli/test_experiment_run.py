"""`farm experiment run` as a user types it: finished, killed, interrupted, watched, wrong."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from rich.console import Console

from farm.cli.experiment_run import LoopDisplay
from farm.experiment.loop.progress import LoopProgress
from farm.experiment.state.events import Asked, Failed, RunPhase, Told
from farm.experiment.state.journal import read_journal
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import LIMIT_S, farm_command, run_farm, serving
from tests.support.experiment_server import Client

BOWL = """
import pathlib, time
import farm

HELD = pathlib.Path("held")  # has the number of evaluations that it lets pass

def holds(number):
    try:
        return number > int(HELD.read_text() or 0)
    except FileNotFoundError:
        return False

@farm.model(name="bowl", inputs={"x": 1, "y": 1}, outputs={"height": 1})
def bowl(x, y, config):
    with open("evaluated", "a") as file:
        file.write(f"{float(x[0])!r}\\n")
    number = len(open("evaluated").readlines())
    while holds(number):
        time.sleep(0.01)
    if x[0] > config.get("edge", 2):
        raise ValueError("beyond the edge")
    return -(x - 0.3) ** 2 - (y - 0.7) ** 2
"""

CONFIG = """[common]
parnames = [x, y]
outcome_types = [continuous]
strategy_names = [sobol, random]
lb = [0, 0]
ub = [1, 1]
[sobol]
generator = SobolGenerator
min_asks = 8
[random]
generator = RandomGenerator
min_asks = 12
[farm]
model = bowl
in_flight = 2
"""

RUN = ("experiment", "run", "tune.ini")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bowl.py").write_text(BOWL)
    (tmp_path / "tune.ini").write_text(CONFIG)
    return tmp_path


def told_ids(journal: Path) -> list[int]:
    told = [event for event in read_journal(journal) if isinstance(event, Told)]
    return sorted(id for event in told for id in event.ids if id is not None)


def started(folder: Path, *options: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return farm_command(*RUN, "bowl.py", *options, cwd=folder)


def evaluated(folder: Path) -> int:
    file = folder / "evaluated"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.mark.slow
def test_from_configuration_to_the_end(folder: Path) -> None:
    status, out, err = run_farm(*RUN, "bowl.py", "--workers", "2", "--json", cwd=folder)
    assert status == 0, err
    progress = json.loads(out)
    assert progress["told"] == progress["evaluations"] >= 20
    assert progress["phase"] == "ended"
    assert "the experiment is finished" in err
    assert re.search(r"best: x = 0\.\d+, y = 0\.\d+: outcome_1 = -0\.\d+", err)
    assert told_ids(folder / "tune.db") == list(range(progress["told"]))
    assert not (folder / "tune.db.run").exists(), "the farm's run folder is gone with it"

    status, out, err = run_farm(*RUN, "bowl.py", "--json", cwd=folder)
    assert status == 0, err
    assert (json.loads(out)["phase"], json.loads(out)["told"]) == ("ended", 0)
    assert "experiment 0 in tune.db has this configuration and is finished; --new" in err
    status, _, err = run_farm(*RUN, "bowl.py", "--new", "--budget", "3", cwd=folder)
    assert status == 0
    assert "experiment 1 ended: the budget of 3 evaluations is spent" in err
    assert "3 told and 0 failed" in err


@pytest.mark.slow
def test_killed_it_goes_on_where_it_was(folder: Path) -> None:
    """The workers die too; points in flight are evaluated again, and each is told once."""
    journal = folder / "tune.db"
    with started(folder, "--workers", "2") as process:
        wait_until(lambda: evaluated(folder) >= 6, LIMIT_S)
        (folder / "held").touch()
        wait_until(lambda: journal.exists() and len(told_ids(journal)) >= 3, LIMIT_S)
        process.kill()
        process.wait(LIMIT_S)
    before = told_ids(journal)
    assert 3 <= len(before) < 20
    (folder / "held").unlink()
    status, _, err = run_farm(*RUN, "bowl.py", "--workers", "2", cwd=folder)
    assert status == 0, err
    assert f"continues experiment 0 in tune.db: {len(before)} told" in err
    events = list(read_journal(journal))
    asked = [id for event in events if isinstance(event, Asked) for id in event.ids]
    assert asked == list(range(len(asked)))
    assert told_ids(journal) == asked
    points = [tuple(p) for e in events if isinstance(e, Asked) for p in e.points[:, 0].tolist()]
    assert len(set(points)) == len(points), "the sequence goes on, not again"


@pytest.mark.slow
def test_killed_while_the_last_points_are_evaluated(folder: Path) -> None:
    """All points are asked, so the strategies are finished; points in flight are not lost."""
    config = folder / "tune.ini"
    config.write_text(config.read_text().replace("[sobol, random]", "[sobol]"))
    (folder / "held").write_text("7")
    with started(folder, "--workers", "1", "--in-flight", "1") as process:
        wait_until(lambda: evaluated(folder) == 8, LIMIT_S)
        process.kill()
        process.wait(LIMIT_S)
    assert told_ids(folder / "tune.db") == list(range(7))
    (folder / "held").unlink()
    status, _, err = run_farm(*RUN, "bowl.py", cwd=folder)
    assert status == 0, err
    assert "continues experiment 0 in tune.db: 7 told" in err
    assert told_ids(folder / "tune.db") == list(range(8))


@pytest.mark.slow
@pytest.mark.parametrize("in_job", [False, True])
def test_the_first_request_waits_for_what_is_in_flight_and_can_go_on(
    folder: Path, in_job: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a batch job SIGTERM asks as Ctrl-C does, however often it comes."""
    (folder / "held").touch()
    if in_job:
        monkeypatch.setenv("SLURM_JOB_ID", "17")
        monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 3600))
    with started(folder, "--workers", "2") as process:
        wait_until(lambda: evaluated(folder) == 2, LIMIT_S)
        process.send_signal(signal.SIGTERM if in_job else signal.SIGINT)
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "waiting for 2 points in flight" in line
        if in_job:
            process.send_signal(signal.SIGTERM)
        (folder / "held").unlink()
        _, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 130, err
    assert "paused: interrupted" in err
    assert told_ids(folder / "tune.db") == [0, 1]
    status, _, err = run_farm(*RUN, "bowl.py", cwd=folder)
    assert status == 0, err


@pytest.mark.slow
def test_twice_leaves_at_once(folder: Path) -> None:
    (folder / "held").touch()
    with started(folder, "--workers", "1") as process:
        wait_until(lambda: evaluated(folder) == 1, LIMIT_S)
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 130, err
    assert told_ids(folder / "tune.db") == []


@pytest.mark.slow
def test_clients_of_aepsych_look_on(folder: Path) -> None:
    (folder / "held").touch()
    with started(folder, "--workers", "2", "--aepsych", "127.0.0.1:0") as process:
        assert process.stderr is not None
        found = re.search(r"127\.0\.0\.1:(\d+)", process.stderr.readline())
        assert found is not None
        wait_until(lambda: evaluated(folder) == 2, LIMIT_S)
        with Client(int(found[1])) as client:
            assert client.ask("resume", {"strat_id": 0}) == {"strat_id": 0}
            info = client.ask("info")
            assert info["current_strat_name"] == "sobol"
            assert (info["current_strat_data_pts"], info["current_strat_finished"]) == (0, False)
            status = client.ask("status")
            assert status["pending"] >= 2
            assert (status["loop"]["in_flight"], status["loop"]["told"]) == (2, 0)
            assert "Ctrl-C pauses it" in client.say('{"type": "pause"}')["server_error"]
        (folder / "held").unlink()
        _, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, err


@pytest.mark.slow
def test_a_running_farm_evaluates(folder: Path) -> None:
    with serving(folder, "bowl.py", "--workers", "2") as served:
        status, _, err = run_farm(*RUN, "--to", str(served.folder), cwd=folder)
        assert status == 0, err
        status, _, err = run_farm(*RUN, "--new", "--to", served.connection.url, cwd=folder)
        assert status == 0, err


@pytest.mark.slow
def test_a_model_that_fails_everywhere(folder: Path) -> None:
    with (folder / "tune.ini").open("a") as file:
        file.write("config.edge = -1\nretries = 0\n")
    status, _, err = run_farm(*RUN, "bowl.py", "--budget", "50", cwd=folder)
    assert status == 3
    assert "points in a row failed" in err
    assert "beyond the edge" in err


@pytest.mark.slow
def test_a_refused_configuration_leaves_nothing_behind(folder: Path) -> None:
    """After the mistake is corrected, the journal has one experiment, and no log is left."""
    config = folder / "tune.ini"
    right = config.read_text()
    for wrong, complaint in (
        (right.partition("[farm]")[0], "[farm] is missing"),
        (right + "outcome.outcome_1 = depth\n", "depth"),
        (right.replace("model = bowl", "model = ball"), "ball"),
        (right.replace("min_asks = 12", "run_indefinitely = true"), "budget"),
    ):
        config.write_text(wrong)
        status, out, err = run_farm(*RUN, "bowl.py", "--workers", "1", cwd=folder)
        assert (status, out) == (2, "")
        (line,) = err.splitlines()
        assert line.startswith("farm: error: ")
        assert complaint in line
    config.write_text(right)
    with socket.create_server(("127.0.0.1", 0)) as other:
        there = f"127.0.0.1:{other.getsockname()[1]}"
        status, _, err = run_farm(*RUN, "bowl.py", "--workers", "1", "--aepsych", there, cwd=folder)
        assert (status, f"cannot listen on {there}" in err) == (2, True)
    assert list(read_journal(folder / "tune.db")) == []
    assert not (folder / "tune.db.run").exists()


def test_a_configuration_that_is_no_text(folder: Path) -> None:
    (folder / "tune.ini").write_bytes(b"# caf\xe9\n" + CONFIG.encode())
    status, out, err = run_farm(*RUN, "bowl.py", cwd=folder)
    assert (status, out) == (2, "")
    assert err == "farm: error: tune.ini is not UTF-8: byte 0xe9 at 5\n"


@pytest.mark.slow
def test_one_journal_is_for_one_run(folder: Path) -> None:
    (folder / "held").touch()
    with started(folder, "--workers", "1") as process:
        wait_until(lambda: evaluated(folder) == 1, LIMIT_S)
        status, _, err = run_farm(*RUN, "bowl.py", cwd=folder)
        assert status == 2
        assert err.startswith("farm: error: another server has the journal tune.db;")
        process.kill()


@pytest.mark.slow
def test_another_configuration_is_another_experiment(folder: Path) -> None:
    assert run_farm(*RUN, "bowl.py", "--budget", "2", cwd=folder)[0] == 0
    with (folder / "tune.ini").open("a") as file:
        file.write("budget = 3\n")
    status, _, err = run_farm(*RUN, "bowl.py", cwd=folder)
    assert status == 0
    assert "starts experiment 1 in tune.db: earlier ones have another configuration" in err


@pytest.mark.slow
def test_a_model_that_hangs_holds_up_no_other_point(folder: Path) -> None:
    """The time limit of [farm] also applies to the farm that is started for the loop."""
    model = (folder / "bowl.py").read_text()
    hang = "    if number in (2, 3):\n        time.sleep(1000)\n"
    (folder / "bowl.py").write_text(model.replace("    if x[0] >", hang + "    if x[0] >"))
    with (folder / "tune.ini").open("a") as file:
        file.write("time_limit = 1\n")
    status, _, err = run_farm(*RUN, "bowl.py", "--workers", "1", "--in-flight", "1", cwd=folder)
    assert status == 0, err
    failed = [event for event in read_journal(folder / "tune.db") if isinstance(event, Failed)]
    assert [(e.ids, e.attempts, e.error.split(":")[0]) for e in failed] == [
        ((1,), 2, "TimeLimitExceeded")
    ]


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    progress = LoopProgress(
        experiment=0,
        phase=RunPhase.RUNNING,
        why="",
        strategy="opt",
        evaluations=12,
        budget=None,
        told=8,
        failed=1,
        in_flight=2,
        places=2,
        ready=1,
        asking=False,
        fillers=0,
        elapsed_s=61.0,
        utilisation=0.9,
        message="",
    )
    console = Console(file=sys.stdout, force_terminal=False)
    with LoopDisplay(console) as display:
        for elapsed_s in (59.0, 60.0, 61.0):
            display.show(dataclasses.replace(progress, elapsed_s=elapsed_s), "best 3")
    assert capsys.readouterr().out == "opt: 9 evaluations, 2 in flight, 1 failed, best 3\n"
