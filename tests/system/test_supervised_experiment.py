"""Experiments on a farm whose front door is killed and comes back."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from subprocess import Popen

import pytest

from farm.experiment.state.events import Failed, Told
from farm.experiment.state.journal import read_journal
from farm.transports.connection import Connection
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import LIMIT_S, farm_command
from tests.support.experiment_configs import sobol_config
from tests.support.experiment_server import Client
from tests.support.supervised_farm import SupervisedFarm, supervised

BOWL = """
import os, time
import farm

@farm.model(inputs={"x": 1, "y": 1}, outputs={"height": 1})
def bowl(x, y):
    with open("ran", "a") as file:
        file.write(".")
    time.sleep(0.05)
    while os.path.getsize("ran") > 80 and not os.path.exists("killed"):
        time.sleep(0.01)
    return -(x - 0.3) ** 2 - (y - 0.7) ** 2
"""

"""Its runs wait after some eighty points until the front door has been killed."""

POINTS = 120

CONFIG = sobol_config("bowl", POINTS, ("x", "y"), "in_flight = 4\n")


def told(journal: Path, number: int) -> list[int]:
    """Return the points of an experiment that were told, each as often as it was. None failed."""
    if not journal.exists():
        return []
    events = [event for event in read_journal(journal) if event.experiment == number]
    assert not [event for event in events if isinstance(event, Failed)]
    points = [id for event in events if isinstance(event, Told) for id in event.ids]
    return sorted(point for point in points if point is not None)


def kill_twice(
    farm: SupervisedFarm, journal: Path, number: int, loop: Popen[str] | None = None
) -> None:
    """Kill the front door during an experiment, and wait each time until it is back.

    loop: the process of the experiment, whose errors are shown if it ends before.
    """
    for count in (20, 60):
        wait_until(functools.partial(has_told, journal, number, count, loop), LIMIT_S)
        killed = farm.kill_front_door()
        assert len(told(journal, number)) < POINTS, "it was killed during the experiment"
        farm.up(after=killed)
    (farm.folder.parent / "killed").touch()
    assert farm.restarts()["count"] == 2


def has_told(journal: Path, number: int, count: int, loop: Popen[str] | None) -> bool:
    assert loop is None or loop.poll() is None, loop.communicate()
    return len(told(journal, number)) >= count


def port_of(connection: Connection) -> int:
    return int(str(connection.addresses["aepsych"]).rpartition(":")[2])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bowl.py").write_text(BOWL)
    (tmp_path / "tune.ini").write_text(CONFIG)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("way", ["native", "http"])
def test_a_killed_front_door_costs_an_experiment_a_pause(folder: Path, way: str) -> None:
    """The loop is in a process of its own, which is a client of the farm."""
    journal = folder / "tune.db"
    with supervised(folder, "bowl.py", "-n", "2") as each:
        connection = each.up()
        to = connection.url if way == "http" else "run"
        words = ("experiment", "run", "tune.ini", "--to", to, "--json")
        with farm_command(*words, cwd=folder) as experiment:
            kill_twice(each, journal, 0, experiment)
            out, errors = experiment.communicate(timeout=LIMIT_S)
        assert experiment.returncode == 0, errors
        assert json.loads(out)["phase"] == "ended"
        assert told(journal, 0) == list(range(POINTS))
        assert each.stop() == 0


@pytest.mark.slow
def test_experiments_in_a_front_door_that_is_killed_go_on(folder: Path) -> None:
    """One that the farm runs by itself, and one whose client asks before the kill and tells after.

    The protocol of AEPsych has no second try: the client connects again.
    """
    journal = folder / "run" / "experiments.db"
    options = ["bowl.py", "-n", "2", "--aepsych", "127.0.0.1:0"]
    with supervised(folder, *options) as each:
        port = port_of(each.up())
        with Client(port) as client:
            by_hand = client.ask("setup", {"config_str": CONFIG})["strat_id"]
            asked = client.ask("ask")["config"]
            number = client.ask("setup", {"config_str": CONFIG})["strat_id"]
            client.ask("run")
            kill_twice(each, journal, number)
            with pytest.raises(ConnectionError):
                client.ask("info")
        assert port_of(each.up()) == port
        with Client(port) as client:
            client.ask("resume", {"strat_id": by_hand})
            answer = client.ask("tell", {"config": asked, "outcome": 1.0})
            assert answer["trials_recorded"] == 1
            assert client.ask("status")["pending"] == 0, "the answer is that of the asked point"
            wait_until(lambda: client.ask("status", {"strat_id": number})["run"] == "ended")
        assert told(journal, number) == list(range(POINTS))
        assert each.stop() == 0
