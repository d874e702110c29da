"""Fields: curves and images of points, quantiles, and what is left out of large ones."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from farm.call import Array, ModelInfo, TensorInfo
from farm.sweep.report import fields
from farm.sweep.report.columns import outputs_of
from farm.sweep.report.fields import MOST_ON_CURVE, MOST_ON_SIDE, QUANTILES, field_of, is_field
from tests.sweep.report.reports import made, unpacked
from tests.sweep.samples import plan_of

SIZE = 30
RNG = np.random.default_rng(3)


def field(
    folder: Path, shape: tuple[int, ...], values: Array, *, share: int = 10**6, done: Any = None
) -> dict[str, Any]:
    """Return the field of an output whose values at the points are the rows of `values`."""
    info = ModelInfo("m", (TensorInfo("k", (1,)),), (TensorInfo("u", shape),))
    plan = plan_of(f"random:{SIZE}", {"k": "0:1"}, info=info)

    def outcome(point: int) -> Mapping[str, Any]:
        return {"values": values[point].ravel()}

    made(folder / "s.h5", plan, outcome)
    (pair,) = outputs_of(plan)
    done = np.ones(SIZE, dtype=bool) if done is None else done
    with h5py.File(folder / "s.h5") as file:
        return field_of(file, *pair, np.arange(SIZE), done, share=share)


def test_a_curve_has_the_values_of_points_and_quantiles_over_them(tmp_path: Path) -> None:
    values = RNG.random((SIZE, 12))
    done = np.arange(SIZE) % 3 > 0
    found = field(tmp_path, (12,), values, done=done)
    assert unpacked(found["places"]).tolist() == np.flatnonzero(done).tolist()
    shown = unpacked(found["values"]).reshape(-1, 12)
    assert shown == pytest.approx(values[done], rel=1e-6)
    bands = unpacked(found["bands"]).reshape(5, 12)
    assert bands == pytest.approx(np.quantile(values[done], QUANTILES, axis=0))
    assert (found["rows"], found["shape"]) == (20, [12])


def test_a_long_curve_is_thinned_with_both_ends(tmp_path: Path) -> None:
    values = RNG.random((SIZE, 3000))
    found = field(tmp_path, (3000,), values)
    entries = unpacked(found["entries"])
    assert len(entries) == MOST_ON_CURVE
    assert (entries[0], entries[-1]) == (0, 2999)
    shown = unpacked(found["values"]).reshape(-1, len(entries))
    assert shown == pytest.approx(values[:, entries], rel=1e-6)


def test_an_image_has_mean_and_standard_deviation(tmp_path: Path) -> None:
    values = RNG.random((SIZE, 5, 7))
    found = field(tmp_path, (5, 1, 7), values)
    assert (found["shape"], found["reduced"]) == ([5, 7], [5, 7])
    assert unpacked(found["mean"]) == pytest.approx(values.mean(axis=0).ravel())
    assert unpacked(found["sd"]) == pytest.approx(values.std(axis=0).ravel())
    assert unpacked(found["values"]) == pytest.approx(values.ravel(), rel=1e-6)


@pytest.mark.parametrize("side", [50, 96, 131])
def test_a_large_image_has_the_means_of_blocks(tmp_path: Path, side: int) -> None:
    values = RNG.random((SIZE, side, 4))
    found = field(tmp_path, (side, 4), values)
    high, wide = found["reduced"]
    assert (high, wide) == (MOST_ON_SIDE, 4)
    starts = [k * side // high for k in range(high + 1)]  # as the page's `starts`
    blocks = [values[:, a:b].mean(axis=1) for a, b in itertools.pairwise(starts)]
    expected = np.stack(blocks, axis=1)
    assert unpacked(found["values"]).reshape(expected.shape) == pytest.approx(expected, rel=1e-6)


def test_fields_of_single_points_have_a_bound(tmp_path: Path) -> None:
    found = field(tmp_path, (12,), RNG.random((SIZE, 12)), share=12 * 4)
    places = unpacked(found["places"])
    assert len(places) == 4
    assert len(unpacked(found["values"])) == 48
    assert found["rows"] == SIZE, "quantiles are of all"


def test_no_more_is_read_than_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "MOST_BYTES", 8 * 12 * 10)
    assert field(tmp_path, (12,), RNG.random((SIZE, 12)))["rows"] == 10


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_numbers_that_are_not_finite_are_left_out_of_quantiles(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    values = RNG.random((SIZE, *shape))
    flat = values.reshape(SIZE, -1)
    flat[:, 0] = np.nan
    flat[1, 1], flat[2, 1] = np.inf, -np.inf
    found = field(tmp_path, shape, values)
    name = "bands" if len(shape) == 1 else "mean"
    numbers = unpacked(found[name]).reshape(-1, 6)
    assert np.isnan(numbers[:, 0]).all()
    assert np.isfinite(numbers[:, 1:]).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_without_done_points_there_is_nothing(tmp_path: Path, shape: tuple[int, ...]) -> None:
    found = field(tmp_path, shape, RNG.random((SIZE, *shape)), done=np.zeros(SIZE, dtype=bool))
    assert found["rows"] == 0
    assert len(unpacked(found["places"])) == 0


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((1,), False), ((4,), True), ((1, 4), True), ((3, 4), True), ((2, 3, 4), False), ((), False)],
)
def test_one_or_two_axes_make_a_field(shape: tuple[int, ...], expected: bool) -> None:
    info = ModelInfo("m", (TensorInfo("k", (1,)),), (TensorInfo("u", shape),))
    (pair,) = outputs_of(plan_of(params={"k": "0:1"}, info=info))
    assert is_field(*pair) is expected
