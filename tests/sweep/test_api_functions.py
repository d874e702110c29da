"""`farm.sweep` of plain functions, DataFrames, distributions and models of a farm."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import farm


def tip(load, thickness, steps=2):  # type: ignore[no-untyped-def]  # as users write them
    assert (type(load), type(thickness), type(steps)) == (float, float, int)
    return load * steps / thickness


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "s.h5"


def test_a_plain_function(out: Path) -> None:
    ranges = {"load": (1, 10), "thickness": stats.uniform(1, 2), "steps": 3}
    sweep = farm.sweep(tip, ranges, n=8, seed=7, out=out, show=False)
    assert sweep.wait().done == 8
    frame = sweep.to_pandas()
    np.testing.assert_array_equal(frame.tip, 3 * frame.load / frame.thickness)
    assert frame.thickness.between(1, 3).all()


def test_a_function_runs_once_more_for_its_outputs_but_not_when_it_continues(out: Path) -> None:
    calls: list[float] = []

    def square(x: float) -> Any:
        calls.append(x)
        return {"y": x * x}

    def run() -> farm.Sweep:
        sweep = farm.sweep(square, {"x": (0, 1)}, n=4, seed=7, out=out, show=False)
        sweep.wait()
        return sweep

    assert run().progress.done == 4
    assert len(calls) == 5
    assert run().progress.done == 4
    assert len(calls) == 5


def test_an_edited_function_does_not_continue_the_sweep(out: Path) -> None:
    farm.sweep(lambda x: 2 * x, {"x": (0, 1)}, n=4, seed=7, out=out, show=False).wait()
    with pytest.raises(farm.SweepError, match="source of the model"):
        farm.sweep(lambda x: 3 * x, {"x": (0, 1)}, n=4, seed=7, out=out, show=False)


def test_the_rows_of_a_data_frame(out: Path) -> None:
    frame = pd.DataFrame({"load": [1.5, 2.5, 4.5], "thickness": [0.5, 0.25, 1.5]})
    sweep = farm.sweep(tip, frame, out=out, show=False)
    sweep.wait()
    results = sweep.to_pandas()
    assert results.load.tolist() == frame.load.tolist()
    assert results.tip.tolist() == [6.0, 20.0, 6.0]
    assert farm.sweep(tip, frame, out=out, show=False).wait().finished == 3
    with pytest.raises(farm.SweepError, match="holds another sweep"):
        farm.sweep(tip, frame * 2, out=out, show=False)


def test_a_cost_may_be_a_column_of_the_data_frame(out: Path) -> None:
    frame = pd.DataFrame({"x": [1.5, 2.5], "hours": [1.0, 2.0]})
    sweep = farm.sweep(lambda x: x, frame, cost="column:hours", out=out, show=False)
    sweep.wait()
    assert "hours" not in sweep.to_pandas().columns
    assert farm.load_xarray(out).x.values.tolist() == [1.5, 2.5]


def test_a_model_of_a_farm(out: Path) -> None:
    def square(x: float) -> float:
        return x * x

    with farm.serve(square) as client:
        sweep = farm.sweep(client.model(), {"x": [1, 2, 3]}, design="grid", out=out, show=False)
        sweep.wait()
    assert sweep.to_pandas().square.tolist() == [1.0, 4.0, 9.0]


def test_a_function_does_not_run_on_a_farm_by_itself(out: Path) -> None:
    def square(x: float) -> float:
        return x * x

    with (
        farm.serve(square) as client,
        pytest.raises(farm.SweepError, match="name of a model"),
    ):
        farm.sweep(square, {"x": (0, 1)}, n=4, on=client, out=out, show=False)


def test_the_parameters_are_named_by_texts(out: Path) -> None:
    with pytest.raises(farm.SweepError, match="the parameter 1 is a int; expected the name"):
        farm.sweep(lambda x: x, {1: (0, 1)}, n=4, out=out)


def test_a_folder_is_no_file_for_results(tmp_path: Path) -> None:
    with pytest.raises(farm.SweepError, match=r"out is the folder .*; expected a file in it"):
        farm.sweep(lambda x: x, {"x": (0, 1)}, n=4, out=tmp_path)


def test_a_limit_is_checked_before_the_function_runs(out: Path) -> None:
    def never(x: float) -> float:
        raise AssertionError("it must not run")

    with pytest.raises(farm.SweepError, match="in_flight is 0; expected"):
        farm.sweep(never, {"x": (0, 1)}, n=4, out=out, in_flight=0)


def test_a_function_that_ends_the_program_fails(out: Path) -> None:
    with pytest.raises(farm.SweepError, match="the last with SystemExit: 3"):
        farm.sweep(lambda x: sys.exit(3), {"x": (0, 1)}, n=4, out=out)


def test_a_file_that_is_not_there_is_one_line(out: Path) -> None:
    with pytest.raises(ValueError, match="there is no file") as caught:
        farm.sweep("nothing.py", {"x": (0, 1)}, n=4, out=out)
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][1:] == [
        "call"
    ]
