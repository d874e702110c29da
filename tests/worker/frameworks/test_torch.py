"""PyTorch files as models: shapes, types, functions without derivatives, and unusable files."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.export

from farm.call import Call, Derivative, Operation, TensorInfo
from farm.declared import Tensors
from farm.errors import UnsupportedFeature
from farm.model import info_of, operations_of, tensor
from farm.worker.frameworks.torch import TorchModel
from farm.worker.loader import LoadError, load_models
from tests.support.shown_blocks import text_of
from tests.worker.frameworks.answers import answered, evaluated
from tests.worker.frameworks.torch_files import WEIGHTS, Scaled, export, opened, script


class Centred(torch.nn.Module):  # type: ignore[misc]  # torch is not read for its types
    """Rows that affect one another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(dim=0)


class Largest(torch.nn.Module):  # type: ignore[misc]  # as above
    """Integers, which have no derivative."""

    def forward(self, x: torch.Tensor, steps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.argmax(x, dim=-1), steps + 1


class Cut(torch.nn.Module):  # type: ignore[misc]  # as above
    """Autograd is disabled inside."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach() * 2


@dataclass
class Files:
    """Files written once, because each takes torch a second."""

    folder: Path
    double: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        example = torch.rand(2, 3, dtype=self.double), torch.rand(2, 1, dtype=self.double)
        self.exported = export(Scaled(self.double), example, self.folder / "net.pt2", most=512)
        self.scripted = script(Scaled(self.double), self.folder / "net.pt")
        self.single = script(Scaled(torch.float32), self.folder / "single.pt")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("torch"))


def test_a_file_says_what_the_model_is(files: Files) -> None:
    for model in (TorchModel(files.exported), opened(files.scripted, max_batch=64)):
        assert list(model.inputs) == ["x", "k"]
        assert model.inputs["x"] == TensorInfo("x", (3,))
        assert model.outputs == {"y": TensorInfo("y", (2,)), "norm": TensorInfo("norm", ())}


def test_the_most_rows_are_those_the_file_allows(files: Files) -> None:
    assert TorchModel(files.exported).max_batch == 64
    assert TorchModel(files.exported, max_batch=512).max_batch == 512
    with pytest.raises(ValueError, match=r"max_batch is 513, but net.pt2 takes 512 rows at most"):
        TorchModel(files.exported, max_batch=513)
    few = export(torch.nn.Linear(3, 2), (torch.rand(2, 3),), files.folder / "few.pt2", most=16)
    assert TorchModel(few).max_batch == 16


def test_a_module_saved_while_it_was_trained_is_evaluated(tmp_path: Path) -> None:
    path = script(torch.nn.Dropout(0.5).train(), tmp_path / "dropout.pt")
    x = np.ones(100)
    (y,) = evaluated(TorchModel(path, inputs={"x": 100}, outputs={"y": 100}), x)
    assert y.tolist() == x.tolist()


def test_numbers_are_of_the_type_of_the_files_own(files: Files) -> None:
    model = opened(files.single, max_batch=4)
    assert model.inputs["k"] == TensorInfo("k", (1,), "float32")
    x = np.array([0.5, -1.0, 2.0])
    y, _ = evaluated(model, x, [1.0])
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, np.tanh(WEIGHTS @ x), rtol=1e-6)
    wrt = Derivative(0, 0, sens=np.ones(2))
    call = Call("m", Operation.GRADIENT, (x, np.ones(1)), derivative=wrt)
    (found,) = answered(model, call)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, WEIGHTS.T @ (1 - np.tanh(WEIGHTS @ x) ** 2), rtol=1e-5)


def test_the_threads_of_torch_are_left_as_they_are(files: Files) -> None:
    """The supervisor sets OMP_NUM_THREADS, which torch obeys."""
    before = torch.get_num_threads()
    TorchModel(files.exported)
    assert torch.get_num_threads() == before


def test_bfloat16_travels(tmp_path: Path) -> None:
    path = script(Scaled(torch.bfloat16), tmp_path / "brain.pt")
    model = opened(path, max_batch=4)
    assert model.inputs["x"] == TensorInfo("x", (3,), "bfloat16")
    x = np.array([0.5, -1.0, 2.0])
    y, _ = evaluated(model, x, [1.0])
    assert y.dtype.name == "bfloat16"
    np.testing.assert_allclose(y.astype(float), np.tanh(WEIGHTS @ x), rtol=0.02)
    wrt = Derivative(0, 0, sens=np.ones(2))
    (found,) = answered(model, Call("m", Operation.GRADIENT, (x, np.ones(1)), derivative=wrt))
    np.testing.assert_allclose(
        found, WEIGHTS.T @ (1 - np.tanh(WEIGHTS @ x) ** 2), rtol=0.05, atol=0.02
    )


PAGE = text_of("docs/models.md")
SHOWN = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_models_page_shows_what_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    net, x = torch.nn.Linear(3, 2), torch.rand(5, 3)
    script(net, Path("net.pt"))
    (loading,) = [text for text in SHOWN if "farm.TorchModel(" in text]
    (exporting,) = [text for text in SHOWN if "torch.export.save(" in text]
    names: dict[str, Any] = {"torch": torch, "net": net, "x": x}
    exec(loading + exporting, names)
    for model in (names["model"], TorchModel("net.pt2")):
        assert model.max_batch == 64
        (y,) = evaluated(model, x.numpy(), rows=5)
        np.testing.assert_allclose(y, net(x).detach().numpy(), rtol=1e-5)


# --- functions without derivatives ------------------------------------------------------------


def test_whole_numbers_have_no_derivatives(tmp_path: Path) -> None:
    path = script(Largest(), tmp_path / "largest.pt")
    model = TorchModel(
        path,
        inputs={"x": TensorInfo("x", (3,), "float32"), "steps": TensorInfo("steps", (), "int32")},
        outputs={"at": TensorInfo("at", (), "int64"), "steps": TensorInfo("steps", (), "int32")},
        max_batch=4,
    )
    assert operations_of(model) == {Operation.EVALUATE}
    at, steps = evaluated(model, [1.0, 5.0, 2.0], np.int32(7))
    assert (int(at), int(steps)) == (1, 8)
    assert (str(at.dtype), str(steps.dtype)) == ("int64", "int32")


def test_a_graph_that_forgets_offers_no_derivatives(tmp_path: Path) -> None:
    model = TorchModel(script(Cut(), tmp_path / "cut.pt"), inputs={"x": 3}, outputs={"y": 3})
    assert operations_of(model) == {Operation.EVALUATE}
    wrt = Derivative(0, 0, sens=np.ones(3))
    with pytest.raises(UnsupportedFeature, match="does not offer gradient"):
        answered(model, Call("m", Operation.GRADIENT, (np.ones(3),), derivative=wrt))


# --- unusable files ---------------------------------------------------------------------------


def test_rows_that_touch_one_another_cannot_be_a_batch(tmp_path: Path) -> None:
    path = script(Centred(), tmp_path / "centred.pt")
    with pytest.raises(ValueError, match="max_batch is 4, but output 'y' of a row depends on"):
        TorchModel(path, inputs={"x": 3}, outputs={"y": 3}, max_batch=4)
    exported = export(Centred(), (torch.rand(2, 3),), tmp_path / "centred.pt2")
    model = TorchModel(exported)
    assert model.max_batch == 1
    assert model.inputs["x"] == TensorInfo("x", (-1, 3), "float32")
    assert list(model.outputs) == ["out0"]


def test_names_for_what_the_file_says(files: Files) -> None:
    stated: Tensors = {"E": tensor(3, unit="Pa"), "load": 1}
    model = TorchModel(files.exported, inputs=stated, outputs={"bent": 2, "sum": ()})
    assert [(t.name, t.unit) for t in info_of(model, {}).inputs] == [("E", "Pa"), ("load", "")]
    y, _ = evaluated(model, [0.0, 0, 1], [1.0])
    np.testing.assert_allclose(y, np.tanh(WEIGHTS[:, 2]))
    with pytest.raises(ValueError, match=r"the file has 2 inputs, named are \['E'\]"):
        TorchModel(files.exported, inputs={"E": 3})
    with pytest.raises(ValueError, match=r"input 'E' is declared with shape \(4,\), the file says"):
        TorchModel(files.exported, inputs={"E": 4, "load": 1})


def test_torchscript_needs_its_shapes(files: Files) -> None:
    with pytest.raises(
        LoadError,
        match=r"net.pt is TorchScript, which does not say its shapes; .*"
        r"farm.TorchModel\('.*net.pt', inputs=",
    ):
        load_models([str(files.scripted)])
    with pytest.raises(ValueError, match=r"it does not run as declared: .*shapes cannot be mult"):
        TorchModel(files.scripted, inputs={"x": 4, "k": 1}, outputs={"y": 2, "norm": ()})
    with pytest.raises(ValueError, match=r"it gives outputs \['norm', 'y'\], declared are \['y'\]"):
        TorchModel(files.scripted, inputs={"x": 3, "k": 1}, outputs={"y": 2})
    with pytest.raises(ValueError, match=r"output 'y' has shape \(2,\), declared is \(3,\)"):
        TorchModel(files.scripted, inputs={"x": 3, "k": 1}, outputs={"y": 3, "norm": ()})


def test_a_bare_file_is_a_model(files: Files) -> None:
    models = load_models([str(files.exported), f"other={files.exported}"])
    assert list(models) == ["net", "other"]


def test_pickles_and_other_files_are_refused(tmp_path: Path) -> None:
    torch.save({"weights": torch.rand(2)}, tmp_path / "state.pt")
    with pytest.raises(ValueError, match=r"cannot open 'state.pt' as TorchScript: .*a pickle of"):
        TorchModel(tmp_path / "state.pt", inputs={"x": 3}, outputs={"y": 3})
    (tmp_path / "bad.pt2").write_text("hello")
    with pytest.raises(LoadError, match=r"torch cannot open 'bad.pt2': .*not a zip file"):
        load_models([str(tmp_path / "bad.pt2")])


def test_without_the_package_an_error_names_the_extra(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        ImportError, match=r'PyTorch files need torch: pip install "modelfarm\[torch'
    ):
        TorchModel(files.exported)
