"""`farm.sweep` with words, correlations, constraints and conditions, killed and extended."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest

import farm
from farm.sweep.file.recovery import journal_of
from tests.support.time_limits import scaled

SCRIPT = '''
import os, signal, sys
from pathlib import Path
import farm

calls = 0

def model(load, thickness, solver, order=0):
    """Kills its own process at a call that the command line names."""
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    assert type(solver) is str and (order == 0) == (solver == "euler")
    return load * len(solver) + 100 * order + thickness

SPACE = dict(
    parameters={"load": farm.normal(5, 1), "thickness": "scipy:lognorm:0.2",
                "solver": ["euler", "rk"], "order": farm.integer(1, 4)},
    correlation={("load", "thickness"): 0.7},
    where="load < 6*thickness",
    when={"order": 'solver == "rk"'},
)

if __name__ == "__main__":
    farm.sweep(model, **SPACE, design="sobol:48", seed=3, out=sys.argv[1], workers=1,
               show=False).wait()
'''


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def space(script: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the functions and values of the script."""
    monkeypatch.setattr(sys, "argv", ["script", "none", "-1"])
    found: dict[str, Any] = {"__name__": "script"}
    exec(compile(SCRIPT, str(script), "exec"), found)
    return found


def run(script: Path, out: Path, kill_at: int) -> int:
    words = [sys.executable, str(script), str(out), str(kill_at)]
    return subprocess.run(words, timeout=scaled(60.0), check=False).returncode


@pytest.mark.slow
def test_a_sweep_that_is_killed_and_goes_on_has_the_same_rows(
    script: Path, space: dict[str, Any], tmp_path: Path
) -> None:
    killed, whole = tmp_path / "killed.h5", tmp_path / "whole.h5"
    assert run(script, killed, 20) == -signal.SIGKILL
    assert journal_of(killed).exists()
    assert farm.load_progress(killed).done > 0
    assert run(script, killed, -1) == 0
    assert not journal_of(killed).exists()
    farm.sweep(
        space["model"], **space["SPACE"], design="sobol:48", seed=3, out=whole, show=False
    ).wait()
    with h5py.File(killed) as one, h5py.File(whole) as other:
        for name in ("theta", "unit", "out_0", "status", "words/param_2"):
            assert one[name][:].tobytes() == other[name][:].tobytes(), name
        sums = [file["provenance"].attrs["theta_sha256"] for file in (one, other)]
        assert sums[0] == sums[1]
    frame = farm.load_pandas(killed)
    assert frame.model.notna().all()
    assert frame.order.isna().equals(frame.solver == "euler")
    assert (frame["load"] < 6 * frame.thickness).all()
    assert frame.groupby("solver", observed=True).size().sum() == 48


def test_points_have_words_and_none(space: dict[str, Any], tmp_path: Path) -> None:
    sweep = farm.sweep(
        space["model"], **space["SPACE"], design="random", n=8, out=tmp_path / "s.h5", show=False
    )
    points = list(sweep.as_completed())
    assert {point.parameters["solver"] for point in points} == {"euler", "rk"}
    for point in points:
        assert point.ok, point.error
        assert (point.parameters["order"] is None) == (point.parameters["solver"] == "euler")


def test_another_space_is_another_sweep(space: dict[str, Any], tmp_path: Path) -> None:
    def again(**other: Any) -> farm.Sweep:
        given = {**space["SPACE"], **other}
        return farm.sweep(
            space["model"], **given, design="random:6", seed=3, out=tmp_path / "s.h5", show=False
        )

    again().wait()
    again().wait()
    parameters = space["SPACE"]["parameters"]
    for other, complaint in (
        ({"where": "load < 7*thickness"}, "constraints: load < 6.thickness in the file, load < 7"),
        ({"when": {"order": 'solver != "euler"'}}, "condition of order: solver == .* in the file"),
        ({"correlation": {("load", "thickness"): 0.5}}, "correlations: load,thickness=0.7 in the"),
        (
            {"parameters": {**parameters, "solver": ["euler", "rk", "bdf"]}},
            "parameter solver: choice:euler,rk in the file, choice:euler,rk,bdf here",
        ),
    ):
        with pytest.raises(farm.SweepError, match=complaint):
            again(**other)


def test_a_conditional_argument_needs_a_default(tmp_path: Path) -> None:
    def model(solver, order):  # type: ignore[no-untyped-def]  # as users write them
        return order

    parameters = {"solver": ["a", "b"], "order": (0, 1)}
    options: dict[str, Any] = {"when": {"order": 'solver == "a"'}, "design": "random:4", "seed": 1}
    with pytest.raises(farm.SweepError, match="'order' of 'model' has a condition and no default"):
        farm.sweep(model, parameters, **options, out=tmp_path / "s.h5")
    sweep = farm.sweep(
        model, parameters, **options, fix={"order": -1}, out=tmp_path / "s.h5", show=False
    )
    sweep.wait()
    frame = sweep.to_pandas()
    assert (frame.model == frame.order.fillna(-1)).all()
    assert (frame.order.isna() == (frame.solver == "b")).all()


def test_a_sweep_is_extended_by_its_sequence_a_design_and_a_data_frame(
    space: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.h5"
    model = space["model"]
    farm.sweep(model, **space["SPACE"], design="sobol:8", seed=3, out=path, show=False).wait()
    farm.extend_sweep(model, path, points=16, show=False).wait()
    farm.extend_sweep(model, path, "random", n=4, show=False).wait()
    rows = pd.DataFrame(
        {"load": [1.0, 2.0], "thickness": 1.0, "solver": ["rk", "euler"], "order": [1, None]}
    )
    farm.extend_sweep(model, path, rows, show=False).wait()
    frame = farm.load_pandas(path)
    assert len(frame) == 22
    assert (frame.status == "done").all()
    assert frame.solver.tolist()[-2:] == ["rk", "euler"]
    assert frame.model.tolist()[-2:] == [103.0, 11.0]
    whole = tmp_path / "whole.h5"
    farm.sweep(model, **space["SPACE"], design="sobol:16", seed=3, out=whole, show=False).wait()
    columns = ["load", "thickness", "order", "model"]
    np.testing.assert_array_equal(frame[columns][:16], farm.load_pandas(whole)[columns])
    with h5py.File(path) as file:
        assert file["provenance"].attrs["designs"].startswith('[{"design": "sobol:16", "seed": 3,')
        assert np.isnan(file["unit"][-2:]).all()


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({}, "expected points=N"),
        ({"points": 9, "design": "lhs:3"}, "expected points=N"),
        ({"points": 9, "seed": 3}, "are for a design"),
        ({"design": 5}, "design is a int"),
        ({"design": "grid:2"}, "all 2 points of grid:2 are in this sweep already"),
    ],
)
def test_what_is_no_extension(tmp_path: Path, more: dict[str, Any], complaint: str) -> None:
    path = tmp_path / "s.h5"

    def model(x):  # type: ignore[no-untyped-def]  # as users write them
        return x

    farm.sweep(model, {"x": [1, 2]}, design="grid", out=path, show=False).wait()
    with pytest.raises(farm.SweepError, match=complaint):
        farm.extend_sweep(model, path, **more)
    with pytest.raises(farm.SweepError, match="source of the model"):
        farm.extend_sweep(lambda x: x + 1, path, "random:2")
    assert not path.with_name("s.h5.lock").exists()


def test_there_is_nothing_to_extend(tmp_path: Path) -> None:
    with pytest.raises(farm.SweepError, match="does not exist"):
        farm.extend_sweep("model.py", tmp_path / "s.h5", "random:2")
