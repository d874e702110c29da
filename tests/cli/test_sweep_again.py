"""The same `farm sweep` command line again: it continues its sweep, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from farm.storage.lock import Lock
from farm.sweep.file.recovery import journal_of, lock_of
from tests.cli.conftest import Command, sent_by_somebody
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import BEAM, Served, farm_command, run_farm
from tests.support.time_limits import scaled

PARAMS = "--param E=1:2 --param load=log:1:10"
LIMIT_S = scaled(60.0)
Again = Callable[[str], tuple[int, str]]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beam_farm: Served) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FARM_CONNECTION", str(beam_farm.folder))


@pytest.fixture
def sweep(sweep: Command) -> Again:
    """A command that prints nothing on standard output; returns its status, and its errors."""

    def quiet(words: str) -> tuple[int, str]:
        status, out, err = sweep(words)
        assert out == ""
        return status, err

    return quiet


def content(name: str = "s.h5") -> dict[str, bytes]:
    """Return all points' parameters, outputs, status and number of attempts."""
    with h5py.File(name) as file:
        return {key: file[key][:].tobytes() for key in ("theta", "out_0", "status", "attempts")}


def test_a_sweep_that_was_stopped_continues_and_equals_one_that_was_not(sweep: Again) -> None:
    words = f"{PARAMS} --design sobol:64 --seed 7 --in-flight 2 -o"
    assert sweep(f"{words} u.h5")[0] == 0
    assert sweep(f"{words} s.h5 --max-hours 0 --no-probe")[0] == 3
    status, err = sweep(f"{words} s.h5")
    assert status == 0
    assert err.splitlines()[0] == "s.h5 has this sweep: 0 of 64 points are finished, it continues"
    assert content("s.h5") == content("u.h5")


def test_without_a_seed_that_of_the_file_counts(sweep: Again) -> None:
    words = f"{PARAMS} --design random:9 --no-probe -o s.h5"
    assert sweep(f"{words} --max-hours 0")[0] == 3
    before = content()["theta"]
    status, err = sweep(words)
    assert (status, "it continues" in err) == (0, True)
    assert content()["theta"] == before
    with h5py.File("s.h5") as file:
        seed = int(file["provenance"].attrs["seed"])
    assert sweep(f"{words} --seed {seed}") == (0, "s.h5 is complete, 0 points failed\n")
    status, err = sweep(f"{words} --seed {seed + 1}")
    assert status == 2
    assert f"seed: {seed} in the file, {seed + 1} here" in err


def test_a_complete_sweep_of_an_unchanged_file_does_not_load_it(sweep: Again) -> None:
    # With a version, loading leaves a mark.
    marks = "import pathlib\npathlib.Path(__file__).with_name('loaded').touch()\n"
    Path("beam.py").write_text(BEAM + marks)
    words = f"beam.py -n 1 {PARAMS} --design sobol:4 --seed 7 -o s.h5"
    assert sweep(words)[0] == 0
    Path("loaded").unlink()
    assert sweep(words) == (0, "s.h5 is complete, 0 points failed\n")
    assert sweep(f"{words} --model beam")[0] == 0
    assert not Path("loaded").exists()
    status, err = sweep(f"{words} --model plate")
    assert (status, "no model 'plate'" in err) == (2, True)


def test_failed_points_are_retried_on_request_only(sweep: Again) -> None:
    Path("points.csv").write_text("E[0],E[1],E[2],load,raise\n1,2,4,8,1\n1,2,4,9,0\n")
    words = "--design file:points.csv -o s.h5 --no-probe"
    status, err = sweep(words)
    assert (status, "farm sweep failures s.h5" in err) == (1, True)
    assert sweep(words) == (1, "s.h5 is complete, 2 points failed\n")
    status, err = sweep(f"{words} --retry-failed")
    assert (status, "it continues" in err) == (1, True)
    with h5py.File("s.h5") as file:
        assert file["attempts"][:].tolist() == [2, 2]
    assert sweep(f"{PARAMS} --design sobol:4 -o t.h5 --retry-failed")[0] == 0


@pytest.mark.parametrize(
    ("more", "difference"),
    [
        ("--design sobol:8", "design: sobol:4 in the file, sobol:8 here"),
        ('--config {\\"mesh\\":2}', "config mesh: none in the file, 2 here"),
        ("--gradient bent[1]", "gradients: none in the file, bent[1] here"),
        ("--param mesh=0:1", "parameter mesh: none in the file, 0:1 here"),
        ("--fix nonsense=1 --param nonsense=1:2", "is both a parameter and fixed"),
        ("--model plate", "no model 'plate'"),
    ],
)
def test_another_plan_is_refused(sweep: Again, more: str, difference: str) -> None:
    assert sweep(f"{PARAMS} --design sobol:4 --seed 7 -o s.h5")[0] == 0
    before = Path("s.h5").read_bytes()
    status, err = sweep(f"{PARAMS} --design sobol:4 --seed 7 -o s.h5 {more}")
    assert status == 2
    assert difference in err
    assert len(err.splitlines()) == 1
    assert Path("s.h5").read_bytes() == before
    assert not lock_of(Path("s.h5")).exists()


def test_another_plan_is_refused_before_a_model_is_started(sweep: Again) -> None:
    assert sweep(f"{PARAMS} --design sobol:4 --seed 7 -o s.h5")[0] == 0
    words = f"missing.py {PARAMS} --design sobol:4 --seed 8 -o s.h5"
    status, err = sweep(words)
    assert (status, "seed: 7 in the file, 8 here" in err) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["incomplete", "complete"])
def test_a_model_that_was_edited_is_refused(sweep: Again, state: str) -> None:
    Path("beam.py").write_text(BEAM)
    words = f"beam.py -n 1 {PARAMS} --design sobol:4 --no-probe -o s.h5"
    limit = "--max-hours 0" if state == "incomplete" else ""
    assert sweep(f"{words} {limit}")[0] == (3 if limit else 0)
    Path("beam.py").write_text(BEAM.replace('/ inputs["E"]', '* inputs["E"]', 1))
    status, err = sweep(words)
    assert status == 2
    assert "version of the model (its file, a package" in err
    assert sweep("--resume s.h5")[0] == 0, "that is the way to mix both"


@pytest.mark.slow
@pytest.mark.parametrize("state", ["incomplete", "complete"])
def test_a_model_without_a_version_is_known_by_its_file(sweep: Again, state: str) -> None:
    Path("part.py").write_text("")
    for name in ("beam.py", "bent.py"):
        Path(name).write_text(f"import part\n{BEAM}")
    words = f"-n 1 {PARAMS} --design sobol:4 --no-probe -o s.h5"
    limit = "--max-hours 0" if state == "incomplete" else ""
    assert sweep(f"beam.py {words} {limit}")[0] == (3 if limit else 0)
    status, err = sweep(f"bent.py {words}")
    assert status == 2
    folder = Path.cwd()
    assert f"source of the model: {folder}/beam.py in the file, {folder}/bent.py here" in err
    assert sweep(f"./beam.py:Beam {words}")[0] == 0


def test_order_and_cost_stay_and_that_is_said(sweep: Again) -> None:
    words = f"{PARAMS} --design sobol:4 --cost load -o s.h5"
    assert sweep(f"{words} --max-hours 0 --no-probe")[0] == 3
    with h5py.File("s.h5") as file:
        cost = file["cost"][:]
    status, err = sweep(words.replace("--cost load", "--order given"))
    assert status == 0
    assert err.startswith("note: the order of the points stays that of s.h5\n")
    with h5py.File("s.h5") as file:
        assert np.array_equal(file["cost"][:], cost)
    assert sweep(words) == (0, "s.h5 is complete, 0 points failed\n")


def test_overwrite_starts_anew(sweep: Again) -> None:
    words = f"{PARAMS} --design sobol:4 --seed 7 -o s.h5"
    assert sweep(f"{words} --overwrite")[0] == 0, "without a file it changes nothing"
    status, err = sweep(f"{PARAMS} --design sobol:8 --seed 8 -o s.h5 --overwrite")
    assert status == 0
    assert "8 points of beam, seed 8, into s.h5, replacing the sweep there" in err
    with h5py.File("s.h5") as file:
        assert len(file["theta"]) == 8
    assert not journal_of(Path("s.h5")).exists()


@pytest.mark.parametrize(
    ("mistake", "status"),
    [("--fix raise=nothing", 4), ("--to http://127.0.0.1:9", 6), ("--gradient v", 2)],
)
def test_a_new_sweep_that_does_not_begin_overwrites_nothing(
    sweep: Again, mistake: str, status: int
) -> None:
    words = f"{PARAMS} --design sobol:4 --seed 7 -o s.h5"
    assert sweep(words)[0] == 0
    before = Path("s.h5").read_bytes()
    assert sweep(f"{words} {mistake} --overwrite")[0] == status
    assert Path("s.h5").read_bytes() == before
    assert not journal_of(Path("s.h5")).exists()


@pytest.mark.parametrize("more", ["", "--overwrite"])
def test_a_file_that_is_not_a_sweep_is_left_alone(sweep: Again, more: str) -> None:
    Path("s.h5").write_text("precious")
    status, err = sweep(f"{PARAMS} --design sobol:4 -o s.h5 {more}")
    assert status == 2
    assert "s.h5 exists, and no sweep can be read from it" in err
    assert Path("s.h5").read_text() == "precious"


def test_the_model_of_the_command_line_runs_whatever_the_file_names(sweep: Again) -> None:
    Path("beam.py").write_text(BEAM)
    words = f"beam.py -n 1 {PARAMS} --design sobol:4 --no-probe -o s.h5"
    assert sweep(f"{words} --max-hours 0")[0] == 3
    Path("evil.py").write_text(f"import pathlib\npathlib.Path('ran').touch()\n{BEAM}")
    sent_by_somebody(Path("s.h5"), Path("evil.py").absolute())
    journal_of(Path("s.h5")).unlink()
    status, err = sweep("--resume s.h5")
    assert (status, "not written by you" in err) == (2, True)
    assert sweep(words)[0] == 0
    assert not Path("ran").exists()


GATE = """
import time
from pathlib import Path
import farm

@farm.model(inputs={"k": 1}, outputs={"y": 1})
def gate(k):
    while not Path("go").exists():
        time.sleep(0.02)
    return k
"""


@pytest.mark.slow
def test_two_at_once_are_one_sweep_and_one_error(tmp_path: Path) -> None:
    Path("gate.py").write_text(GATE)
    words = "gate.py -n 1 --param k=0:1 --design sobol:8 --seed 7 --no-probe -o s.h5"
    one, two = (farm_command("sweep", *words.split(), cwd=tmp_path) for _ in range(2))
    with one as a, two as b:
        wait_until(lambda: any(process.poll() is not None for process in (a, b)))
        first, second = sorted((a, b), key=lambda process: process.poll() is None)
        refused = first.communicate()[1]
        Path("go").touch()
        said = second.communicate(timeout=LIMIT_S)[1]
    assert (first.returncode, second.returncode) == (2, 0), (refused, said)
    assert f"s.h5.lock is held by process {second.pid} on " in refused
    with h5py.File("s.h5") as file:
        assert file["attempts"][:].tolist() == [1] * 8


@pytest.mark.slow
def test_a_silent_lock_of_another_node_is_waited_for_and_that_is_said(
    beam_farm: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As left by a job that was killed on one node and requeued on another."""
    words = f"{PARAMS} --design sobol:4 --seed 7 -o s.h5 --to {beam_farm.folder}".split()
    assert run_farm("sweep", *words, "--max-hours", "0", "--no-probe", cwd=tmp_path)[0] == 3
    Lock(lock_of(Path("s.h5")))
    held = json.loads(lock_of(Path("s.h5")).read_text()) | {"machine": "other", "host": "node7"}
    lock_of(Path("s.h5")).write_text(json.dumps(held))
    status, _, err = run_farm("sweep", *words, cwd=tmp_path)
    assert status == 0
    assert "node7, which may be gone: waiting 15 s for a sign of life" in err
    assert "it continues" in err
