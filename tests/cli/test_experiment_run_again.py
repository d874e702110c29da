"""The same `farm experiment run` command line again, as in a requeued job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farm.experiment.state.events import RunState, SetUp, Told
from farm.experiment.state.journal import read_journal
from tests.support.dispatcher_farm import run_farm
from tests.support.experiment_configs import sobol_config

BOWL = """
import pathlib, time
import farm

pathlib.Path("loaded").touch()

@farm.model(name="bowl", inputs={"x": 1}, outputs={"height": 1})
def bowl(x):
    return (x - 0.3) ** 2
"""

RUN = ("experiment", "run", "tune.ini", "bowl.py", "-n", "1")
END = "experiment 0 in tune.db has this configuration and is finished; --new starts another\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bowl.py").write_text(BOWL)
    (tmp_path / "tune.ini").write_text(sobol_config("bowl", 6))
    return tmp_path


def again(folder: Path, *more: str) -> tuple[int, str]:
    status, _, err = run_farm(*RUN, *more, cwd=folder)
    return status, err


def counts(folder: Path) -> dict[int, int]:
    """Return the number of outcomes of each experiment."""
    events = list(read_journal(folder / "tune.db"))
    told = {event.experiment: 0 for event in events if isinstance(event, SetUp)}
    for event in events:
        told[event.experiment] += isinstance(event, Told)
    return told


@pytest.mark.slow
def test_an_experiment_that_has_ended_is_one_line_and_loads_no_model(folder: Path) -> None:
    assert again(folder)[0] == 0
    (folder / "loaded").unlink()
    before = (folder / "tune.db").read_bytes()
    assert again(folder) == (0, END)
    assert not (folder / "loaded").exists()
    assert (folder / "tune.db").read_bytes() == before
    assert not (folder / "tune.db.lock").exists()


@pytest.mark.slow
def test_its_state_as_json_and_a_model_without_a_version_need_the_model(folder: Path) -> None:
    (folder / "part.py").write_text("")
    (folder / "bowl.py").write_text(f"import part\n{BOWL}")
    assert again(folder)[0] == 0
    before = (folder / "tune.db").read_bytes()
    assert again(folder) == (0, END)
    status, out, err = run_farm(*RUN, "--json", cwd=folder)
    assert (status, err, json.loads(out)["phase"]) == (0, END, "ended")
    assert (folder / "tune.db").read_bytes() == before


@pytest.mark.slow
def test_a_spent_budget_is_one_line_and_a_larger_one_continues(folder: Path) -> None:
    assert again(folder, "--budget", "3")[0] == 0
    status, err = again(folder, "--budget", "3")
    assert status == 0
    assert len(err.splitlines()) == 1
    assert "has spent its budget of 3 evaluations; --budget continues it" in err
    assert counts(folder) == {0: 3}
    status, err = again(folder, "--budget", "5")
    assert (status, "continues experiment 0 in tune.db: 3 told" in err) == (0, True)
    assert counts(folder) == {0: 5}


@pytest.mark.slow
@pytest.mark.parametrize("ended", [False, True])
def test_a_model_that_was_edited_is_refused(folder: Path, ended: bool) -> None:
    assert again(folder, *([] if ended else ["--budget", "3"]))[0] == 0
    (folder / "bowl.py").write_text(BOWL.replace("0.3", "0.4"))
    before = counts(folder)
    status, err = again(folder)
    assert status == 2
    assert len(err.splitlines()) == 1
    versions = {e.version for e in read_journal(folder / "tune.db") if isinstance(e, RunState)}
    (then,) = versions - {""}
    assert f"was evaluated by version {then} of the model 'bowl', this is version file:" in err
    assert counts(folder) == before
    assert again(folder, "--resume")[0] == 0
    assert counts(folder) == {0: 6}
    status, err = again(folder, "--new")
    assert (status, counts(folder)) == (0, {0: 6, 1: 6})
    (folder / "bowl.py").write_text(BOWL)
    status, err = again(folder)
    assert status == 2
    assert "experiment 1 in tune.db was evaluated by" in err


@pytest.mark.slow
def test_a_model_that_was_resumed_with_is_the_one_to_go_on_with(folder: Path) -> None:
    assert again(folder, "--budget", "2")[0] == 0
    (folder / "bowl.py").write_text(BOWL.replace("0.3", "0.4"))
    assert again(folder, "--resume", "--budget", "4")[0] == 0
    assert again(folder)[0] == 0
    assert counts(folder) == {0: 6}


@pytest.mark.slow
def test_new_begins_one_experiment_in_a_job_however_often_it_is_requeued(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert again(folder)[0] == 0
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert again(folder, "--new", "--budget", "2")[0] == 0
    assert counts(folder) == {0: 6, 1: 2}
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    status, err = again(folder, "--new")
    assert (status, "continues experiment 1 in tune.db: 2 told" in err) == (0, True)
    assert counts(folder) == {0: 6, 1: 6}
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    assert again(folder, "--new")[0] == 0
    assert counts(folder) == {0: 6, 1: 6, 2: 6}


@pytest.mark.slow
def test_a_loop_that_was_killed_before_it_recorded_its_end_records_it(folder: Path) -> None:
    assert again(folder)[0] == 0
    journal = folder / "tune.db"
    content = journal.read_bytes()
    # The last record is the end of the loop; what is left is the journal of a killed process.
    for cut in range(1, 400):
        journal.write_bytes(content[:-cut])
        events = list(read_journal(journal))
        if not (isinstance(events[-1], RunState) and events[-1].phase == "ended"):
            break
    (folder / "loaded").unlink()
    status, err = again(folder)
    assert (status, "continues experiment 0 in tune.db: 6 told" in err) == (0, True)
    assert again(folder) == (0, END)
    assert counts(folder) == {0: 6}
