"""The description of points in a file: words, facts about their space and their designs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np

from farm.sweep.design.extension import appended_plan
from farm.sweep.design.points import parse_design
from farm.sweep.file import layout
from farm.sweep.file.store import Store
from tests.sweep.samples import plan_of


def test_words_are_text_of_fixed_length_and_octave_reads_them(tmp_path: Path) -> None:
    plan = plan_of("grid:2", {"E": "1,2", "load": "0:1", "s": "rk4,euler", "t": "ä,b"})
    with h5py.File(tmp_path / "s.h5", "w") as file:
        layout.create(file, plan)
        for name, words, kind in (("s", ["rk4", "euler"], "S5"), ("t", ["ä", "b"], "S2")):
            j = [p.name for p in plan.parameters].index(name)
            data = file[f"words/param_{j}"]
            assert data.dtype == np.dtype(kind)
            assert [word.decode() for word in data[:]] == words
            assert data.attrs["long_name"] == f"words of {name}"
        assert layout.read_plan(file).to_json() == plan.to_json()
        with h5py.File(tmp_path / "words.h5", "w") as copy:
            for name in ("theta", "words/param_4"):
                file.copy(name, copy, name=name.replace("/", "_"))
    if shutil.which("octave-cli") is not None:
        program = "d = load('words.h5'); disp(d.words_param_4(2, :)); disp(size(d.theta))"
        words = ["octave-cli", "--quiet", "--eval", program]
        found = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert found.stdout.splitlines()[0] == "euler"
        assert f"{plan.theta.shape[1]}" in found.stdout


def test_a_longer_table_has_more_words(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("load,s,E[0]\n1,a,1\n")
    (tmp_path / "b.csv").write_text("load,s,E[0]\n1,longer,1\n")
    plan = plan_of(f"file:{tmp_path}/a.csv", {}, fixes={"E[1]": 1, "E[2]": 1})
    longer = appended_plan(plan, parse_design(f"file:{tmp_path}/b.csv")).plan
    store = Store.create(tmp_path / "s.h5", plan)
    store.extend(longer)
    store.close("interrupted", {})
    with h5py.File(tmp_path / "s.h5") as file:
        assert file["words/param_1"][:].tolist() == [b"a", b"longer"]
        assert layout.read_plan(file).config_of(1) == {"s": "longer"}
        facts = dict(file["provenance"].attrs)
    assert json.loads(facts["designs"])[1] == {
        "design": f"file:{tmp_path}/b.csv",
        "seed": longer.parts[1].seed,
        "first_point": 1,
        "points": 1,
    }
    assert facts["theta_sha256"] == longer.theta_hash


def test_the_file_says_what_its_space_is(tmp_path: Path) -> None:
    plan = plan_of(
        "sobol:4",
        {"E": "1:2", "load": "0:1", "n": "int:1:9"},
        when={"n": "load > 0.5"},
        where=["E[0] < 1.9", "load > 0.1"],
        correlations={("E[0]", "load"): 0.5},
    )
    with h5py.File(tmp_path / "s.h5", "w") as file:
        layout.create(file, plan)
        facts = file["provenance"].attrs
        assert facts["correlations"] == "E[0],load=0.5"
        assert facts["conditions"] == "n: load > 0.5"
        assert facts["constraints"] == "E[0] < 1.9; load > 0.1"
        assert "designs" not in facts
