"""The version of a model in one file: only where its answers can hardly depend on other code."""

from __future__ import annotations

import importlib.metadata
import logging
import re
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from farm.worker.file_version import version_in, version_of_file
from farm.worker.loader import load_models

MODEL = """
import math
import numpy as np
import farm

class Beam(farm.Model):
    inputs = {"x": 1}
    outputs = {"y": 1}

    def evaluate(self, inputs, config):
        return inputs["x"]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / f"beam_{tmp_path.name}.py"


def version(path: Path, text: str = MODEL) -> str:
    path.write_text(text)
    return version_of_file(path, text.encode())


def test_a_file_that_imports_installed_packages_has_a_version(path: Path) -> None:
    found = version(path)
    assert found.startswith("file:")
    assert version(path) == found
    assert version(path, MODEL + "\n") != found


def test_a_new_release_of_an_imported_package_is_another_version(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = version(path)
    with monkeypatch.context() as patched:
        patched.setattr("farm.worker.file_version.version_in", lambda folder, name: "99.0")
        assert version(path) not in ("", before)
    with monkeypatch.context() as patched:
        patched.setattr("farm.worker.file_version.__version__", "99.0")
        assert version(path) not in ("", before)
    assert version(path) == before


def test_a_package_with_another_name_than_its_module_is_found(path: Path) -> None:
    assert version(path, "from PIL import Image\nimport dateutil\n")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import neighbour", "imports neighbour"),
        ("from . import neighbour", "line 1 imports a neighbour"),
        ("import tests.support", "imports tests"),
        ("def f():\n    import neighbour", "imports neighbour"),
        ("import no_such_module", "no_such_module, which cannot be found"),
        ("import subprocess", "subprocess, by which it may run other code"),
        ("import ctypes.util", "ctypes, by which"),
        ("import requests", "requests, by which it may use other servers"),
        ("import os\nos.system('solver')", r"line 2 uses os\.system"),
        ("from os import execv", r"line 1 uses os\.execv"),
        ("import umbridge\numbridge.HTTPModel('u', 'm')", "the client of a server"),
        ("import farm\nfarm.connect()", "the client of a server"),
        ("import os as o\no.system('solver')", r"line 2 uses os\.system"),
        ("from os import *", r"line 1 uses os\.\*"),
        ("import umbridge as um\num.HTTPModel('u', 'm')", "the client of a server"),
        ("from farm.client import connect", "the client of a server"),
        ("import farm.client\nfarm.client.connect()", "the client of a server"),
        ("import asyncio as a\na.create_subprocess_exec('s')", "starts programs"),
        ("from asyncio import open_connection", "the client of a server"),
        ("import xmlrpc.client", "xmlrpc, by which it may use other servers"),
        ("import numpy as np\nnp.ctypeslib.load_library('s', '.')", "ctypeslib, by which"),
        ("from torch.utils import cpp_extension", "cpp_extension, by which"),
        ("exec(open('solver.py').read())", "line 1 uses exec"),
        ("__import__('solver')", "line 1 uses __import__"),
        ("def", "invalid syntax"),
    ],
)
def test_any_other_file_has_none_and_the_log_says_why(
    path: Path,
    text: str,
    why: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (path.parent / "neighbour.py").write_text("")
    monkeypatch.syspath_prepend(str(path.parent))
    with caplog.at_level(logging.DEBUG):
        assert version(path, text) == ""
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG, "only a record needs versions, and it says so itself"
    assert "has no version of its own" in caplog.text
    assert re.search(why, caplog.text)


def test_a_neighbour_that_shadows_a_package_is_no_package(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path.parent / "wave.py").write_text("")
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    assert version(path, "import wave")
    monkeypatch.syspath_prepend(str(path.parent))
    assert version(path, "import wave") == ""


def test_other_files_are_hashed_whole(tmp_path: Path) -> None:
    net = tmp_path / "net.onnx"
    assert version_of_file(net, b"a") != version_of_file(net, b"b")


def test_the_files_of_a_networks_weights_are_part_of_its_version(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    number, long = onnx.TensorProto.FLOAT, "w" * 150 + ".data"
    tensors = [
        onnx.numpy_helper.from_array(np.full((2, 1), k, np.float32), f"w{k}") for k in (1, 2)
    ]
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w1"], ["a"]),
        onnx.helper.make_node("MatMul", ["x", "w2"], ["b"]),
        onnx.helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    ends = [
        [onnx.helper.make_tensor_value_info(name, number, ["n", size])]
        for name, size in (("x", 2), ("y", 1))
    ]
    graph = onnx.helper.make_graph(nodes, "net", *ends, tensors)
    opsets = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    for tensor, name in zip(model.graph.initializer, ("w.data", long), strict=True):
        onnx.external_data_helper.set_external_data(tensor, name)
    onnx.save_model(model, str(tmp_path / "net.onnx"))

    def loaded() -> str:
        (model,) = load_models([str(tmp_path / "net.onnx")]).values()
        return model.version

    versions = [loaded()]
    for name in ("w.data", long):
        (tmp_path / name).write_bytes(np.full((2, 1), 3.0, np.float32).tobytes())
        versions.append(loaded())
    assert len(set(versions)) == 3
    assert "" not in versions
    source = (tmp_path / "net.onnx").read_bytes()
    (tmp_path / long).unlink()
    assert version_of_file(tmp_path / "net.onnx", source) == ""


def test_a_loaded_model_has_the_version_of_its_file(path: Path) -> None:
    path.write_text(MODEL)
    (model,) = load_models([str(path)]).values()
    assert model.version == version_of_file(path, MODEL.encode()) != ""
    assert np.array_equal(model.evaluate({"x": np.ones(1)}, {}), [1.0])  # type: ignore[arg-type]  # as good as Inputs


def test_a_models_own_version_stays(path: Path) -> None:
    path.write_text(MODEL.replace("inputs =", 'version = "7"\n    inputs ='))
    (model,) = load_models([str(path)]).values()
    assert model.version == "7"


def test_a_model_of_several_files_has_none(path: Path, tmp_path: Path) -> None:
    (tmp_path / f"{path.stem}_part.py").write_text("")
    path.write_text(f"import {path.stem}_part\n{MODEL}")
    (model,) = load_models([f"other={path}:Beam"]).values()
    assert model.version == ""


def test_it_finds_what_importlib_metadata_finds() -> None:
    folder = Path(sysconfig.get_path("purelib"))
    for package in ("numpy", "click", "orjson", "pytest"):
        assert version_in(folder, package) == importlib.metadata.version(package)


def described(folder: Path, name: str, text: str) -> None:
    (folder / name).mkdir()
    (folder / name / "METADATA").write_text(text)


@pytest.mark.parametrize("asked", ["a.b-c", "A_B_C", "a-b-c"])
def test_a_name_has_several_spellings(tmp_path: Path, asked: str) -> None:
    described(tmp_path, "a_b_c-1.0.dist-info", "Name: a.b-c\nVersion: 1.0+local\n\nVersion: 2")
    described(tmp_path, "a_b-3.0.dist-info", "Name: a-b\nVersion: 3.0\n\n")
    assert version_in(tmp_path, asked) == "1.0+local"


def test_what_is_not_plain_is_not_guessed(tmp_path: Path) -> None:
    assert version_in(tmp_path, "a") == ""
    (tmp_path / "a-1.0.dist-info").mkdir()
    assert version_in(tmp_path, "a") == "", "no METADATA"
    (tmp_path / "a-1.0.dist-info" / "METADATA").write_text("Name: a\n\nVersion: 2.0\n")
    assert version_in(tmp_path, "a") == "", "the description is no header"
    described(tmp_path, "b-1.0.dist-info", "Version: 1.0\n\n")
    described(tmp_path, "b-2.0.dist-info", "Version: 2.0\n\n")
    assert version_in(tmp_path, "b") == "", "two releases, one of which is left over"
