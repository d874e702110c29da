"""Initial trials of an experiment from files: sweeps, exported records and exported experiments.

Only the command that runs a user's own configuration calls this: a configuration that a client
sent must never make a server read a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from farm.call import Array, TensorInfo, numpy_dtype
from farm.errors import FarmError, InvalidInput, printable, shortened
from farm.experiment.config.definition import Config, Parameter, ParameterKind
from farm.experiment.config.evaluated_model import BoundModel
from farm.experiment.loop.seed_table import SeedTable, read_seed_table
from farm.experiment.space import SAME, WHOLE, Space, coordinate
from farm.experiment.state.seeding import InitialTrials, most_trials
from farm.storage.hdf5 import HDF5_ERRORS
from farm.sweep.errors import SweepError
from farm.sweep.file.journal import PointStatus
from farm.sweep.file.reading import open_sweep

EXPECTED = (
    "expected a sweep file, as farm sweep, farm record export and farm experiment export write it"
)

LONGEST_EXAMPLE = 120
"""Maximum characters of an example in a note: a config may hold any text."""


def read_seed_files(
    names: Sequence[str], folder: Path, config: Config, model: BoundModel
) -> list[InitialTrials]:
    """Return the trials in each of these files, for an experiment and its model.

    names: paths relative to the folder. Together they have at most `most_trials`, the latest ones:
    those of the last files, from their ends. Raises InvalidInput, UnsupportedFeature, whose message
    begins with the file's name.
    """
    read: list[InitialTrials] = []
    left = most_trials(Space.of(config))
    for name in reversed(names):
        try:
            with open_sweep(folder / name) as file:
                trials = _trials(name, read_seed_table(file, config, model), config, model, left)
        except FarmError as error:
            raise type(error)(_one_line(f"seed data {name}: {error.message}")) from None
        except (SweepError, *HDF5_ERRORS) as error:
            # Exports serve here too, so a clause about sweep files is left out.
            text = error.message if isinstance(error, SweepError) else str(error)
            named = text if str(folder / name) in text else f"{folder / name}: {text}"
            raise InvalidInput(_one_line(f"seed data: {named}; {EXPECTED}")) from None
        read.append(trials)
        left -= len(trials.points)
    return read[::-1]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _trials(
    name: str, table: SeedTable, config: Config, model: BoundModel, most: int
) -> InitialTrials:
    """Return the last trials of a file, at most `most`, and a note with what was left out."""
    space, version = Space.of(config), model.info.version
    kept = _Kept(np.ones(table.size, dtype=bool))
    never = np.isin(table.status, (PointStatus.PENDING, PointStatus.CANCELLED))
    kept.only(~never, "not evaluated")
    kept.only(table.status == PointStatus.DONE, "failed")
    _keep_fixed_inputs(kept, table, model)
    _keep_config(kept, table, model)
    points = _points(kept, table, space, model)
    kept.only(space.defined(points), "undefined here")
    chosen, outcomes = _last_outcomes(kept, table, most, most_trials(space))
    outcomes = outcomes.reshape(len(chosen), len(config.outcomes))
    points = space.rounded(points[chosen])
    said = [f"initial trials: {len(chosen)}, from {printable(name)}"]
    if kept.left_out:
        said.append(f"left out: {', '.join(kept.left_out)}")
    beyond = np.any((points < space.lower) | (points > space.upper), axis=(1, 2))
    if beyond.any():
        said.append(f"beyond the bounds, and used: {np.count_nonzero(beyond)}")
    if table.version and version and table.version != version:
        said.append(f"evaluated by version {table.version!r}, the farm has {version!r}")
    return InitialTrials(points, outcomes, "; ".join(said))


@dataclass(slots=True)
class _Kept:
    """The points of a file that may become trials, and why others do not.

    mask: shape (points,). left_out: such as "3 failed".
    """

    mask: Array
    left_out: list[str] = field(default_factory=list)

    def only(self, mask: Array | bool, why: str, example: str = "") -> None:
        """Keep the points of the mask only; why: the reason of the others."""
        stay = self.mask & mask
        if lost := int(np.count_nonzero(self.mask) - np.count_nonzero(stay)):
            self.left_out.append(f"{lost} {why}" + (f" ({example})" if example else ""))
        self.mask = stay

    def first(self, mask: Array) -> int | None:
        """Return the first point that is kept but not in the mask, or None."""
        lost = np.flatnonzero(self.mask & ~mask)
        return int(lost[0]) if len(lost) else None


def _keep_fixed_inputs(kept: _Kept, table: SeedTable, model: BoundModel) -> None:
    """Keep the points whose inputs have the experiment's values wherever these are fixed."""
    for i, tensor in enumerate(model.info.inputs):
        wanted = model.binding.fixed[i]
        # Most entries have one value for all points: an input may be a large field.
        is_one = ~np.isnan(wanted) & ~np.isnan(table.fixed[i])
        other = is_one & (_typed(table.fixed[i], tensor) != _typed(wanted, tensor))
        differing = np.flatnonzero(other).tolist()[:1]
        for e in [*differing, *np.flatnonzero(~np.isnan(wanted) & ~is_one).tolist()]:
            values = table.entry(i, e)
            same = _typed(values, tensor) == _typed(wanted[e : e + 1], tensor)
            if (point := kept.first(same)) is not None:
                place = tensor.name if tensor.size == 1 else f"entry {e} of {tensor.name}"
                example = f"{place} = {values[point]:g}, here {wanted[e]:g}"
                kept.only(same, "with other fixed inputs", example)


def _typed(values: Array, tensor: TensorInfo) -> Array:
    """Return numbers as the model's input holds them."""
    with np.errstate(invalid="ignore", over="ignore"):
        held = values.astype(numpy_dtype(tensor.dtype)).astype(np.float64)
    return np.where(np.isfinite(values), held, values)


def _keep_config(kept: _Kept, table: SeedTable, model: BoundModel) -> None:
    """Keep the points whose config has the experiment's keys and values, but for parameters."""
    binding = model.binding
    varied = {p.name for p in binding.parameters if p.input is None}
    for key in dict.fromkeys([*binding.config, *table.config, *table.columns]):
        if key in varied:
            continue
        values = table.setting(key)
        if values is None or key not in binding.config:
            same = np.zeros(table.size, dtype=bool)
        else:
            same = np.array([value == binding.config[key] for value in values], dtype=bool)
        if (point := kept.first(same)) is not None:
            value = "none" if values is None else repr(values[point])
            here = repr(binding.config[key]) if key in binding.config else "none"
            kept.only(same, "with another config", _short(f"{key} = {value}, here {here}"))


def _points(kept: _Kept, table: SeedTable, space: Space, model: BoundModel) -> Array:
    """Return the points as coordinates, shape (n, 1, d). Raises InvalidInput."""
    points = np.full((table.size, space.dimensions), np.nan)
    have: set[str] = set()
    for place, name in model.sources:
        target, at = model.binding.parameters[place], space.index(name)
        parameter = space.free[at]
        if target.input is not None:
            values = table.entry(target.input, target.entry)
        else:
            values = _settings(kept, table, target.name, parameter)
        if name in have:
            same = np.isclose(values, points[:, at], rtol=SAME, atol=0.0)
            kept.only(same, f"with several values of {name}")
            continue
        have.add(name)
        points[:, at] = values
        if parameter.kind in WHOLE:
            is_whole = (values == np.floor(values)) | ~np.isfinite(values)
            kept.only(is_whole, f"whose {name} is no whole number")
    return points[:, None]


def _settings(kept: _Kept, table: SeedTable, key: str, parameter: Parameter) -> Array:
    """Return the coordinates of a parameter from a key of the config. Raises InvalidInput."""
    settings = table.setting(key)
    if settings is None:
        keys = ", ".join([*table.config, *table.columns]) or "none"
        raise InvalidInput(
            f"it has no {key!r} for parameter {parameter.name!r}; the keys of its config are {keys}"
        )
    plain = [value if isinstance(value, str | int | float) else None for value in settings]
    known = {value: _coordinate(parameter, value) for value in set(plain)}
    values = np.array([known[value] for value in plain])
    point = kept.first(~np.isnan(values))
    if point is not None:
        is_choice = parameter.kind is ParameterKind.CATEGORICAL
        why = "with unknown choices" if is_choice else "without a number"
        kept.only(~np.isnan(values), why, _short(f"{key} = {settings[point]!r}"))
    return values


def _coordinate(parameter: Parameter, value: float | str | None) -> float:
    if parameter.kind is not ParameterKind.CATEGORICAL and isinstance(value, str):
        return np.nan  # the model may treat "2" and 2 differently
    try:
        return coordinate(parameter, value)
    except InvalidInput:
        return np.nan


def _short(text: str) -> str:
    return shortened(printable(text), LONGEST_EXAMPLE)


def _last_outcomes(kept: _Kept, table: SeedTable, most: int, limit: int) -> tuple[Array, Array]:
    """Return the last points with finite outcomes, at most `most`, and their outcomes.

    limit: of all files together.
    """
    waiting = np.flatnonzero(kept.mask)
    points: list[int] = []
    outcomes: list[Sequence[float]] = []
    not_finite = refused = 0
    reason = ""
    while len(waiting) and len(points) < most:
        block, waiting = waiting[-table.block :], waiting[: -table.block]
        found = list(zip(block.tolist(), table.outcomes(block), strict=True))
        while found and len(points) < most:
            point, values = found.pop()
            if isinstance(values, str):
                refused, reason = refused + 1, reason or values
            elif not np.isfinite(values).all():
                not_finite += 1
            else:
                points.append(point)
                outcomes.append(values)
        waiting = np.append(waiting, [point for point, _ in found]).astype(np.int64)
    for count, why in (
        (not_finite, "not finite"),
        (refused, f"without an outcome ({_short(reason)})"),
        (len(waiting), f"beyond the limit of {limit}"),
    ):
        if count:
            kept.left_out.append(f"{count} {why}")
    return np.array(points[::-1], dtype=np.int64), np.array(outcomes[::-1], dtype=np.float64)
