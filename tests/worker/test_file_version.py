"""The version of a model in one file: only where its answers can hardly depend on other code."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from farm.worker.file_version import version_of_file
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
        patched.setattr("importlib.metadata.version", lambda name: "99.0")
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
    with caplog.at_level(logging.INFO):
        assert version(path, text) == ""
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
