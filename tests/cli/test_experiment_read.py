"""`farm experiment status|export`: their output, their files, and what they refuse."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from farm.cli import run
from farm.experiment.host import Experiments
from farm.experiment.state.events import Finished, RunPhase, RunState
from farm.experiment.state.journal import ExperimentJournal
from farm.protocols.aepsych.codec import AepsychRequest
from tests.cli.conftest import Command, assert_one_line
from tests.support.coroutines import LIMIT_S
from tests.support.experiment_clients import CONFIG

NAMED = {**CONFIG, "metadata": {"experiment_name": "bending"}}


async def made(path: Path, count: int) -> Experiments:
    """Write a journal with `count` experiments; in the first, two of three points are told."""
    experiments = Experiments(path)
    await experiments.start()
    session = experiments.session()
    for number in range(count):
        config = NAMED if number == 0 else CONFIG
        await experiments.handle(session, AepsychRequest("setup", {"config_dict": config}, {}))
        reply = await experiments.handle(session, AepsychRequest("ask", {"num_points": 3}, {}))
        points = reply.answer["config"]
        for k in range(2 if number == 0 else 0):
            point = {name: values[k] for name, values in points.items()}
            message = {"config": point, "outcome": k, "note": f"n{k}"}
            await experiments.handle(session, AepsychRequest("tell", message, {}))
    return experiments


def journal(path: Path, count: int) -> None:
    async def make() -> None:
        await (await made(path, count)).stop()

    asyncio.run(make())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_status_in_words(
    experiment: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    journal(folder / "experiments.db", 2)
    for where in ("experiments.db", "."):
        status, out, _ = experiment(f"status {where}")
        assert status == 0
        first, second = (line.split() for line in out.splitlines()[1:])
        assert first == ["0", "bending", "begin", "3", "2", "2", "0", "1", "open"]
        assert (second[0], second[2:]) == ("1", ["begin", "3", "0", "0", "0", "3", "open"])


def test_status_in_json_while_a_server_runs(experiment: Command, folder: Path) -> None:
    async def look() -> tuple[int, str, str]:
        experiments = await made(folder / "e.db", 1)
        try:
            return experiment("status e.db --json")
        finally:
            await experiments.stop()

    status, out, _ = asyncio.run(look())
    assert status == 0
    (one,) = json.loads(out)
    assert (one["number"], one["name"], one["asked"], one["told"]) == (0, "bending", 3, 2)


def test_a_loop_whose_process_is_gone_is_interrupted(experiment: Command, folder: Path) -> None:
    def states() -> tuple[str, bool, str]:
        words = experiment("status e.db")[1].splitlines()[1].split()[-1]
        (one,) = json.loads(experiment("status e.db --json")[1])
        return words, one["interrupted"], one["run"]

    journal(folder / "e.db", 1)
    loop = ExperimentJournal(folder / "e.db")
    running = RunState(experiment=0, time=1.0, phase=RunPhase.RUNNING)
    loop.append([running]).result(LIMIT_S)
    assert states() == ("running", False, "running")
    loop.close()
    assert states() == ("interrupted", True, "running")
    loop = ExperimentJournal(folder / "e.db")
    loop.append([RunState(experiment=0, time=2.0, phase=RunPhase.ENDED)]).result(LIMIT_S)
    loop.close()
    assert states() == ("ended", False, "ended")


def test_status_of_an_empty_journal(experiment: Command, folder: Path) -> None:
    journal(folder / "e.db", 0)
    assert experiment("status e.db") == (0, "no experiment yet\n", "")
    assert experiment("status e.db --json") == (0, "[]\n", "")


def test_a_journal_that_nobody_may_write(experiment: Command, folder: Path) -> None:
    journal(folder / "e.db", 1)
    (folder / "e.db").chmod(0o444)
    folder.chmod(0o555)
    try:
        status, out, _ = experiment("status e.db")
    finally:
        folder.chmod(0o755)
    assert status == 0
    assert "bending" in out
    assert os.listdir(folder) == ["e.db"]


def test_export(capsys: pytest.CaptureFixture[str], experiment: Command, folder: Path) -> None:
    journal(folder / "e.db", 2)
    status, out, _ = experiment("export e.db t.csv --id 0")
    assert (status, out) == (0, "2 trials of experiment 0 in t.csv\n")
    lines = (folder / "t.csv").read_text().splitlines()
    assert lines[0].endswith(",x,y,outcome_1,strategy,filled_in,modelled,note")
    rows = [line.split(",")[-5:] for line in lines[1:]]
    assert [(row[0], row[-2:]) for row in rows] == [("0.0", ["1", "n0"]), ("1.0", ["1", "n1"])]
    status, out, _ = experiment("export . t.h5 --id 1")
    assert status == 2  # there is no experiments.db here
    status, out, _ = experiment("export e.db t.h5 --id 1")
    assert (status, out) == (0, "3 trials of experiment 1 in t.h5\n")
    assert run(["sweep", "export", "t.h5", "--csv", "-"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith("point,x,y,outcome_1,status")
    assert out.count("pending") == 3


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("status none.db", "there is no journal none.db"),
        ("status text", "text"),
        ("export e.db out.txt", "out.txt ends in .txt; expected .h5 or .csv"),
        ("export e.db e.csv", "e.csv exists"),
        ("export e.db out.csv", "has 2 experiments, from 0 to 1; specify --id N"),
        ("export e.db out.csv --id 7", "no experiment 7"),
        ("export e.db none/out.csv --id 0", "none/out.csv"),
        ("export e.db none/out.h5 --id 0", "none/out.h5"),
        ("export odd.db out.h5", "no experiment yet"),
        ("status odd.db", "odd.db"),
        ("best e.db --id 0 --outcome z", "no outcome 'z'; expected one of outcome_1"),
        ("plot e.db --id 0 --outcome z", "no outcome 'z'; expected one of outcome_1"),
    ],
)
def test_mistakes_are_one_line(
    experiment: Command, folder: Path, words: str, complaint: str
) -> None:
    journal(folder / "e.db", 2)
    (folder / "text").write_text("no journal, but a file of some length" * 200)
    (folder / "e.csv").touch()
    odd = ExperimentJournal(folder / "odd.db")
    odd.append([Finished(experiment=0, time=0.0, strategy=0)]).result(LIMIT_S)
    odd.close()
    assert_one_line(experiment(words), complaint)
    assert not (folder / "out.csv").exists()


@pytest.mark.slow
def test_plot(experiment: Command, folder: Path) -> None:
    journal(folder / "e.db", 1)
    assert experiment("plot e.db") == (0, "e.html\n", "")
    assert "<title>bending</title>" in Path("e.html").read_text()
    assert experiment("plot e.db -o r.html --outcome outcome_1")[1] == "r.html\n"
    assert Path("r.html").read_text().startswith("<!doctype html>")


def test_plot_without_matplotlib_names_the_extra(
    experiment: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal(folder / "e.db", 1)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, out, err = experiment("plot e.db")
    assert (status, out) == (2, "")
    assert err == 'farm: error: matplotlib is needed: pip install "modelfarm[plot]"\n'
    assert not Path("e.html").exists()
