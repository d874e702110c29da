"""Exports an experiment for other programs: HDF5 in the layout of sweeps, and CSV."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from farm.call import Array, ModelInfo, TensorInfo
from farm.errors import InvalidInput
from farm.experiment.config.definition import Config, Parameter, ParameterKind
from farm.experiment.space import WHOLE, Space, spread_of
from farm.experiment.state.trials import ExperimentRecord, Trial
from farm.sweep.design.plan import Plan
from farm.sweep.design.points import Design
from farm.sweep.file.journal import PointStatus, Row
from farm.sweep.file.store import COMPLETE, Store
from farm.sweep.space import binding


def write_sweep(record: ExperimentRecord, path: Path, provenance: dict[str, str]) -> int:
    """Write an experiment as a sweep file; return its number of points.

    Each trial is a point, parameters are theta, outcomes are outputs of one entry. A second
    stimulus has a column of its own. For a categorical parameter, theta has the index of the
    choice. Values that are not numbers are in /provenance. Raises InvalidInput, SweepError.
    """
    if not record.trials:
        raise InvalidInput(f"experiment {record.number} has no trial yet")
    plan = _plan(record, provenance)
    store = Store.create(path, plan)
    try:
        for number, trial in enumerate(record.trials):
            if trial.outcome is not PointStatus.PENDING:
                store.add(_row(number, trial, store))
        store.close(COMPLETE, None)
    except BaseException:
        store.abandon()
        raise
    return plan.size


def write_csv(record: ExperimentRecord, out: TextIO) -> int:
    """Write the recorded trials of an experiment as a table; return its number of rows.

    The columns are those of AEPsych, then the strategy that generated the point, whether it only
    fills the space, and whether models use its outcome; failed points have an error instead.
    """
    trials = [t for t in record.trials if t.outcome in (PointStatus.DONE, PointStatus.FAILED)]
    extra = list(dict.fromkeys(key for trial in trials for key in trial.extra))
    if any(trial.error for trial in trials):
        extra.append("error")
    config = record.config
    about = config.metadata.standard(record.experiment_id)
    parameters = [name for name, *_ in _columns(config)]
    outcomes = [outcome.name for outcome in config.outcomes]
    # A user's key may have the same name as a column.
    made = ("strategy", "filled_in", "modelled")
    taken = {*about, "timestamp", *parameters, *outcomes, *made}
    shown = [f"extra.{key}" if key in taken else key for key in extra]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*about, "timestamp", *parameters, *outcomes, *made, *shown])
    space = Space.of(config)
    for trial in sorted(trials, key=lambda t: t.told_at or 0.0):
        further = trial.extra | ({"error": trial.error} if trial.error else {})
        cells = [further.get(key, "") for key in extra]
        texts = [c if isinstance(c, str | int | float) else json.dumps(c) for c in cells]
        writer.writerow([*about.values(), *_cells(config, space, trial), *texts])
    return len(trials)


def _cells(config: Config, space: Space, trial: Trial) -> list[Any]:
    """Return the time, point, outcomes and origin of a trial."""
    no_outcomes = [""] * len(config.outcomes)
    return [
        datetime.fromtimestamp(trial.told_at or 0.0, UTC).isoformat(),
        *_values(space, trial.point),
        *(no_outcomes if trial.values is None else trial.values.tolist()),
        "" if trial.strategy is None else config.strategies[trial.strategy].name,
        int(trial.filler),
        int(trial.modelled),
    ]


def _columns(config: Config) -> Iterator[tuple[str, Parameter, int]]:
    """Yield name, parameter and stimulus of each column: p, or p_stimuli1 for stimulus 2."""
    for parameter in config.parameters:
        for stimulus in range(config.stimuli):
            name = parameter.name if stimulus == 0 else f"{parameter.name}_stimuli{stimulus}"
            yield name, parameter, stimulus


def _values(space: Space, point: Array) -> list[Any]:
    """Return the values of a point in the order of `_columns`, in the form that clients get."""
    columns = [column[0] for column in space.decode(point[None]).values()]
    if space.stimuli == 1:
        return columns
    return [value for column in columns for value in column]


def _plan(record: ExperimentRecord, provenance: dict[str, str]) -> Plan:
    config = record.config
    space = Space.of(config)
    columns = [
        column
        for column in _columns(config)
        if column[1].kind is not ParameterKind.FIXED or not isinstance(column[1].value, str)
    ]
    points = np.stack([trial.point for trial in record.trials])
    theta = [
        points[:, stimulus, space.index(parameter.name)]
        if parameter.kind is not ParameterKind.FIXED
        else np.full(len(points), float(parameter.value or 0.0))
        for _, parameter, stimulus in columns
    ]
    name = config.metadata.experiment_name or f"experiment {record.number}"
    texts = {
        "experiment": str(record.number),
        "experiment_id": record.experiment_id,
        "experiment_description": config.metadata.experiment_description,
        "participant_id": config.metadata.participant_id,
        "experiment_config": config.text,
        "choices": json.dumps({p.name: p.choices for p in config.parameters if p.choices}),
        "fixed": json.dumps({p.name: p.value for p in config.parameters if p.value is not None}),
    }
    return Plan(
        run_id=f"{record.experiment_id}/{record.number}",
        info=ModelInfo(
            name,
            tuple(TensorInfo(column, (1,)) for column, *_ in columns),
            tuple(TensorInfo(outcome.name, (1,)) for outcome in config.outcomes),
        ),
        parameters=tuple(
            binding.BoundParameter(
                column, spread_of(parameter), input=i, whole=parameter.kind in WHOLE
            )
            for i, (column, parameter, _) in enumerate(columns)
        ),
        fixed=tuple(np.full(1, np.nan) for _ in columns),
        config={},
        design=Design("file", option=provenance.get("journal", "experiment")),
        seed=record.seed,
        theta=np.stack(theta, axis=1) if theta else np.empty((len(points), 0)),
        title=name,
        provenance=provenance | {key: text for key, text in texts.items() if text},
    )


def _row(number: int, trial: Trial, store: Store) -> Row:
    """Return a completed trial as an outcome of a sweep; its time runs from the ask to the tell.

    The closed loop also stores the model's run time and its worker.
    """
    began = trial.told_at if trial.asked_at is None else trial.asked_at
    took = ran = math.nan
    if trial.asked_at is not None and trial.told_at is not None:
        took = trial.told_at - trial.asked_at
    worker, run_time = trial.extra.get("worker"), trial.extra.get("run_time")
    attempts = trial.extra.get("attempts")
    if isinstance(worker, str) and isinstance(run_time, float) and trial.told_at is not None:
        ran, began = run_time, trial.told_at - run_time
    return Row(
        point=number,
        status=trial.outcome,
        attempt=attempts if isinstance(attempts, int) else trial.attempts,
        copied=trial.extra.get("copied") is True,
        reused=trial.extra.get("reused") is True,
        worker=store.worker_id(worker if isinstance(worker, str) else ""),
        t_start=math.nan if began is None else began,
        t_run=ran,
        t_total=took,
        values=trial.values,
        error=trial.error or ("no outcome recorded" if trial.values is None else ""),
    )
