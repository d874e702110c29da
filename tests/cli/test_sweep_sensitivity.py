"""`farm sweep` with a design of SALib and `farm sweep sensitivity`, from the command line."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import h5py
import pytest

import farm
from tests.cli.conftest import Command

MODEL = """
import farm

@farm.model(inputs={"k": 1, "x": 2}, outputs={"y": 1, "same": 1})
def line(k, x):
    return {"y": 4 * k + 2 * x[0] + x[1], "same": 7.0}
"""
PARAMETERS = "--param k=0:1 --param x=0:1"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def swept(design: str, out: str = "s.h5") -> None:
    """Sweep a function in this process into `out`."""

    def line(k: float, x: float, z: float) -> dict[str, float]:
        return {"y": 4 * k + 2 * x + z, "same": 7.0}

    ranges = {"k": (0.0, 1.0), "x": (0.0, 1.0), "z": (0.0, 1.0)}
    with farm.sweep(line, ranges, design=design, seed=3, out=out, show=False):
        pass


@pytest.mark.slow
def test_a_sweep_from_its_design_to_its_extension(sweep: Command) -> None:
    Path("model.py").write_text(MODEL)
    begin = f"model.py -n 1 {PARAMETERS} --design saltelli:8 --seed 7 -o s.h5"
    status, _, err = sweep(begin)
    assert status == 0
    assert err.startswith("8 x (2 x 3 + 2) = 64 points of line, seed 7, into s.h5\n")
    status, _, err = sweep(begin)
    assert (status, err) == (0, "s.h5 is complete, 0 points failed\n")
    status, _, err = sweep(begin.replace("saltelli:8", "saltelli:8,first"))
    assert status == 2
    assert "design: saltelli:8 in the file, saltelli:8,first here" in err
    status, _, err = sweep("extend s.h5 -n 1 --trust --points 128")
    assert status == 0
    with h5py.File("s.h5") as file:
        assert file["status"][:].tolist() == [1] * 128
        assert "1.6" in file["provenance"].attrs["salib_version"]
    status, out, err = sweep("sensitivity s.h5")
    assert (status, err) == (0, "note: left out, as they are the same in all rows: same\n")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["y:", "sobol,", "128", "points"]
    assert lines[1] == ["parameter", "ST", "S1"]
    assert [line[0] for line in lines[2:]] == ["k", "x[0]", "x[1]"]
    assert [line[2] for line in lines[2:]] == ["±"] * 3


@pytest.mark.parametrize(
    ("design", "title", "header"),
    [
        ("morris:4", "y: morris, 16 points", ["parameter", "mu_star", "mu", "sigma"]),
        ("ff", "y: ff, 8 points", ["parameter", "abs", "ME", "ME"]),
        ("lhs:64", "y: pawn, 64 points", ["parameter", "PAWN", "median", "dummy"]),
    ],
)
def test_tables(sweep: Command, design: str, title: str, header: list[str]) -> None:
    swept(design)
    status, out, _ = sweep("sensitivity s.h5")
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == title
    assert lines[1].split() == header
    names = [line.split()[0] for line in lines[2:]]
    assert names[0] == "k"
    assert sorted(names) == ["k", "x", "z"]


def test_json_and_csv(sweep: Command) -> None:
    swept("morris:4")
    status, out, _ = sweep("sensitivity s.h5 --output y --json")
    assert status == 0
    (found,) = json.loads(out)
    assert (found["method"], found["measure"], found["points"]) == ("morris", "mu_star", 16)
    assert [row["name"] for row in found["parameters"]] == ["k", "x", "z"]
    assert [row["value"] for row in found["parameters"]] == pytest.approx([4, 2, 1])
    status, out, _ = sweep("sensitivity s.h5 --output y --csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["parameter"] for row in rows] == ["k", "x", "z"]
    assert [float(row["mu_star"]) for row in rows] == pytest.approx([4, 2, 1])
    assert {row["output"] for row in rows} == {"y"}
    assert rows[0]["points"] == "16"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("sensitivity s.h5 --json --csv", "--json and --csv exclude each other"),
        ("sensitivity s.h5 --method sobol", "method sobol needs the points of a design such as"),
        ("sensitivity s.h5 --output v", "no output 'v'; the outputs are y, same"),
        ("sensitivity none.h5", "none.h5"),
    ],
)
def test_mistakes_have_the_status_of_mistakes(sweep: Command, words: str, why: str) -> None:
    swept("ff")
    status, out, err = sweep(words)
    assert (status, out) == (2, "")
    assert why in err
    assert "Traceback" not in err


def test_a_missing_salib_names_the_extra(sweep: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    swept("ff")
    monkeypatch.setitem(sys.modules, "SALib.analyze", None)
    status, _, err = sweep("sensitivity s.h5")
    assert status == 2
    assert 'pip install "modelfarm[sensitivity]"' in err


def test_correlated_parameters_are_noted(sweep: Command) -> None:
    farm.sweep(
        lambda a, b: a,
        {"a": (0, 1), "b": (0, 1)},
        design="random:64",
        correlation={("a", "b"): 0.8},
        out="s.h5",
        show=False,
    ).wait()
    status, out, err = sweep("sensitivity s.h5 --json")
    assert status == 0
    assert "note: parameters are correlated (a,b=0.8): the influence of each includes" in err
    assert json.loads(out)[0]["correlated"] == ["a,b=0.8"]
    assert sweep("plot s.h5")[0] == 0
    assert "Parameters are correlated (a,b=0.8)" in Path("s.html").read_text()


def test_from_python() -> None:
    swept("saltelli:8")
    (found,) = farm.sensitivity("s.h5", output="y")
    assert isinstance(found, farm.Sensitivity)
    assert found.to_pandas().index.tolist() == ["k", "x", "z"]
    (pawn,) = farm.sensitivity(Path("s.h5"), method="pawn", output="y")
    assert pawn.method == "pawn"
