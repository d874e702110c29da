"""`farm.sweep` and `farm.extend_sweep`: functions, DataFrames, spaces, models of a farm."""

from __future__ import annotations

import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import farm
from farm.sweep.file.recovery import journal_of
from tests.support.time_limits import scaled


def tip(load, thickness, steps=2):  # type: ignore[no-untyped-def]  # as users write them
    assert (type(load), type(thickness), type(steps)) == (float, float, int)
    return load * steps / thickness


def test_a_plain_function(path: Path) -> None:
    ranges = {"load": (1, 10), "thickness": stats.uniform(1, 2), "steps": 3}
    sweep = farm.sweep(tip, ranges, n=8, seed=7, out=path, show=False)
    assert sweep.wait().done == 8
    frame = sweep.to_pandas()
    np.testing.assert_array_equal(frame.tip, 3 * frame.load / frame.thickness)
    assert frame.thickness.between(1, 3).all()


def test_a_function_runs_once_more_for_its_outputs_but_not_when_it_continues(path: Path) -> None:
    calls: list[float] = []

    def square(x: float) -> Any:
        calls.append(x)
        return {"y": x * x}

    def run() -> farm.Sweep:
        sweep = farm.sweep(square, {"x": (0, 1)}, n=4, seed=7, out=path, show=False)
        sweep.wait()
        return sweep

    assert run().progress.done == 4
    assert len(calls) == 5
    assert run().progress.done == 4
    assert len(calls) == 5


def test_an_edited_function_does_not_continue_the_sweep(path: Path) -> None:
    farm.sweep(lambda x: 2 * x, {"x": (0, 1)}, n=4, seed=7, out=path, show=False).wait()
    with pytest.raises(farm.SweepError, match="source of the model"):
        farm.sweep(lambda x: 3 * x, {"x": (0, 1)}, n=4, seed=7, out=path, show=False)


def test_the_rows_of_a_data_frame(path: Path) -> None:
    frame = pd.DataFrame({"load": [1.5, 2.5, 4.5], "thickness": [0.5, 0.25, 1.5]})
    sweep = farm.sweep(tip, frame, out=path, show=False)
    sweep.wait()
    results = sweep.to_pandas()
    assert results.load.tolist() == frame.load.tolist()
    assert results.tip.tolist() == [6.0, 20.0, 6.0]
    assert farm.sweep(tip, frame, out=path, show=False).wait().finished == 3
    with pytest.raises(farm.SweepError, match="holds another sweep"):
        farm.sweep(tip, frame * 2, out=path, show=False)


def test_a_cost_may_be_a_column_of_the_data_frame(path: Path) -> None:
    frame = pd.DataFrame({"x": [1.5, 2.5], "hours": [1.0, 2.0]})
    sweep = farm.sweep(lambda x: x, frame, cost="column:hours", out=path, show=False)
    sweep.wait()
    assert "hours" not in sweep.to_pandas().columns
    assert farm.load_xarray(path).x.values.tolist() == [1.5, 2.5]


def test_a_model_of_a_farm_but_no_function_runs_on_a_farm(path: Path) -> None:
    def square(x: float) -> float:
        return x * x

    with farm.serve(square) as client:
        with pytest.raises(farm.SweepError, match="name of a model"):
            farm.sweep(square, {"x": (0, 1)}, n=4, on=client, out=path, show=False)
        sweep = farm.sweep(client.model(), {"x": [1, 2, 3]}, design="grid", out=path, show=False)
        sweep.wait()
    assert sweep.to_pandas().square.tolist() == [1.0, 4.0, 9.0]


def test_a_function_that_exits_has_failed(path: Path) -> None:
    with pytest.raises(farm.SweepError, match="the last with SystemExit: 3"):
        farm.sweep(lambda x: sys.exit(3), {"x": (0, 1)}, n=4, out=path)


def test_a_folder_is_no_file_for_results(tmp_path: Path) -> None:
    with pytest.raises(farm.SweepError, match=r"out is the folder .*; expected a file in it"):
        farm.sweep(lambda x: x, {"x": (0, 1)}, n=4, out=tmp_path)


def test_a_limit_is_checked_before_the_function_runs(path: Path) -> None:
    def never(x: float) -> float:
        raise AssertionError("it must not run")

    with pytest.raises(farm.SweepError, match="in_flight is 0; expected"):
        farm.sweep(never, {"x": (0, 1)}, n=4, out=path, in_flight=0)


def test_a_file_that_is_not_there_is_one_line(path: Path) -> None:
    with pytest.raises(ValueError, match="there is no file") as caught:
        farm.sweep("nothing.py", {"x": (0, 1)}, n=4, out=path)
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][1:] == [
        "call"
    ]


SPACE: dict[str, Any] = {
    "parameters": {
        "load": farm.normal(5, 1),
        "thickness": "scipy:lognorm:0.2",
        "solver": ["euler", "rk"],
        "order": farm.integer(1, 4),
    },
    "correlation": {("load", "thickness"): 0.7},
    "where": "load < 6*thickness",
    "when": {"order": 'solver == "rk"'},
}


def model(load, thickness, solver, order=0):  # type: ignore[no-untyped-def]  # as users write them
    assert type(solver) is str
    assert (order == 0) == (solver == "euler")
    return load * len(solver) + 100 * order + thickness


SCRIPT = """
import os, signal, sys
import farm
from tests.sweep.test_api import SPACE, model

calls = 0

def dying(load, thickness, solver, order=0):
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return model(load, thickness, solver, order)

farm.sweep(dying, **SPACE, design="sobol:48", seed=3, out=sys.argv[1], workers=1, in_flight=1,
           show=False).wait()
"""
"""A program that kills its own process at a call that the command line names."""


def run(out: Path, kill_at: int) -> int:
    words = [sys.executable, "-c", SCRIPT, str(out), str(kill_at)]
    root = Path(__file__).parents[2]
    return subprocess.run(words, cwd=root, timeout=scaled(60.0), check=False).returncode


@pytest.mark.slow
def test_a_sweep_that_is_killed_and_goes_on_has_the_same_rows(tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed.h5", tmp_path / "whole.h5"
    assert run(killed, 20) == -signal.SIGKILL
    assert journal_of(killed).exists()
    # With one point in flight, all others are recorded.
    assert (farm.load_pandas(killed).status == "done").sum() > 10
    assert run(killed, -1) == 0
    assert not journal_of(killed).exists()
    farm.sweep(model, **SPACE, design="sobol:48", seed=3, out=whole, show=False).wait()
    with h5py.File(killed) as one, h5py.File(whole) as other:
        for name in ("theta", "unit", "out_0", "status", "words/param_2"):
            assert one[name][:].tobytes() == other[name][:].tobytes(), name
        sums = [file["provenance"].attrs["theta_sha256"] for file in (one, other)]
        assert sums[0] == sums[1]
    frame = farm.load_pandas(killed)
    assert frame.dying.notna().all()
    assert frame.order.isna().equals(frame.solver == "euler")
    assert (frame["load"] < 6 * frame.thickness).all()
    assert frame.groupby("solver", observed=True).size().sum() == 48


def test_points_have_words_and_none(path: Path) -> None:
    sweep = farm.sweep(model, **SPACE, design="random", n=8, seed=3, out=path, show=False)
    points = list(sweep.as_completed())
    assert {point.parameters["solver"] for point in points} == {"euler", "rk"}
    for point in points:
        assert point.ok, point.error
        assert (point.parameters["order"] is None) == (point.parameters["solver"] == "euler")


def test_a_conditional_argument_needs_a_default(path: Path) -> None:
    def model(solver, order):  # type: ignore[no-untyped-def]  # as users write them
        return order

    parameters = {"solver": ["a", "b"], "order": (0, 1)}
    options: dict[str, Any] = {"when": {"order": 'solver == "a"'}, "design": "random:4", "seed": 1}
    with pytest.raises(farm.SweepError, match="'order' of 'model' has a condition and no default"):
        farm.sweep(model, parameters, **options, out=path)
    sweep = farm.sweep(model, parameters, **options, fix={"order": -1}, out=path, show=False)
    sweep.wait()
    frame = sweep.to_pandas()
    assert (frame.model == frame.order.fillna(-1)).all()
    assert (frame.order.isna() == (frame.solver == "b")).all()


def test_a_sweep_is_extended_by_its_sequence_a_design_and_a_data_frame(tmp_path: Path) -> None:
    path = tmp_path / "s.h5"
    farm.sweep(model, **SPACE, design="sobol:8", seed=3, out=path, show=False).wait()
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
    farm.sweep(model, **SPACE, design="sobol:16", seed=3, out=whole, show=False).wait()
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
def test_what_is_no_extension(path: Path, more: dict[str, Any], complaint: str) -> None:

    def model(x):  # type: ignore[no-untyped-def]  # as users write them
        return x

    farm.sweep(model, {"x": [1, 2]}, design="grid", out=path, show=False).wait()
    with pytest.raises(farm.SweepError, match=complaint):
        farm.extend_sweep(model, path, **more)
    with pytest.raises(farm.SweepError, match="source of the model"):
        farm.extend_sweep(lambda x: x + 1, path, "random:2")
    assert not path.with_name("s.h5.lock").exists()
    with pytest.raises(farm.SweepError, match="does not exist"):
        farm.extend_sweep(model, path.with_name("t.h5"), "random:2")
