"""`farm.extend_sweep`: more points of a sequence, of a design, and of a DataFrame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest

import farm

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
