"""`farm sweep`: new and resumed sweeps, exit statuses, one-line messages for mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import farm
from farm.sweep.file.recovery import journal_of
from tests.cli.conftest import Command, sent_by_somebody
from tests.support.dispatcher_farm import BEAM, Served

PARAMS = "--param E=1:2 --param load=log:1:10"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("by", ["folder", "url"])
def test_a_running_farm_is_swept(
    sweep: Command, beam_farm: Served, tmp_path: Path, by: str
) -> None:
    target = f"--to {beam_farm.folder if by == 'folder' else beam_farm.connection.url}"
    words = f"{target} --model beam {PARAMS} --design sobol:16 --seed 7 -o s.h5 --notes first"
    status, out, err = sweep(words)
    assert (status, out) == (0, "")
    assert "16 points of beam, seed 7, into s.h5" in err
    assert "beam sobol:16: 16/16 points (100%)" in err
    with h5py.File("s.h5") as file:
        theta = file["theta"][:]
        assert np.array_equal(file["out_0"][:], theta[:, 3:] / theta[:, :3])
        assert file["provenance"].attrs["notes"] == "first"
        assert file["provenance"].attrs["seed"] == "7"
        assert all("/" in name.decode() for name in file["workers/name"])
    assert not journal_of(Path("s.h5")).exists()


def test_a_model_is_served_for_the_length_of_the_sweep(sweep: Command, tmp_path: Path) -> None:
    (tmp_path / "beam.py").write_text(BEAM)
    status, _, err = sweep(
        f"beam.py:Beam -n 2 {PARAMS} --fix sleep=0.001 --design grid:2 --gradient bent[1] -o s.h5",
    )
    assert status == 0, err
    with h5py.File("s.h5") as file:
        theta = file["theta"][:]
        assert np.array_equal(file["out_0"][:], theta[:, 3:] / theta[:, :3])
        expected = -theta[:, 3] / theta[:, 1] ** 2
        assert file["grad_0_0"][:, 1, 1] == pytest.approx(expected)
        assert json.loads(file["provenance"].attrs["config"]) == {"sleep": 0.001}
    assert sorted(p.name for p in tmp_path.iterdir() if "pycache" not in p.name) == [
        "beam.py",
        "s.h5",
        "s.h5.status.json",
    ]


def test_a_model_that_has_changed_is_not_gone_on_with(sweep: Command, tmp_path: Path) -> None:
    (tmp_path / "beam.py").write_text(BEAM)
    words = f"beam.py -n 1 {PARAMS} --design sobol:4 -o s.h5"
    assert sweep(words)[0] == 0
    (tmp_path / "beam.py").write_text(BEAM.replace('"bent": 3', '"bent": 4'))
    status, _, err = sweep("extend s.h5 --points 8")
    assert status == 2
    assert "planned for bent [3]" in err


def test_what_is_complete_is_not_opened_for_writing(sweep: Command, beam_farm: Served) -> None:
    words = f"--to {beam_farm.folder} {PARAMS} --design sobol:4 -o s.h5"
    sweep(words)
    before = Path("s.h5").read_bytes()
    with h5py.File("s.h5"):  # as a notebook does
        for again in ("--resume s.h5 --to /nowhere", "--resume s.h5 --retry-failed", words):
            status, _, err = sweep(again)
            assert (status, err) == (0, "s.h5 is complete, 0 points failed\n")
    assert Path("s.h5").read_bytes() == before
    assert [path.name for path in Path().glob("s.h5.*")] == ["s.h5.status.json"]


def test_an_extension_without_its_farm_changes_nothing(sweep: Command, beam_farm: Served) -> None:
    sweep(f"--to {beam_farm.folder} {PARAMS} --design sobol:4 -o s.h5")
    before = Path("s.h5").read_bytes()
    assert sweep("extend s.h5 --points 8 --to /nowhere")[0] != 0
    assert Path("s.h5").read_bytes() == before
    assert not journal_of(Path("s.h5")).exists()


def test_limits_end_it_and_it_goes_on(sweep: Command, beam_farm: Served) -> None:
    words = f"--to {beam_farm.folder} {PARAMS} --param raise=choice:1 --no-probe"
    words += " --design random:50 --in-flight 1 -o s.h5"
    status, _, err = sweep(f"{words} --max-failures 10%")
    assert status == 3
    assert "too many failures; continue with: farm sweep --resume s.h5" in err
    with h5py.File("s.h5") as file:
        assert np.count_nonzero(file["status"][:]) == 6
    status, _, _ = sweep("--resume s.h5")
    assert status == 1
    with h5py.File("s.h5") as file:
        assert np.count_nonzero(file["status"][:]) == 50


def test_a_point_is_run_again_in_the_foreground(
    sweep: Command, beam_farm: Served, tmp_path: Path
) -> None:
    (tmp_path / "points.csv").write_text("E[0],E[1],E[2],load,raise\n1,2,4,8,1\n")
    sweep(f"--to {beam_farm.folder} --design file:points.csv -o s.h5 --no-probe")
    before = Path("s.h5").read_bytes()
    status, out, err = sweep("rerun s.h5 --point 0")
    assert status == 1
    assert out.splitlines() == [
        "E = [1. 2. 4.]",
        "load = [8.]",
        'config = {"raise":1}',
        "so far: failed",
    ]
    assert "Traceback" in err
    assert "ModelFailed" in err
    assert Path("s.h5").read_bytes() == before
    sweep(f"--to {beam_farm.folder} {PARAMS} --design random:3 -o t.h5")
    status, out, _ = sweep("rerun t.h5 --point 2")
    assert status == 0
    assert "so far: done" in out
    assert "bent = [" in out
    assert sweep("rerun t.h5 --point 3")[0] == 2


def test_a_sobol_sweep_that_is_no_power_of_two_says_so(sweep: Command, beam_farm: Served) -> None:
    _, _, err = sweep(f"--to {beam_farm.folder} {PARAMS} --design sobol:5 -o s.h5")
    assert "note: sobol:5 is not a power of 2" in err


def test_every_point_gets_its_seed(sweep: Command, tmp_path: Path) -> None:
    (tmp_path / "noise.py").write_text(
        "import farm\n"
        "@farm.model(inputs={'a': 1}, outputs={'b': 1})\n"
        "def noise(a, config): return [float(config['seed'])]\n"
    )
    words = "noise.py --param a=0:1 --design random:4 --seed 7 --seed-key seed -o s.h5 -n 1"
    assert sweep(words)[0] == 0
    with h5py.File("s.h5") as file:
        assert file["out_0"][:2].ravel().tolist() == [1201125462, 3618983171]


def test_a_misspelt_config_key_is_refused_before_anything_runs(
    sweep: Command, tmp_path: Path
) -> None:
    def forward(x: Any, nodes: int = 10) -> Any:
        return x * nodes

    Path("points.csv").write_text("x,nodez\n1,3\n2,4\n")
    model = farm.model(inputs={"x": 1}, outputs={"y": 1})(forward)
    with farm.serve(model, dir=tmp_path / "run") as client:
        for words in (
            "--param x=0:1 --param nodez=int:3:4 --design random:4",
            "--param x=0:1 --fix nodez=3 --design random:4",
            "--param x=0:1 --seed-key nodez --design random:4",
            """--param x=0:1 --config '{"nodez": 3}' --design random:4""",
            "--design file:points.csv",
        ):
            status, _, err = sweep(words, "-o", "s.h5", "--to", str(tmp_path / "run"))
            assert status == 2
            assert (
                "the key 'nodez', which model 'forward' does not have; its keys are: nodes" in err
            )
        assert client.status()["done"] == 0
    assert not Path("s.h5").exists()


def test_a_cost_is_kept_with_the_sweep(sweep: Command, beam_farm: Served) -> None:
    words = f"--to {beam_farm.folder} {PARAMS} --design sobol:16 --seed 7 -o s.h5"
    assert sweep(f"{words} --cost load**2 --max-failures 0")[0] == 0
    with h5py.File("s.h5") as file:
        assert np.array_equal(file["cost"][:], file["theta"][:, 3] ** 2)
        assert json.loads(file["provenance"].attrs["plan"])["cost"] == "load**2"


COSTLY = """
import farm


class Costly(farm.Model):
    name = "costly"
    inputs = {"n": 1}
    outputs = {"y": 1}

    def cost(self, inputs, config):
        return (inputs["n"][0] - 0.5) ** 2 * config["by"]

    def evaluate(self, inputs, config):
        return inputs["n"]
"""


def test_a_resumed_sweep_asks_for_no_costs(sweep: Command) -> None:
    Path("costly.py").write_text(COSTLY)
    words = "costly.py:Costly --param n=0:1 --fix by=1 --design sobol:16 --seed 7 --no-probe"
    status, _, err = sweep(f"{words} --max-hours 0 -o s.h5")
    assert status == 3, err
    with h5py.File("s.h5") as file:
        before = file["cost"][:]
    Path("costly.py").write_text(COSTLY.replace("** 2", "** 3 - 9"))
    status, _, err = sweep("--resume s.h5")
    assert status == 0, err
    with h5py.File("s.h5") as file:
        assert np.array_equal(file["cost"][:], before)


def test_a_cost_that_fails_ends_the_sweep_before_it_begins(sweep: Command) -> None:
    Path("costly.py").write_text(COSTLY)
    words = "costly.py:Costly --param n=0:1 --design sobol:16 -o s.h5"
    status, _, err = sweep(words)
    assert status == 4
    assert "cost(inputs, config) of model 'costly' failed: KeyError: 'by'; correct it" in err
    assert not Path("s.h5").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (f"{PARAMS} --design sobol:4", "-o sweep.h5"),
        (f"{PARAMS} -o s.h5", "--design sobol:256"),
        (f"{PARAMS} --design best:4 -o s.h5", "unknown design 'best:4'"),
        ("--param E=1:2 --design sobol:4 -o s.h5", "no value for load"),
        (
            f"{PARAMS} --design sobol:4 -o s.h5 --model plate",
            "no model 'plate'; the farm has: beam",
        ),
        (f"{PARAMS} --design sobol:4 -o s.h5 --config 3", "not a JSON object"),
        (f"{PARAMS} --design sobol:4 -o s.h5 --config {{", "is not valid JSON"),
        (f"{PARAMS} --param E=1:3 --design sobol:4 -o s.h5", "--param E is given twice"),
        (f"{PARAMS} --fix mesh --design sobol:4 -o s.h5", "expected NAME=VALUE"),
        (f"{PARAMS} --design sobol:4 -o s.h5 --max-failures x", "expected 10 or 5%"),
        (f"{PARAMS} --design sobol:4 -o s.h5 --gradient v", "no such output"),
        (f"{PARAMS} --design sobol:4 -o no/s.h5", "there is no folder no"),
        ("model.py --to x --design sobol:4 -o s.h5 --param a=0:1", "not both"),
        (f"{PARAMS} --design sobol:4 -o s.h5 --cost n**3", "no parameter 'n'; expected one of E,"),
        (f"{PARAMS} --design sobol:4 -o s.h5 --cost load-20", "the cost of point 0 is -"),
        (f"{PARAMS} --design sobol:4 -o s.h5 --cost load**", "it is not an expression"),
        (f"{PARAMS} --design sobol:4 -o s.h5 --cost column:h", "the design is sobol:4"),
        (f"{PARAMS} --design sobol:4 -o s.h5 --cost sweep:no.h5", "no.h5 does not exist"),
        (f"{PARAMS} --design sobol:4 -o s.h5 --cost load --order given", "omit it with"),
        (f"{PARAMS} --design sobol:4 -o s.h5 --order best", "'best' is not one of 'auto'"),
        ("--resume s.h5 --cost load", "continues a sweep as planned"),
        ("--resume s.h5 --order given", "continues a sweep as planned"),
        ("--resume s.h5", "does not exist"),
        ("--resume s.h5 --design sobol:4", "continues a sweep as planned"),
        ("--resume s.h5 --overwrite", "continues a sweep as planned"),
        ("missing.py --param a=0:1 --design sobol:4 -o s.h5", "missing.py"),
        ("status s.h5", "does not exist"),
        ("rerun s.h5 --point 1", "does not exist"),
        ("extend s.h5 --points 4", "does not exist"),
        ("--nonsense", "nonsense"),
    ],
)
def test_a_mistake_is_a_line_and_status_2(
    sweep: Command,
    monkeypatch: pytest.MonkeyPatch,
    beam_farm: Served,
    tmp_path: Path,
    words: str,
    complaint: str,
) -> None:
    monkeypatch.setenv("FARM_CONNECTION", str(beam_farm.folder))
    status, out, err = sweep(words)
    assert status == 2
    last = err.splitlines()[-1]
    assert last.startswith("farm: error: ")
    assert complaint in last
    assert out == ""
    assert [p.name for p in tmp_path.iterdir() if p.suffix != ".run"] == []


def test_a_model_that_fails_at_the_first_points_has_a_status_of_its_own(
    sweep: Command, beam_farm: Served, tmp_path: Path
) -> None:
    fixed = f"{PARAMS} --fix raise=nothing --design sobol:4 -o s.h5"
    status, out, err = sweep(f"--to {beam_farm.folder} {fixed}")
    assert (status, out) == (4, "")
    assert "first 3 points failed" in err.splitlines()[-1]
    assert [p.name for p in tmp_path.iterdir() if p.suffix != ".run"] == []


def test_no_farm_is_a_line(sweep: Command) -> None:
    status, _, err = sweep(f"{PARAMS} --design sobol:4 -o s.h5 --to http://127.0.0.1:9")
    assert status == 6
    assert err.startswith("farm: error: ")


def test_without_anything_it_shows_its_help(sweep: Command) -> None:
    status, out, err = sweep("")
    assert status == 2
    assert "Usage: farm sweep" in out + err


EVIL = f"""
import pathlib
pathlib.Path(__file__).with_name("ran").touch()
{BEAM}
"""


@pytest.mark.parametrize(
    "words",
    [
        "--resume s.h5 --retry-failed",
        pytest.param("rerun s.h5 --point 0", marks=pytest.mark.slow),
    ],
)
def test_what_a_file_names_is_not_run_because_it_is_named(
    sweep: Command, tmp_path: Path, words: str
) -> None:
    (tmp_path / "beam.py").write_text(BEAM)
    begin = f"beam.py -n 1 {PARAMS} --design sobol:4 --fix raise=no --no-probe -o s.h5"
    assert sweep(begin)[0] == 1
    assert sweep(words)[0] == 1, "the user's own file runs what it names"
    evil = tmp_path / "evil.py"
    evil.write_text(EVIL)
    sent_by_somebody(Path("s.h5"), evil)
    status, _, err = sweep(words)
    assert status == 2
    assert f"not written by you, or was changed since. It would run: {evil}" in err
    assert not (tmp_path / "ran").exists()
    assert sweep(f"{words} -n 1", "beam.py")[0] == 1, "a model that is named runs"
    assert not (tmp_path / "ran").exists()
    assert sweep(f"{words} --trust")[0] == 1
    assert (tmp_path / "ran").exists()


@pytest.mark.slow
def test_a_sweep_is_extended_by_what_its_user_signed_only(sweep: Command, tmp_path: Path) -> None:
    (tmp_path / "beam.py").write_text(BEAM)
    assert sweep(f"beam.py -n 1 {PARAMS} --design sobol:4 -o s.h5")[0] == 0
    sent_by_somebody(Path("s.h5"), tmp_path / "evil.py")
    status, _, err = sweep("extend s.h5 --points 8")
    assert (status, "not written by you" in err) == (2, True)
    with h5py.File("s.h5") as file:
        assert len(file["theta"]) == 4, "it is as it was"
    assert sweep("extend s.h5 --points 8 -n 1 beam.py")[0] == 0


def test_a_sweep_without_a_place_for_the_secret_says_so(
    sweep: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    (tmp_path / "beam.py").write_text(BEAM)
    status, _, err = sweep(f"beam.py -n 1 {PARAMS} --design sobol:4 -o s.h5")
    assert status == 0
    assert "note: --resume will need the model or --trust" in err
