"""The layout of a sweep file, and what h5py, xarray, ArviZ and Octave read from it."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from farm.call import ModelInfo, TensorInfo
from farm.sweep.design.extension import appended_plan
from farm.sweep.design.plan import Plan
from farm.sweep.design.points import parse_design
from farm.sweep.file import layout
from farm.sweep.file.journal import NO_WORKER, POINT_FIELDS, AnsweringWorker, PointStatus
from farm.sweep.file.point_columns import PointColumns
from farm.sweep.file.store import Store
from farm.sweep.file.text_tables import write_tables
from tests.sweep.samples import BEAM, done, failed, plan_of, values_of

PLAN = plan_of(
    "sobol:16",
    {"E": "1:2", "load": "log:1e-3:1", "mesh": "int:1:4"},
    gradients=["u[1]"],
    provenance={"notes": "naïve, with a \0 and a \ud800"},
)


def test_other_numbers_of_a_point_have_another_version() -> None:
    """A reader of this version expects all of them."""
    types = {"sweep/2": "u1 u1 u4 f8 f4 f4 f4 u1 u1"}
    assert " ".join(field.dtype for field in POINT_FIELDS) == types[layout.LAYOUT]


@pytest.fixture
def path(path: Path) -> Path:
    """Write a file with one done and one failed point."""
    with h5py.File(path, "w") as file:
        layout.create(file, PLAN)
        known = PointColumns.nothing(16)
        known.add(AnsweringWorker(0, "node1/7", 1.7e9))
        known.add(failed(5, worker=0, error="böse \0"))
        write_tables(file, known)
        known.add(done(PLAN, 3, worker=0))
        layout.write_points(file, PLAN.columns, np.array([3]), values_of(PLAN, 3)[None])
        layout.write_outcomes(file, known, np.array([3, 5]))
        layout.write_summary(file, {"done": 1})
    return path


def test_every_array_has_its_shape_and_type(path: Path) -> None:
    with h5py.File(path) as file:
        found = {
            name: (item.shape, str(item.dtype))
            for name, item in file.items()
            if isinstance(item, h5py.Dataset)
        }
    assert found == {
        "point": ((16,), "int64"),
        "param": ((5,), "|S4"),
        "theta": ((16, 5), "float64"),
        "unit": ((16, 5), "float64"),
        "out_0": ((16, 4), "float64"),
        "out_1": ((16, 1), "float64"),
        "grad_0_0": ((16, 4, 3), "float64"),
        "grad_0_1": ((16, 4, 1), "float64"),
        "out_0_entry": ((4,), "int64"),
        "out_1_entry": ((1,), "int64"),
        "in_0_entry": ((3,), "int64"),
        "in_1_entry": ((1,), "int64"),
        "status": ((16,), "uint8"),
        "attempts": ((16,), "uint8"),
        "copied": ((16,), "uint8"),
        "reused": ((16,), "uint8"),
        "t_start": ((16,), "float64"),
        "t_run": ((16,), "float32"),
        "t_queue": ((16,), "float32"),
        "t_total": ((16,), "float32"),
        "worker": ((16,), "uint32"),
        "sequence": ((), "uint64"),
    }
    with h5py.File(path) as file:

        def check(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset) and not item.is_scale:
                assert all(len(axis) == 1 for axis in item.dims), name

        file.visititems(check)


def test_space_is_there_from_the_start(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "s.h5", "w") as file:
        layout.create(file, plan_of("random:20000"))
        for name in ("theta", "out_0", "status", "t_start"):
            assert file[name].id.get_storage_size() >= file[name].size * file[name].dtype.itemsize
            assert file[name].maxshape[0] is None


def test_values_and_outcomes_are_where_they_belong(path: Path) -> None:
    with h5py.File(path) as file:
        assert np.array_equal(file["theta"][:], PLAN.theta)
        assert [name.decode() for name in file["param"]] == [p.name for p in PLAN.parameters]
        assert file["out_0"][3].tolist() == values_of(PLAN, 3)[:4].tolist()
        assert np.all(np.isnan(file["out_0"][4]))
        assert file["status"][:6].tolist() == [0, 0, 0, 1, 0, 2]
        assert file["worker"][3] == 0
        assert file["worker"][4] == NO_WORKER
        assert file["failures/error"][0].decode() == "böse \\0"
        assert file["provenance"].attrs["notes"] == "naïve, with a \\0 and a ?"
        assert file["theta"].attrs["lower"].tolist() == [1, 1, 1, 1e-3, 1]
        assert file["theta"].attrs["upper"].tolist() == [2, 2, 2, 1, 4]
        assert list(file["theta"].attrs["scale"]) == ["uniform"] * 3 + ["log", "integer"]
        assert file["provenance"].attrs["theta_sha256"] == PLAN.theta_hash


def test_plan_and_knowledge_read_back(path: Path) -> None:
    with h5py.File(path) as file:
        plan, known = layout.read_plan(file), layout.read_known(file)
    # HDF5 cannot hold this text unchanged, but it reads back through JSON.
    assert plan.to_json() == PLAN.to_json()
    assert np.array_equal(plan.theta, PLAN.theta)
    assert known.status.tolist() == [0, 0, 0, 1, 0, 2] + [0] * 10
    assert known.workers == [AnsweringWorker(0, "node1/7", 1.7e9)]
    (row,) = known.failures
    assert (row.point, row.status, row.traceback) == (5, PointStatus.FAILED, "line 1")


@pytest.mark.parametrize("engine", ["h5netcdf", "netcdf4"])
def test_xarray_reads_it(path: Path, engine: str) -> None:
    with xr.open_dataset(path, engine=engine) as data:
        assert dict(data.sizes) == {
            **{"point": 16, "param": 5, "out_0_entry": 4, "out_1_entry": 1},
            **{"in_0_entry": 3, "in_1_entry": 1},
        }
        names = data.param if engine == "netcdf4" else data.param.str.decode("utf-8")
        assert names.values.tolist() == [p.name for p in PLAN.parameters]
        assert np.issubdtype(data.t_start.dtype, np.datetime64)
        assert data.t_run.dtype == np.float32
        assert float(data.out_0.sel(point=3)[0]) == 3.0
        assert data.status.attrs["flag_meanings"] == "pending done failed cancelled timeout"
        assert data.attrs["farm_layout"] == "sweep/2"


@pytest.mark.slow
def test_xarray_reads_all_groups(path: Path) -> None:
    with xr.open_datatree(path, engine="h5netcdf") as tree:
        assert set(tree.children) == {"failures", "workers", "provenance", "summary"}
        assert tree["failures"].error.values.tolist() == ["böse \\0".encode()]
        assert tree["workers"].host.values.tolist() == [b"node1"]
        assert json.loads(tree["provenance"].attrs["model_info"])["name"] == "beam"
        assert tree["summary"].attrs["done"] == 1
    data = importlib.import_module("arviz").from_netcdf(path)
    assert {"failures", "workers"} <= set(data.groups())


def test_h5dump_reads_it(path: Path) -> None:
    if shutil.which("h5dump") is None:
        pytest.skip("h5dump is not installed")
    command = ["h5dump", "-d", "/status", str(path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "H5T_STD_U8LE" in shown
    assert "(0): 0, 0, 0, 1, 0, 2, 0" in shown


def test_a_table_has_no_distributions_and_many_parameters_no_bounds(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("1,2,3,4\n5,6,7,8\n")
    plan = plan_of(f"file:{tmp_path}/p.csv", {})
    with h5py.File(tmp_path / "s.h5", "w") as file:
        layout.create(file, plan)
        assert "unit" not in file
        assert list(file["theta"].attrs["scale"]) == ["table"] * 4
        assert file["theta"].attrs["upper"].tolist() == [5, 6, 7, 8]
        assert layout.read_plan(file).unit is None
    info = ModelInfo("wide", (TensorInfo("x", (9000,)),), (TensorInfo("y", (1,)),))
    wide = plan_of("random:2", {"x": "0:1"}, info=info)
    with h5py.File(tmp_path / "s.h5", "w") as file:
        layout.create(file, wide)
        assert len(layout.read_plan(file).parameters) == 9000


def test_a_longer_plan_keeps_what_is_there(path: Path) -> None:
    longer = plan_of("sobol:32", {"E": "1:2", "load": "log:1e-3:1", "mesh": "int:1:4"})
    object.__setattr__(longer, "run_id", PLAN.run_id)
    object.__setattr__(longer, "gradients", PLAN.gradients)
    with h5py.File(path, "r+") as file:
        layout.fit(file, longer)
        assert file["out_0"].shape == (32, 4)
        assert file["out_0"][3].tolist() == values_of(PLAN, 3)[:4].tolist()
        assert np.all(np.isnan(file["out_0"][16:]))
        assert file["status"][16:].tolist() == [0] * 16
        assert file["point"][:].tolist() == list(range(32))
        assert np.array_equal(file["theta"][:], longer.theta)
        assert layout.read_plan(file).to_json() == longer.to_json()


def write_done(file: h5py.File, plan: Plan, points: list[int]) -> None:
    """Write these points, which ascend, as done ones."""
    known = PointColumns.nothing(plan.size)
    for point in points:
        known.add(done(plan, point))
    values = np.array([values_of(plan, point) for point in points])
    layout.write_points(file, plan.columns, np.array(points), values)
    layout.write_outcomes(file, known, np.array(points))


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(0, 15), unique=True, min_size=1), max_size=4))
def test_rows_in_any_order_land_in_their_places(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]]
) -> None:
    plan: Plan = plan_of("random:16")
    with h5py.File(tmp_path_factory.mktemp("layout") / "s.h5", "w") as file:
        layout.create(file, plan)
        for batch in batches:
            write_done(file, plan, sorted(batch))
        written = sorted({point for batch in batches for point in batch})
        assert np.flatnonzero(file["status"][:]).tolist() == written
        there = layout.read_values(file, plan.columns, np.array(written, dtype=int))
        assert np.array_equal(there, np.array([values_of(plan, p) for p in written]).reshape(-1, 5))
        assert np.all(np.isnan(np.delete(file["out_0"][:], written, axis=0)))


def test_many_scattered_rows_land_in_their_places(tmp_path: Path) -> None:
    wide = TensorInfo("wide", (layout.FEW_ENTRIES + 1,))
    plan = plan_of("random:3000", info=replace(BEAM, outputs=(*BEAM.outputs, wide)))
    points = np.random.default_rng(0).permutation(3000)[:1000]
    with h5py.File(tmp_path / "s.h5", "w") as file:
        layout.create(file, plan)
        write_done(file, plan, sorted(points.tolist()))
        assert np.array_equal(np.flatnonzero(file["status"][:]), np.sort(points))
        there = layout.read_values(file, plan.columns, np.sort(points))
        assert np.array_equal(there, [values_of(plan, point) for point in sorted(points.tolist())])
        assert np.all(np.isnan(np.delete(file["out_2"][:], points, axis=0)))


def test_costs_are_a_column_of_the_file_if_there_are_any(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "without.h5", "w") as file:
        layout.create(file, plan_of("random:6"))
        assert "cost" not in file
        assert layout.read_plan(file).cost is None
    plan = replace(plan_of("random:6"), cost=np.arange(6.0), cost_rule="n**3", order="given")
    with h5py.File(tmp_path / "s.h5", "w") as file:
        layout.create(file, plan)
        assert file["cost"][:].tolist() == [0, 1, 2, 3, 4, 5]
        assert file["cost"].dims[0][0] == file["point"]
        read = layout.read_plan(file)
    assert (read.cost_rule, read.order) == ("n**3", "given")
    assert read.cost is not None
    assert read.cost.tolist() == [0, 1, 2, 3, 4, 5]


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
