"""`farm sweep extend`, of sweeps with words, conditions, constraints and correlations."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.cli.conftest import Command
from tests.support.dispatcher_farm import Served, farm_of


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


SPACE = (
    "--param solver=euler,rk --param order=int:1:4 --param k=normal:5:1 --param q=log:1:9 "
    """--when 'order: solver == "rk"' --where 'k < 4*q' --correlation k,q=0.7"""
)
SOLVER = """
import farm

class Solver(farm.Model):
    inputs, outputs = {"k": 1, "q": 1}, {"y": 1}

    def evaluate(self, inputs, config):
        if (config["solver"] == "rk") != ("order" in config):
            raise ValueError(f"unexpected config {config}")
        if config.get("order") == 3:
            raise ValueError("order 3")
        return {"y": inputs["k"] + config.get("order", 0)}
"""


solver = farm_of(SOLVER)


def test_words_conditions_constraints_and_correlations(sweep: Command, solver: Served) -> None:
    words = f"--to {solver.folder} {SPACE} --design sobol:32 --seed 7 -o s.h5"
    assert sweep(words)[0] == 1  # those with the order 3 fail
    status, _, err = sweep(words)
    assert (status, "s.h5 is complete" in err) == (1, True)
    status, out, _ = sweep("failures s.h5")
    assert "(solver=rk, order=3, k=" in out
    status, out, _ = sweep("failures s.h5 --csv")
    assert all(row["solver"] == "rk" for row in csv.DictReader(out.splitlines()))
    status, out, _ = sweep("export s.h5 --csv -")
    rows = list(csv.DictReader(out.splitlines()))
    assert {row["solver"] for row in rows} == {"euler", "rk"}
    assert all((row["order"] == "") == (row["solver"] == "euler") for row in rows)
    euler = next(row["point"] for row in rows if row["solver"] == "euler")
    status, out, _ = sweep(f"rerun s.h5 --point {euler}")
    assert status == 0
    assert 'config = {"solver":"euler"}' in out
    status, _, err = sweep(words.replace("0.7", "0.6"))
    assert status == 2
    assert "correlations: k,q=0.7 in the file, k,q=0.6 here" in err


def test_a_further_design_after_any(sweep: Command, solver: Served) -> None:
    Path("more.csv").write_text("order,q,solver,k\n2,1,rk,3\n,1,euler,2\n4,1,rk,9\n")
    words = f"--to {solver.folder} {SPACE} --design grid:2 --seed 7 -o s.h5"
    words = words.replace("--correlation k,q=0.7", "").replace("normal:5:1", "0:6")
    assert sweep(words)[0] == 0
    status, _, err = sweep("extend s.h5 --design grid:3")
    assert status == 1, err
    assert "points are added" in err
    assert sweep("extend s.h5 --design halton:4 --seed 1")[0] == 1
    assert sweep("extend s.h5 --design file:more.csv")[0] == 1
    with h5py.File("s.h5") as file:
        designs = json.loads(file["provenance"].attrs["designs"])
        assert [part["design"] for part in designs] == [
            "grid:2", "grid:3", "halton:4", "file:more.csv"
        ]  # fmt: skip
        assert designs[2]["seed"] == 1
        assert sum(part["points"] for part in designs) == len(file["theta"])
        assert designs[3]["points"] == 2  # one row does not satisfy the constraint
        assert not np.any(file["status"][:] == 0)
    status, _, err = sweep("extend s.h5 --points 500")
    assert status == 2
    assert "append another one by --design file:MORE.csv" in err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("", "expected --points N"),
        ("--points 9 --design lhs:2", "expected --points N"),
        ("--points 2", "expected more"),
        ("--points 9 --seed 3", "--seed is for --design"),
        ("--design lhs:4", "lhs cannot have the constraint --where 'k < 4*q'"),
    ],
)
def test_what_is_no_extension_is_a_line(
    sweep: Command, solver: Served, words: str, complaint: str
) -> None:
    line = f"--to {solver.folder} {SPACE} --design random:2 --seed 1 -o s.h5"
    assert sweep(line)[0] in (0, 1)
    status, _, err = sweep(f"extend s.h5 {words}")
    assert status == 2
    assert complaint in err
    assert not Path("s.h5.lock").exists()
