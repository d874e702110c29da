"""`farm experiment serve`, run as a user does: started, killed at any moment, restarted."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import urllib3

from farm.cli import run
from farm.experiment.ask.execute import execute
from farm.experiment.config.definition import Config
from farm.experiment.config.reader import read_config
from farm.experiment.space import Space
from farm.experiment.state.journal import read_journal
from farm.experiment.state.trials import record_of
from farm.experiment.work import Data, Generate, Generated
from farm.sweep.file.journal import PointStatus
from tests.cli.conftest import Command, assert_one_line
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import BEAM, LIMIT_S, serving
from tests.support.experiment_clients import CONFIG, SETUP, request
from tests.support.experiment_server import Client, serving_experiments
from tests.support.time_limits import scaled


class Worker:
    """A thread that asks and tells until its server is gone, and records the answers."""

    def __init__(self, port: int, number: int) -> None:
        self.number = number
        self.asked: list[dict[str, list[float]]] = []
        self.told: list[dict[str, list[float]]] = []
        self._port = port
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        """Wait until the thread has lost its server."""
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with contextlib.suppress(OSError), Client(self._port) as client:
            client.ask("resume", {"strat_id": self.number})
            while True:
                self.asked.append(client.ask("ask")["config"])
                if len(self.asked) % 4:  # every fourth point is never told
                    client.ask("tell", {"config": self.asked[-1], "outcome": len(self.asked)})
                    self.told.append(self.asked[-1])


def straight(config: Config, count: int, number: int) -> list[dict[str, list[float]]]:
    """Return all points of an uninterrupted experiment's first strategy."""
    space = Space.of(config)
    none = Data(space.empty(), space.empty()[:, 0, :1], 1)
    work = Generate(config, 0, count, 0, none, space.empty(), seed=number)
    result = execute(work)
    assert isinstance(result, Generated)
    return [space.decode(point[None]) for point in result.points]


def one_strategy(generator: str) -> dict[str, Any]:
    return {
        **CONFIG,
        "common": {**CONFIG["common"], "strategy_names": ["go_on"]},
        "go_on": {"generator": generator, "min_asks": 100_000},
    }


def kept(folder: Path, number: int) -> tuple[list[Any], list[Any]]:
    """Return the asked and the told points of an experiment in its journal."""
    record = record_of(read_journal(folder / "experiments.db"), number)
    space = Space.of(record.config)
    asked = [space.decode(trial.point[None]) for trial in record.trials]
    told = [p for p, t in zip(asked, record.trials, strict=True) if t.outcome is PointStatus.DONE]
    return asked, told


def kill_and_look(folder: Path, generator: str, answers: int, *, begin: bool) -> None:
    """Run two experiments, each with a client, and kill their server after `answers` answers.

    The points that a client received or told must continue the earlier ones; the journal may hold
    one more, which the server had no time to confirm. begin: create the experiments first.
    """
    config = one_strategy(generator)
    with serving_experiments(folder) as server:
        with Client(server.port) as client:
            for number in (0, 1) if begin else ():
                setup = client.ask("setup", {"config_dict": config})
                assert setup == {"strat_id": number}
            before = [kept(folder, number) for number in (0, 1)]
            for number in (0, 1):
                assert client.ask("resume", {"strat_id": number}) == {"strat_id": number}
                assert client.ask("info")["current_strat_data_pts"] == len(before[number][1])
                pending = client.ask("status")["pending"]
                assert pending == len(before[number][0]) - len(before[number][1])
            workers = [Worker(server.port, number) for number in (0, 1)]
            wait_until(lambda: all(len(w.asked) >= answers for w in workers), LIMIT_S)
            server.end(signal.SIGKILL)
        for worker in workers:
            worker.join()
    for number, worker in enumerate(workers):
        asked, told = kept(folder, number)
        assert asked == straight(read_config(config), len(asked), number)
        for now, then, answered in (
            (asked, before[number][0], worker.asked),
            (told, before[number][1], worker.told),
        ):
            assert now[: len(then)] == then
            assert now[len(then) :][: len(answered)] == answered
            assert len(now) <= len(then) + len(answered) + 1


@pytest.mark.slow
def test_a_server_that_is_killed_has_kept_what_it_answered(tmp_path: Path) -> None:
    kill_and_look(tmp_path, "RandomGenerator", 9, begin=True)
    kill_and_look(tmp_path, "RandomGenerator", 2, begin=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_servers_that_are_killed_again_and_again(tmp_path: Path) -> None:
    for k in range(40):
        kill_and_look(tmp_path, "SobolGenerator", 7 + 11 * k % 13, begin=k == 0)


def test_up_and_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving_experiments(tmp_path, "--journal", "a/study.db") as server:
        with Client(server.port) as client:
            assert client.ask("setup", SETUP) == {"strat_id": 0}
            assert client.ask("ask")["num_points"] == 1
            assert client.ask("info")["db_name"] == "a/study.db"
        journal = str(tmp_path / "a/study.db")
        assert run(["experiment", "serve", "--aepsych", "127.0.0.1:0", "--journal", journal]) == 2
        assert f"another server has the journal {journal}" in capsys.readouterr().err
        process = psutil.Process(server.process.pid)

        def rests() -> bool:
            before = sum(process.cpu_times()[:2])
            time.sleep(0.5)
            used_s: float = sum(process.cpu_times()[:2]) - before
            return used_s < 0.05

        wait_until(rests)  # no client sends requests
        status, out = server.end(signal.SIGTERM)
    assert (status, out) == (0, "")
    assert server.said == "journal a/study.db: 0 experiments so far\n"
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["study.db"]


@pytest.mark.slow
def test_a_second_signal_hurries(tmp_path: Path) -> None:
    model = {"generator": "OptimizeAcqfGenerator", "model": "GPRegressionModel"}
    config = {**CONFIG, "begin": {**model, "acqf": "qUpperConfidenceBound", "max_asks": 9}}
    with serving_experiments(tmp_path, "--grace", "60") as server, Client(server.port) as client:
        client.ask("setup", {"config_dict": config})
        client.ask("tell", {"config": {"x": 0.5, "y": 0.5}, "outcome": 1})
        (fitting,) = psutil.Process(server.process.pid).children()
        fitting.suspend()
        client.send(request("ask"))
        client.send(request("info"))
        server.process.send_signal(signal.SIGTERM)
        assert server.process.stderr is not None
        assert "Ctrl-C again to hurry" in server.process.stderr.readline()
        began = time.monotonic()
        status, _ = server.end(signal.SIGTERM)
        assert (status, time.monotonic() - began < scaled(20.0)) == (0, True)
    wait_until(lambda: not fitting.is_running())


@pytest.mark.slow
def test_beside_a_model(tmp_path: Path) -> None:
    (tmp_path / "beam.py").write_text(BEAM)
    with serving(tmp_path, "beam.py", "--aepsych", "127.0.0.1:0") as served:
        host, _, port = served.connection.addresses["aepsych"].rpartition(":")
        assert host == "127.0.0.1"
        with Client(int(port)) as client:
            assert client.ask("setup", SETUP) == {"strat_id": 0}
            status = urllib3.request("GET", f"{served.connection.url}/farm/status").json()
            assert [row["strategy_name"] for row in status["experiments"]] == ["begin"]
            _, out, _ = served.stop()
            with pytest.raises(ConnectionError):
                client.ask("info")
    assert f"experiments for AEPsych's clients at {served.connection.addresses['aepsych']}\n" in out
    assert record_of(read_journal(tmp_path / "run" / "experiments.db")).number == 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("serve --aepsych 5555", "expected HOST:PORT"),
        ("serve --aepsych 0.0.0.0:0", "or add --insecure"),
        ("serve --aepsych 127.0.0.1:0 --journal text", "not a journal of experiments"),
        ("serve --aepsych 127.0.0.1:0 --journal text/x", "cannot be created"),
        ("serve --aepsych 192.0.2.1:0 --insecure", "cannot listen on 192.0.2.1"),
        ("frob", "No such command"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path,
    words: str,
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    experiment: Command,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("no journal")
    assert_one_line(experiment(words), complaint)
