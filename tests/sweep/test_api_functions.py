"""`farm.sweep` of plain functions, DataFrames, distributions and models of a farm."""

from __future__ import annotations

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
