"""Models shown in the documents work, and tests named there exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import farm
from farm.call import Array, Call, Derivative, Operation, Result
from farm.sequences import SequenceStep
from farm.worker.loader import load_models
from farm.worker.mpi.world import launcher_path
from farm.worker.runner import Runner
from tests.support.coroutines import LIMIT_S
from tests.support.front_door import front_door
from tests.support.shown_blocks import text_of

ROOT = Path(__file__).parent.parent
PAGE = text_of("docs/models.md")
SHOWN = dict(enumerate(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)))
ELSEWHERE = {
    10: "tests/worker/frameworks/test_torch.py",
    11: "tests/worker/frameworks/test_torch.py",
    12: "examples/surrogate/surrogate.py",
}
"""Blocks that are tested where their libraries are loaded anyway."""
SPRING = """
/STIFFNESS/ { k = $2 }
/LOADS/ { for (i = 2; i <= NF; i++) printf "SHIFT = %.17g\\n", $i / k }
/STEPS/ { if ($2 != 10) exit 8 }
"""


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a file adds its folder to the path."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def runner(number: int, folder: Path) -> tuple[Runner, str]:
    """Return a Runner with the model of the page's block `number`, and the model's name."""
    path = folder / f"shown{number}.py"
    path.write_text(SHOWN[number])
    (folder / "spring.awk").write_text(SPRING)
    models = load_models([str(path)])
    return Runner(models), next(iter(models))


def outputs(runner: Runner, call: Call) -> list[float]:
    (outcome,) = runner.execute([call])
    assert isinstance(outcome, Result), outcome
    array: Array = outcome.outputs[0]
    return [float(x) for x in array.ravel()]


@pytest.mark.parametrize(
    ("number", "inputs", "expected"),
    [
        (0, [[3, 1]], [10]),
        (1, [[0], [5]], [5] * 10),
        (2, [[0] * 21], [0.005 * k * (21 - k) for k in range(1, 21)]),
        (4, [[1, 2, 3]], [6 * k / 10 for k in range(11)]),
        (5, [[3, 1]], [10]),
        (13, [[0], [5]], [5] * 50),
        (15, [[2], [1, 2, 3]], [0.5, 1, 1.5]),
        (16, [[4]], [0.25]),
        (17, [[1, 1, 1], [3]], [(k / 30) ** 2 for k in range(31)]),
    ],
)
def test_models_of_the_models_page(
    tmp_path: Path, number: int, inputs: list[list[float]], expected: list[float]
) -> None:
    run, name = runner(number, tmp_path)
    arrays = tuple(np.array(x, dtype=float) for x in inputs)
    np.testing.assert_allclose(outputs(run, Call(name, Operation.EVALUATE, arrays)), expected)


def test_the_shown_gradient_is_right(tmp_path: Path) -> None:
    run, name = runner(1, tmp_path)
    x = [np.array([0.7]), np.array([2.0])]
    sens = np.linspace(-1, 2, 10)
    for in_wrt in (0, 1):
        wrt = Derivative(0, in_wrt, sens=sens)
        (slope,) = outputs(run, Call(name, Operation.GRADIENT, tuple(x), derivative=wrt))
        values = []
        for step in (1e-6, -1e-6):
            moved = [a + step * (k == in_wrt) for k, a in enumerate(x)]
            values.append(np.array(outputs(run, Call(name, Operation.EVALUATE, tuple(moved)))))
        assert slope == pytest.approx(sens @ (values[0] - values[1]) / 2e-6, rel=1e-6)


def test_the_shown_adjoint_is_right(tmp_path: Path) -> None:
    run, name = runner(2, tmp_path)
    assert run.models()[0].keeps_point
    rng = np.random.default_rng(6)
    first, second = rng.standard_normal((2, 21))
    sens = rng.standard_normal(20)

    def at(m: Array, operation: Operation) -> list[Array]:
        wrt = None if operation is Operation.EVALUATE else Derivative(0, 0, sens=sens)
        (outcome,) = run.execute([Call(name, operation, (m,), derivative=wrt)])
        assert isinstance(outcome, Result), outcome
        return list(outcome.outputs)

    for m in (first, second):  # a kept point in turn with another
        (u,) = at(m, Operation.EVALUATE)
        for other in (m, first):
            value, slope = at(other, Operation.VALUE_AND_GRADIENT)
            assert np.array_equal(at(other, Operation.GRADIENT)[0], slope)
            steps = 1e-6 * np.eye(21)
            for k, step in enumerate(steps):
                up, down = [at(other + sign * step, Operation.EVALUATE)[0] for sign in (1, -1)]
                assert slope[k] == pytest.approx(sens @ (up - down) / 2e-6, rel=1e-5, abs=1e-8)
            assert np.array_equal(value, at(other, Operation.EVALUATE)[0])
        assert np.array_equal(u, at(m, Operation.EVALUATE)[0])


def test_the_shown_state_of_a_sequence(tmp_path: Path) -> None:
    run, name = runner(3, tmp_path)
    means = []
    for x, sequence_id, start in ((2.0, 7, True), (10.0, 8, True), (3.0, 7, False)):
        step = SequenceStep(sequence_id, start)
        means += outputs(run, Call(name, Operation.EVALUATE, (np.array([x]),), step=step))
    assert means == [2, 10, 2.5]


def test_the_shown_texts(tmp_path: Path) -> None:
    run, name = runner(6, tmp_path)
    texts = np.array([b"", "ä".encode(), b"abc"], object)
    assert outputs(run, Call(name, Operation.EVALUATE, (texts,))) == [0, 1, 3]


def test_the_shown_stream(tmp_path: Path) -> None:
    run, name = runner(7, tmp_path)
    call = Call(name, Operation.STREAM, (np.array([0.5]),), '{"steps":3}')
    answers = [outcome for [(_, outcome)] in run.run([call]) if isinstance(outcome, Result)]
    assert [float(a.outputs[0][0]) for a in answers if a.more] == [0.5, 0.25, 0.125]
    assert not answers[-1].more


def test_the_shown_program_with_a_farm() -> None:
    names: dict[str, Any] = {}
    exec(compile(SHOWN[8], "docs/models.md, block 8", "exec"), names)
    expected = [np.exp(-r * np.arange(3.0)) for r in (0.1, 0.2)]
    np.testing.assert_allclose(names["values"], expected)


def test_the_shown_network_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 2]) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "g", *[[t] for t in tensors])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), "net.onnx")
    run, name = runner(9, tmp_path)
    assert name == "net"
    assert run.models()[0].max_batch == 128
    assert outputs(run, Call(name, Operation.EVALUATE, (np.zeros(2),))) == [1, 1]


def test_the_shown_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = farm.model(inputs={"x": 2}, outputs={"y": 2})(lambda x: 2 * x)
    with front_door({"net": twice}) as door:
        monkeypatch.setitem(SHOWN, 14, SHOWN[14].replace("http://host:8000", door.url))
        run, name = runner(14, tmp_path)
        assert run.models()[0].max_batch == 64
        assert outputs(run, Call(name, Operation.EVALUATE, (np.ones(2),))) == [2, 2]


RANK = """
import sys
import numpy as np
from farm.worker.loader import load_models
from farm.worker.mpi.world import join_world
(model,) = load_models(sys.argv[1:], comm=join_world(2, size=2)).values()
value = model.evaluate({"x": np.full(1000, 2.0)}, {})
assert abs(value - 4000**0.5) < 1e-12, value
"""


def test_the_model_of_the_mpi_page(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "mpi.md").read_text(), re.DOTALL)
    (tmp_path / "norm.py").write_text(shown)
    command = [launcher_path("mpiexec"), "-n", "2", sys.executable, "-c", RANK]
    subprocess.run([*command, str(tmp_path / "norm.py")], check=True, timeout=LIMIT_S)


def test_the_tests_that_the_threat_model_names_exist() -> None:
    page = text_of("docs/security.md")
    named = re.findall(r"`(tests/[^`]*)::([^`]*)`", page)
    assert len(named) > 20
    defined = {}
    for path in {ROOT / file for file, _ in named}:
        tree = ast.parse(path.read_text() if path.exists() else "")
        defined[path] = {getattr(node, "name", None) for node in tree.body}
    assert [f"{file}::{name}" for file, name in named if name not in defined[ROOT / file]] == []


def test_every_block_is_tried() -> None:
    assert len(SHOWN) == 18
    assert [file for file in ELSEWHERE.values() if not (ROOT / file).exists()] == []
