"""Plans: the calls of each point, the columns of its answers, and JSON round trips."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import Call, ModelInfo, Operation, TensorInfo
from farm.sweep.design.plan import Column, Plan, plan_from_text
from farm.sweep.design.points import point_seed
from farm.sweep.errors import SweepError
from tests.sweep.samples import BEAM, plan_of


def again(plan: Plan) -> Plan:
    return plan_from_text(json.dumps(plan.to_json()), plan.theta, plan.unit)


def same(a: Call, b: Call) -> bool:
    arrays = zip(a.inputs, b.inputs, strict=True)
    return (a.model, a.operation, a.config) == (b.model, b.operation, b.config) and all(
        np.array_equal(x, y) and x.dtype == y.dtype for x, y in arrays
    )


def test_a_point_is_one_call_with_its_inputs_and_config() -> None:
    plan = plan_of("random:5", {"E[0]": "1:2", "mesh": "int:1:4"}, fixes={"E": 7, "load": 3})
    (call,) = plan.calls(2)
    assert (call.model, call.operation) == ("beam", Operation.EVALUATE)
    assert call.inputs[0].tolist() == [plan.theta[2, 0], 7, 7]
    assert call.inputs[1].tolist() == [3]
    assert json.loads(call.config) == {"mesh": int(plan.theta[2, 1])}
    assert '"mesh":1.0' not in call.config


def test_inputs_have_the_model_s_shapes_and_types_and_are_not_shared() -> None:
    info = ModelInfo(
        "m",
        (TensorInfo("x", (2, 2), "float32"), TensorInfo("n", (), "int64")),
        (TensorInfo("y", (1,)),),
    )
    plan = plan_of("random:3", {"x": "0:1", "n": "int:1:9"}, info=info)
    x, n = plan.inputs_of(1)
    assert (x.shape, x.dtype.name) == ((2, 2), "float32")
    assert (n.shape, n.dtype.name) == ((), "int64")
    assert n == plan.theta[1, 4]
    plan = plan_of()
    first = plan.inputs_of(0)
    first[0][:] = -1
    assert not np.any(plan.inputs_of(0)[0] == -1)
    assert all(np.all(np.isnan(fixed)) for fixed in plan.fixed)


def test_many_points_have_the_calls_of_each_at_once() -> None:
    plan = plan_of(
        "random:9",
        {"E[1]": "1:2", "load": "choice:euler,rk4", "mesh": "int:1:4"},
        info=replace(BEAM, inputs=(BEAM.inputs[0], TensorInfo("load", (), "bytes"))),
        fixes={"E": 7, "E[1]": 7},
        when={"E[1]": "mesh > 2"},
    )
    points = np.array([8, 2, 2, 5])
    together = plan.calls_at(points)
    for point, calls in zip(points.tolist(), together, strict=True):
        mesh = int(plan.theta[point, 2])
        assert all(same(a, b) for a, b in zip(calls, plan.calls(point), strict=True))
        assert [x.tolist() for x in calls[0].inputs] == [
            [7, plan.theta[point, 0] if mesh > 2 else 7, 7],
            [b"euler", b"rk4"][int(plan.theta[point, 1])],
        ]
        assert json.loads(calls[0].config) == {"mesh": mesh}
    assert len({call.config for call, *_ in together}) > 1
    by_gradient = plan_of("random:9", gradients=["mass"]).calls_at(points)
    assert [call.operation for call in by_gradient[1]] == ["evaluate", "gradient", "gradient"]
    assert plan_of("random:9").calls_at(np.array([], dtype=np.int64)) == []


def test_columns_are_outputs_then_gradients_with_their_sizes() -> None:
    plan = plan_of(gradients=["u[1]", "mass"])
    assert plan.columns == (
        Column("out_0", (4,), 0),
        Column("out_1", (1,), 1),
        Column("grad_0_0", (4, 3), 0, 0),
        Column("grad_0_1", (4, 1), 0, 1),
        Column("grad_1_0", (1, 3), 1, 0),
        Column("grad_1_1", (1, 1), 1, 1),
    )
    assert plan.row_size == 4 + 1 + 12 + 4 + 3 + 1
    info = ModelInfo("m", (TensorInfo("k", (1,)),), (TensorInfo("a", (0,)), TensorInfo("b", (2,))))
    assert [c.name for c in plan_of("random:2", {"k": "0:1"}, info=info).columns] == ["out_1"]


def test_gradient_calls_ask_for_unit_vectors() -> None:
    plan = plan_of(gradients=["u[2]"])
    evaluate, by_e, by_load = plan.calls(0)
    assert evaluate.derivative is None
    for call, j in ((by_e, 0), (by_load, 1)):
        assert call.operation is Operation.GRADIENT
        assert call.derivative is not None
        assert (call.derivative.out_wrt, call.derivative.in_wrt) == (0, j)
        assert call.derivative.sens is not None
        assert call.derivative.sens.tolist() == [0, 0, 1, 0]


@given(
    st.sampled_from(["random:6", "sobol:8", "grid:2"]),
    st.dictionaries(st.sampled_from(["E", "E[1]", "load", "mesh", "tol"]), st.just("1:2")),
    st.integers(0, 2**63),
    st.sampled_from(["", "seed"]),
    st.sampled_from([(), ("u[1]",), ("u", "mass")]),
)
def test_plan_reads_back(
    design: str, params: dict[str, str], seed: int, seed_key: str, gradients: tuple[str, ...]
) -> None:
    plan = plan_of(
        design,
        {"load": "0:1", **params},
        seed=seed,
        fixes={} if "E" in params else {"E": [1, 2, 3]},
        config={"a": {"b": [1, None]}},
        seed_key=seed_key,
        gradients=gradients,
        title="ä",
        gzip=True,
        provenance={"notes": "x"},
    )
    read = again(plan)
    assert read.to_json() == plan.to_json()
    assert read.columns == plan.columns
    for point in range(plan.size):
        for a, b in zip(plan.calls(point), read.calls(point), strict=True):
            assert same(a, b)


def test_only_grids_and_tables_are_shuffled(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("1,2,3,4\n" * 81)
    assert plan_of("sobol:8").mixed().tolist() == list(range(8))
    for plan in (plan_of("grid:3"), plan_of(f"file:{tmp_path}/p.csv", {})):
        order = plan.mixed().tolist()
        assert sorted(order) == list(range(81))
        assert order != sorted(order)
        assert replace(plan, order="shuffled").mixed().tolist() == order
        assert replace(plan, order="given").mixed().tolist() == list(range(81))


def test_configs_vary_with_a_parameter_or_a_seed() -> None:
    assert not plan_of(fixes={"mesh": 2}).varies_config
    assert plan_of(seed_key="seed").varies_config
    assert plan_of(params={"E": "0:1", "load": "0:1", "mesh": "int:1:2"}).varies_config
    plan = plan_of(seed_key="seed")
    assert plan.config_of(3)["seed"] == point_seed(7, 3)


def test_the_plan_of_an_earlier_file_has_no_order_and_no_cost() -> None:
    data = plan_of().to_json()
    assert not {"order", "cost"} & set(data), "as it was written before there were any"
    read = Plan.from_json(data, plan_of().theta, None)
    assert (read.order, read.cost, read.cost_rule) == ("auto", None, "")


def test_hash_is_that_of_the_bytes() -> None:
    plan = plan_of()
    assert plan.theta_hash == hashlib.sha256(plan.theta.astype("<f8").tobytes()).hexdigest()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run_id": 1}'])
def test_what_is_no_plan_is_told(text: str) -> None:
    with pytest.raises(SweepError, match="cannot be read"):
        plan_from_text(text, np.zeros((1, 1)), None)
