"""ONNX files as models: declarations, batches, types, threads, and unusable files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import umbridge
from onnx import TensorProto, helper, numpy_helper

from farm.call import Array, Call, Operation, Result, TensorInfo
from farm.errors import InvalidInput
from farm.model import Model
from farm.worker.frameworks.onnx import OnnxModel, providers_here
from farm.worker.loader import LoadError, load_models
from farm.worker.runner import Runner
from tests.support.dispatcher_farm import serving
from tests.worker.frameworks.answers import evaluated

WEIGHTS = np.random.default_rng(3).standard_normal((3, 2))
ELEMENT = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int32": TensorProto.INT32,
    "uint64": TensorProto.UINT64,
    "bool": TensorProto.BOOL,
    "string": TensorProto.STRING,
}


def saved(
    nodes: Sequence[Any],
    inputs: dict[str, tuple[str, list[Any]]],
    outputs: dict[str, tuple[str, list[Any]]],
    constants: dict[str, Array] | None = None,
    *,
    path: str = "net.onnx",
) -> Path:
    """A file with these nodes; tensors are (type, sizes)."""

    def tensors(described: dict[str, tuple[str, list[Any]]]) -> list[Any]:
        return [
            helper.make_tensor_value_info(name, ELEMENT[dtype], sizes)
            for name, (dtype, sizes) in described.items()
        ]

    made = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "graph", tensors(inputs), tensors(outputs), made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, path)
    return Path(path)


def network(
    dtype: str = "float32", first: Any = "N", out: Any = "N", path: str = "net.onnx"
) -> Path:
    """y = tanh(x W): 3 numbers to 2."""
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"]),
        helper.make_node("Tanh", ["h"], ["y"]),
    ]
    sizes_in, sizes_out = ([] if first is None else [first]), ([] if first is None else [out])
    return saved(
        nodes,
        {"x": (dtype, [*sizes_in, 3])},
        {"y": (dtype, [*sizes_out, 2])},
        {"W": WEIGHTS.astype(dtype)},
        path=path,
    )


def answer(model: Model, *inputs: Any) -> Array:
    return evaluated(model, *inputs)[0]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_file_says_what_the_model_is() -> None:
    model = OnnxModel(network())
    assert model.name == "net"
    assert model.inputs == {"x": TensorInfo("x", (3,), "float32")}
    assert model.outputs == {"y": TensorInfo("y", (2,), "float32")}
    assert model.max_batch == 64
    (info,) = Runner({"net": model}).models()
    assert info.operations == {Operation.EVALUATE}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_values_are_those_of_the_network_in_its_own_type(dtype: str) -> None:
    x = np.array([0.25, -0.5, 1.0])
    y = answer(OnnxModel(network(dtype)), x)
    assert y.dtype == dtype
    tolerance = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-14}[dtype]
    np.testing.assert_allclose(y, np.tanh(x @ WEIGHTS), rtol=tolerance)


def test_a_batch_is_what_its_rows_are_alone_and_calls_share_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = OnnxModel(network("float64"), max_batch=8)
    runs: list[int] = []
    run = model.run

    def counted(arrays: Sequence[Array]) -> list[Array]:
        runs.append(len(arrays[0]))
        return run(arrays)

    monkeypatch.setattr(model, "run", counted)
    x = np.random.default_rng(1).standard_normal((12, 3))
    calls = [Call("m", Operation.EVALUATE, (row,)) for row in x[:5]]
    calls.append(Call("m", Operation.EVALUATE, (x[5:],), rows=7))
    outcomes = Runner({"m": model}).execute(calls)
    assert runs == [5, 7]
    found = [o.outputs[0].reshape(-1, 2) for o in outcomes if isinstance(o, Result)]
    np.testing.assert_allclose(np.concatenate(found), np.tanh(x @ WEIGHTS), rtol=1e-14)


@pytest.mark.parametrize(
    ("first", "out", "max_batch", "shape"),
    [
        ("N", "N", 64, (3,)),
        (None, None, 1, (3,)),  # no such axis at all
        (1, 1, 1, (1, 3)),  # exported for one row
        (4, 4, 1, (4, 3)),
        ("N", "other", 64, (3,)),  # exporters invent new names for inferred sizes
    ],
)
def test_which_first_axis_is_the_batch(
    first: Any, out: Any, max_batch: int, shape: tuple[int, ...]
) -> None:
    model = OnnxModel(network("float64", first, out))
    (info,) = Runner({"m": model}).models()
    assert info.max_batch == max_batch
    assert info.inputs[0].shape == shape
    x = np.random.default_rng(1).standard_normal(shape)
    np.testing.assert_allclose(answer(model, x), np.tanh(x @ WEIGHTS))


def test_a_file_that_says_any_number_of_rows_but_takes_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # The shape that x gets is (1, 6), but it is unknown before it is computed.
    nodes = [
        helper.make_node("Sub", ["x", "x"], ["zeros"]),
        helper.make_node("ReduceSum", ["zeros"], ["zero"], keepdims=0),
        helper.make_node("Cast", ["zero"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Add", ["whole", "shape"], ["wanted"]),
        helper.make_node("Reshape", ["x", "wanted"], ["y"]),
    ]
    sizes: dict[str, Any] = {"inputs": {"x": ("float64", ["N", 6])}}
    sizes["outputs"] = {"y": ("float64", ["N", 6])}
    path = saved(nodes, **sizes, constants={"shape": np.array([1, 6])})
    model = OnnxModel(path)
    assert model.max_batch == 1
    assert "net is evaluated row by row: two rows at once raise" in caplog.text
    assert answer(model, np.arange(6.0)).tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match="max_batch is 2, but two rows at once raise"):
        OnnxModel(path, max_batch=2)


def test_several_tensors_of_several_types() -> None:
    nodes = [
        helper.make_node("Where", ["mask", "a", "b"], ["chosen"]),
        helper.make_node("Cast", ["count"], ["real"], to=TensorProto.DOUBLE),
    ]
    path = saved(
        nodes,
        {
            "mask": ("bool", ["N", 2]),
            "a": ("int32", ["N", 2]),
            "b": ("int32", ["N", 2]),
            "count": ("uint64", ["N"]),
        },
        {"chosen": ("int32", ["N", 2]), "real": ("float64", ["N"])},
    )
    model = OnnxModel(path)
    assert [t.dtype for t in model.inputs.values()] == ["bool", "int32", "int32", "uint64"]  # type: ignore[union-attr]
    assert model.outputs["real"] == TensorInfo("real", ())
    mask = np.array([True, False])
    a, b = np.array([1, 2], np.int32), np.array([3, -4], np.int32)
    inputs = (mask, a, b, np.array(7, np.uint64))
    (outcome,) = Runner({"m": model}).execute([Call("m", Operation.EVALUATE, inputs)])
    assert isinstance(outcome, Result)
    chosen, real = outcome.outputs
    assert chosen.tolist() == [1, -4]
    assert chosen.dtype == np.int32
    assert real == 7


def test_threads_are_those_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    options = OnnxModel(network())._session.get_session_options()
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


class Runtime:
    """A stand-in for onnxruntime that only lists its providers."""

    def get_available_providers(self) -> list[str]:
        return ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("visible", "providers"),
    [
        (None, ["CUDAExecutionProvider", "CPUExecutionProvider"]),
        ("1", ["CUDAExecutionProvider", "CPUExecutionProvider"]),
        ("", ["CPUExecutionProvider"]),
    ],
)
def test_a_gpu_is_used_where_there_is_one(
    visible: str | None, providers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert providers_here(Runtime()) == providers


# --- unusable files ---------------------------------------------------------------------------


def test_a_file_is_a_model_by_its_name() -> None:
    network("float64")
    models = load_models(["net.onnx", "other=net.onnx"])
    assert list(models) == ["net", "other"]
    np.testing.assert_allclose(answer(models["other"], [0, 0, 1]), np.tanh(WEIGHTS[2]))


def test_a_file_of_something_else() -> None:
    Path("bad.onnx").write_text("no graph")
    with pytest.raises(
        LoadError, match=r"bad.onnx: onnxruntime cannot open 'bad.onnx': .*Protobuf"
    ):
        load_models(["bad.onnx"])
    with pytest.raises(LoadError, match=r"none.onnx: there is no file 'none.onnx'"):
        load_models(["none.onnx"])


def test_types_that_cannot_travel() -> None:
    sizes = {"x": ("bfloat16", ["N", 2])}, {"y": ("bfloat16", ["N", 2])}
    path = saved([helper.make_node("Identity", ["x"], ["y"])], *sizes)
    with pytest.raises(ValueError, match=r"'x' is tensor\(bfloat16\); expected a tensor of bool"):
        OnnxModel(path)


def test_the_probabilities_of_a_scikit_learn_classifier_need_an_option() -> None:
    zipped = helper.make_node(
        "ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]
    )
    kind = helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])
    y = helper.make_value_info("y", helper.make_sequence_type_proto(kind))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([zipped], "graph", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), "net.onnx")
    with pytest.raises(ValueError, match=r"'y' is seq\(map\(.*options=\{'zipmap': False\}"):
        OnnxModel("net.onnx")


def test_without_the_package_an_error_names_the_extra() -> None:
    network()
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "from farm.worker.loader import LoadError, load_models\n"
        "try: load_models(['net.onnx'])\n"
        "except LoadError as error: print(error)\n"
    )
    root = Path(__file__).parents[3]
    said = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.startswith('net.onnx: ONNX files need onnxruntime: pip install "modelfarm[onnx]"')


def test_sizes_that_do_not_go_together_are_the_callers_mistake() -> None:
    nodes = [helper.make_node("MatMul", ["a", "b"], ["y"])]
    path = saved(
        nodes,
        {"a": ("float64", [2, "K"]), "b": ("float64", ["K", 2])},
        {"y": ("float64", [2, 2])},
    )
    model = OnnxModel(path)
    assert answer(model, np.ones((2, 3)), np.ones((3, 2))).tolist() == [[3, 3], [3, 3]]
    said = "input 'b' has 4 along axis -2, where input 'a' has 3; model 'net' calls both 'K'"
    with pytest.raises(InvalidInput, match=said):
        answer(model, np.ones((2, 3)), np.ones((4, 2)))


def test_texts_go_in_and_out_as_bytes() -> None:
    sizes = {"x": ("string", ["N", 2])}, {"y": ("string", ["N", 2])}
    model = OnnxModel(saved([helper.make_node("Identity", ["x"], ["y"])], *sizes))
    assert model.inputs == {"x": TensorInfo("x", (2,), "bytes")}
    texts = np.array(["Zürich".encode(), b""], object)
    assert answer(model, texts).tolist() == texts.tolist()
    with pytest.raises(InvalidInput, match="ONNX strings are UTF-8"):
        answer(model, np.array([b"\xff", b""], object))


# --- over the whole farm ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_served_file_answers_um_bridge_clients(tmp_path: Path) -> None:
    network("float32")
    with serving(tmp_path, "net.onnx") as served:
        model = umbridge.HTTPModel(served.connection.url, "net")
        assert model.get_input_sizes() == [3]
        assert model.get_output_sizes() == [2]
        x = [0.1, 0.2, 0.3]
        (y,) = model([x])
    in_single = np.tanh(np.array(x, np.float32) @ WEIGHTS.astype(np.float32))
    np.testing.assert_allclose(y, np.float64(in_single), rtol=1e-6)
    assert np.array(y, np.float32).astype(float).tolist() == y, (
        "a float32 is told with all its digits"
    )
