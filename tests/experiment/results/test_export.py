"""Experiments as files: the columns of AEPsych's tables, and the layout of sweeps."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr

from farm.errors import InvalidInput
from farm.experiment.config.reader import read_config
from farm.experiment.results.export import write_csv, write_sweep
from farm.experiment.state.trials import ExperimentRecord, Trial
from farm.sweep.file.journal import PointStatus
from farm.sweep.file.reading import failures_of, known_of, progress_of

ALL_KINDS = {
    "common": {
        "parnames": ["x", "n", "on", "colour", "always", "text"],
        "outcome_types": ["continuous", "binary"],
        "outcome_names": ["cost", "broke"],
        "strategy_names": ["s"],
    },
    "x": {"par_type": "continuous", "lower_bound": 0.01, "upper_bound": 10, "log_scale": True},
    "n": {"par_type": "integer", "lower_bound": 1, "upper_bound": 5},
    "on": {"par_type": "binary"},
    "colour": {"par_type": "categorical", "choices": ["red", "green"]},
    "always": {"par_type": "fixed", "value": 2.5},
    "text": {"par_type": "fixed", "value": "abc"},
    "s": {"generator": "RandomGenerator", "min_asks": 3},
    "metadata": {"experiment_name": "kinds", "participant_id": "p7"},
}

PAIRS = {
    "common": {
        "parnames": ["p"],
        "outcome_types": ["binary"],
        "stimuli_per_trial": 2,
        "strategy_names": ["s"],
    },
    "p": {"par_type": "continuous", "lower_bound": -1, "upper_bound": 1},
    "s": {"generator": "RandomGenerator", "min_asks": 3},
}


def record(config: Any, *trials: Trial) -> ExperimentRecord:
    return ExperimentRecord(4, "an-id", 11, read_config(config), trials)


def told(point: list[float], values: list[float], **facts: Any) -> Trial:
    return Trial(np.array([point]), PointStatus.DONE, values=np.array(values), **facts)


def kinds() -> ExperimentRecord:
    extra = {"response_time": 0.25, "x": [1, 2]}
    origin: dict[str, Any] = {"strategy": 0, "filler": True, "modelled": True}
    failed: dict[str, Any] = {"told_at": 31.0, "error": "it broke", "attempts": 3}
    return record(
        ALL_KINDS,
        told([0.5, 3, 1, 1], [1.5, 0.0], asked_at=10.0, told_at=12.5, extra=extra, **origin),
        Trial(np.array([[5.0, 1, 0, 0]]), asked_at=20.0),
        Trial(np.array([[7.0, 2, 0, 0]]), PointStatus.FAILED, asked_at=30.0, **failed),
        Trial(np.array([[8.0, 2, 0, 0]]), PointStatus.CANCELLED, asked_at=32.0),
        told([99.0, 5, 1, 0], [np.nan, 1.0], told_at=11.0),
    )


def rows(one: ExperimentRecord) -> list[dict[str, str]]:
    out = io.StringIO()
    count = write_csv(one, out)
    table = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert len(table) == count
    return table


def test_a_table_in_aepsychs_columns() -> None:
    table = rows(kinds())
    assert list(table[0]) == [
        *("experiment_id", "experiment_name", "experiment_description", "participant_id"),
        *("timestamp", "x", "n", "on", "colour", "always", "text", "cost", "broke"),
        *("strategy", "filled_in", "modelled", "response_time", "extra.x", "error"),
    ]
    unasked, first, failed = table  # in the order of the tells
    assert (unasked["x"], unasked["cost"], unasked["broke"]) == ("99.0", "nan", "1.0")
    assert unasked["response_time"] == ""
    assert [unasked[name] for name in ("strategy", "filled_in", "modelled")] == ["", "0", "0"]
    assert first == {
        "experiment_id": "an-id",
        "experiment_name": "kinds",
        "experiment_description": "",
        "participant_id": "p7",
        "timestamp": "1970-01-01T00:00:12.500000+00:00",
        **{"x": "0.5", "n": "3.0", "on": "1.0", "colour": "green", "always": "2.5", "text": "abc"},
        **{"cost": "1.5", "broke": "0.0", "strategy": "s", "filled_in": "1", "modelled": "1"},
        **{"response_time": "0.25", "extra.x": "[1, 2]", "error": ""},
    }
    assert (failed["cost"], failed["error"]) == ("", "it broke")


def test_pairs_have_two_columns() -> None:
    pair = np.array([[0.25], [-0.5]])
    trial = Trial(pair, PointStatus.DONE, told_at=1.0, values=np.array([1.0]))
    (row,) = rows(record(PAIRS, trial))
    assert list(row)[5:8] == ["p", "p_stimuli1", "outcome_1"]
    assert (row["p"], row["p_stimuli1"], row["outcome_1"]) == ("0.25", "-0.5", "1.0")


def test_a_file_that_readers_of_sweeps_read(tmp_path: Path) -> None:
    path = tmp_path / "kinds.h5"
    assert write_sweep(kinds(), path, {"argv": "farm experiment export"}) == 5
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    shown = progress_of(path)
    assert (shown.total, shown.done, shown.failed) == (5, 2, 1)
    assert (shown.cancelled, shown.pending) == (1, 1)
    assert (shown.title, shown.state) == ("kinds", "complete")
    failures = {row["point"]: row for row in failures_of(path)}
    assert (failures[2]["error"], failures[2]["attempt"]) == ("it broke", 3)
    plan, _ = known_of(path)
    assert [p.name for p in plan.parameters] == ["x", "n", "on", "colour", "always"]
    with xr.open_dataset(path, engine="h5netcdf") as data:
        theta = data["theta"].values
        assert theta[0].tolist() == [0.5, 3.0, 1.0, 1.0, 2.5]
        assert data["theta"].attrs["upper"].tolist() == [10.0, 5.0, 1.0, 1.0, 2.5]
        assert data["out_0"].attrs["long_name"] == "cost"
        assert data["out_1"].values[:, 0].tolist()[0] == 0.0
        assert np.isnan(data["out_0"].values[[1, 2, 3, 4], 0]).all()
        assert data["status"].values.tolist() == [1, 0, 2, 3, 1]
        assert data["t_total"].values[0] == 2.5
    with h5py.File(path) as file:
        about = file["provenance"].attrs
        assert json.loads(about["choices"]) == {"colour": ["red", "green"]}
        assert json.loads(about["fixed"]) == {"always": 2.5, "text": "abc"}
        assert about["participant_id"] == "p7"
        assert read_config(about["experiment_config"]) == kinds().config


def test_pairs_as_a_sweep(tmp_path: Path) -> None:
    trial = Trial(np.array([[0.25], [-0.5]]), asked_at=1.0)
    write_sweep(record(PAIRS, trial), tmp_path / "p.h5", {})
    with h5py.File(tmp_path / "p.h5") as file:
        assert file["param"].asstr()[:].tolist() == ["p", "p_stimuli1"]
        assert file["theta"][:].tolist() == [[0.25, -0.5]]
        assert file.attrs["title"] == "experiment 4"


def test_nothing_to_write(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="experiment 4 has no trial yet"):
        write_sweep(record(PAIRS), tmp_path / "p.h5", {})
    assert rows(record(PAIRS)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_file_has_what_the_closed_loop_knows_of_a_run(tmp_path: Path) -> None:
    def trial(**extra: Any) -> Trial:
        return told([0.5, 3, 1, 1], [1.5, 0.0], asked_at=10.0, told_at=20.0, extra=extra)

    path = tmp_path / "loop.h5"
    by_loop = trial(worker="node/7", run_time=4.0)
    again = trial(worker="node/8", run_time=2.5, attempts=2, copied=True)
    by_client = trial(worker=3, run_time="long", attempts="two")
    write_sweep(record(ALL_KINDS, by_loop, again, by_client), path, {})
    with h5py.File(path) as file:
        assert file["t_run"][:].tolist()[:2] == [4.0, 2.5]
        assert np.isnan(file["t_run"][2])
        assert file["t_start"][:].tolist() == [16.0, 17.5, 10.0]
        assert file["attempts"][:].tolist() == [1, 2, 1]
        assert file["copied"][:].tolist() == [0, 1, 0]
        assert file["worker"][:].tolist()[:2] == [0, 1]
        assert file["workers/name"].asstr()[:].tolist() == ["node/7", "node/8"]
