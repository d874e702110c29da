"""Every form of model specification, and the message if the model cannot be loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from farm.call import Call, Operation, Result
from farm.functions import FunctionModel
from farm.model import Model
from farm.worker.loader import LoadError, load_models
from farm.worker.runner import Runner
from farm.worker.specs import located, source_of, version_of
from tests.support.umbridge_models import official_server

BEAM = """
import farm

class Beam(farm.Model):
    inputs = {"E": 3}
    outputs = {"y": 1}
    def evaluate(self, inputs, config):
        return inputs["E"].sum()
"""
TWO = (
    BEAM
    + """
@farm.model(inputs={"x": 2}, outputs={"y": 1})
def forward(x):
    return x.sum()

short = Beam()
short.name = "short"
again = short
_private = Beam()
"""
)
BRIDGE = """
import umbridge

class Old(umbridge.Model):
    def __init__(self):
        super().__init__("old one")
    def get_input_sizes(self, config):
        return [2]
    def get_output_sizes(self, config):
        return [1]
    def __call__(self, parameters, config):
        return [[sum(parameters[0])]]
    def supports_evaluate(self):
        return True
"""


@pytest.fixture(autouse=True)
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in an empty folder; forget modules that the test imports from it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def write(name: str, text: str) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return name


def value_of(models: dict[str, Model], name: str, *x: float) -> float:
    call = Call(name, Operation.EVALUATE, (np.array(x),))
    (outcome,) = Runner(models).execute([call])
    assert isinstance(outcome, Result)
    return float(outcome.outputs[0][0])


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("two.py:Beam", "Beam"),
        ("two.py:short", "short"),
        ("two.py:forward", "forward"),
        ("sub/one.py", "Beam"),
        ("sub/one.py:Beam", "Beam"),
        ("sub.one:Beam", "Beam"),
        ("sub.one", "Beam"),
        ("two:forward", "forward"),
        ("stiff=two.py:Beam", "stiff"),
        ("a.b-c=sub/one.py", "a.b-c"),
    ],
)
def test_ways_to_name_a_model(spec: str, name: str) -> None:
    write("two.py", TWO)
    write("sub/one.py", BEAM)
    write("sub/__init__.py", "")
    models = load_models([spec])
    assert list(models) == [name]
    inputs = [1, 2] if name == "forward" else [1, 1, 1]
    assert value_of(models, name, *inputs) == 3


def test_an_umbridge_class_or_object_is_a_model() -> None:
    write("bridge.py", BRIDGE + "\nmade = Old()\n")
    models = load_models(["bridge.py", "other=bridge.py:Old"])
    assert list(models) == ["old one", "other"]
    assert value_of(models, "old one", 1, 2) == 3


def test_several_models_share_one_module() -> None:
    write("two.py", TWO + "\nprint('loaded')")
    models = load_models(["two.py:Beam", "two.py:forward", "x=two.py:forward"])
    assert list(models) == ["Beam", "forward", "x"]
    assert models["forward"] is models["x"]
    assert isinstance(models["forward"], FunctionModel), "the decorated function is the model"


def test_an_absolute_path_and_a_file_that_imports_its_neighbour(tmp_path: Path) -> None:
    write("deep/neighbour_of_it.py", "SIZE = 3")
    write("deep/model_beside.py", "from neighbour_of_it import SIZE\n" + BEAM.replace("3", "SIZE"))
    models = load_models([str(tmp_path / "deep/model_beside.py")])
    assert value_of(models, "Beam", 1, 1, 1) == 3


def test_a_file_called_like_a_module_that_is_loaded() -> None:
    loaded = sys.modules["pathlib"]
    write("pathlib.py", BEAM)
    assert list(load_models(["pathlib.py", "again=pathlib.py:Beam"])) == ["Beam", "again"]
    assert sys.modules["pathlib"] is loaded


def test_classes_in_the_file_are_found_by_pickle_and_dataclasses() -> None:
    text = "from dataclasses import dataclass\n@dataclass\nclass P:\n    a: 'int' = 1\n" + BEAM
    write("with_dataclass.py", text)
    load_models(["with_dataclass.py"])
    assert sys.modules["with_dataclass"].Beam.__module__ == "with_dataclass"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with official_server(tmp_path_factory.mktemp("official") / "log") as address:
        yield address


def test_models_of_a_running_server(url: str) -> None:
    assert sorted(load_models([url])) == ["odd", "smooth"]
    assert list(load_models([f"smooth@{url}"])) == ["smooth"]
    assert list(load_models([f"far=smooth@{url}", f"odd@{url}"])) == ["far", "odd"]


def test_what_is_wrong_with_a_server_is_one_line(url: str) -> None:
    with pytest.raises(LoadError, match=r"gives one name to 2 models \(smooth, odd\).*MODEL@URL"):
        load_models([f"far={url}"])
    with pytest.raises(LoadError, match=r"rough@http.*has no model 'rough'; its models are"):
        load_models([f"rough@{url}"])
    with pytest.raises(LoadError, match=r"http://127\.0\.0\.1:1: "):
        load_models(["http://127.0.0.1:1"])
    with pytest.raises(LoadError, match=r"two models are called 'odd'"):
        load_models([url, f"odd@{url}"])


# --- mistakes in the specification ------------------------------------------------------------

FUNCTION = "def forward(a, b, config):\n    return a\n"
PICKY = BEAM + "    def __init__(self, length):\n        pass\n"


@pytest.mark.parametrize(
    ("text", "spec", "expected"),
    [
        ("", "missing.py", "there is no file 'missing.py'"),
        ("", "nopackage.module:Beam", "there is no module 'nopackage'"),
        ("", "nomodule", "there is no module 'nomodule'"),
        ("", "m.py", "m.py holds no model; expected a class that extends farm.Model"),
        (TWO, "m.py", r"m.py holds 2 models, forward, short; choose one: m.py:forward"),
        (TWO, "m.py:Bem", r"there is no 'Bem' in .*m.py; the models there are forward, short"),
        (TWO, "m.py:", "no object name after the colon"),
        (TWO, "m.py:a.b", "no object name after the colon"),
        (TWO, "what ever", "'what ever' is not a model; expected FILE.py:NAME"),
        (TWO, "m.py:farm", "'farm' is a module; expected a farm.Model"),
        ("class A: pass", "m.py:A", "class A extends neither farm.Model nor umbridge.Model"),
        (
            FUNCTION,
            "m.py:forward",
            r'put @farm.model\(inputs=\{"a": 1, "b": 1\}, outputs=\{"y": 1\}\) .*`def forward`',
        ),
        (FUNCTION, "m.py", r"holds no model; put @farm.model\("),
        (PICKY, "m.py", r"Beam\(\) needs arguments .*'length'.* model = Beam\(...\)"),
        (TWO, "ftp://host", "is not a model|no object name"),
    ],
)
def test_a_mistake_is_one_line_without_traceback(text: str, spec: str, expected: str) -> None:
    write("m.py", text)
    with pytest.raises(LoadError, match=expected) as caught:
        load_models([spec])
    assert "\n" not in str(caught.value)
    assert caught.value.detail == ""


def test_no_model_and_two_of_one_name() -> None:
    with pytest.raises(LoadError, match="no model is given"):
        load_models([])
    write("m.py", BEAM)
    with pytest.raises(LoadError, match=r"two models are called 'Beam'.*OTHER=m\.py:Beam"):
        load_models(["m.py", "m.py:Beam"])


# --- errors in the user's code ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import json\n\njson.loads('{')", r"raised JSONDecodeError: .* \(.*/m\.py:3\)"),
        ("a = 1\nb = a / 0\n", r"raised ZeroDivisionError: division by zero \(.*/m\.py:2\)"),
        ("a = 1\nb = (\n", r"raised SyntaxError: .* \(.*/m\.py:2\)"),
        ("import sys\nsys.exit('usage: no')", r"raised SystemExit: usage: no \(.*/m\.py:2\)"),
        (
            "import farm\n@farm.model(inputs={}, outputs={})\ndef f(x):\n    pass\n",
            r"raised TypeError: function 'f' takes \['x'\].* \(.*/m\.py:2\)",
        ),
        ("import no_such_package", r"raised ModuleNotFoundError: .*no_such_package.*m\.py:1\)"),
        (
            BEAM + "    def __init__(self):\n        open('mesh')\n",
            r"making Beam\(\) raised FileNotFoundError: .*mesh.* \(.*/m\.py:10\)",
        ),
    ],
)
def test_a_crash_shows_where_and_keeps_the_traceback(text: str, expected: str) -> None:
    write("m.py", text)
    with pytest.raises(LoadError, match=expected) as caught:
        load_models(["m.py"])
    assert "\n" not in str(caught.value)
    assert "Traceback" in caught.value.detail
    assert "m" not in sys.modules or "making" in str(caught.value)


def test_a_crash_of_an_umbridge_object_that_is_asked_what_it_supports() -> None:
    write("m.py", BRIDGE + "    def supports_gradient(self):\n        return 1 / 0\n")
    with pytest.raises(LoadError, match=r"asking 'Old' .* ZeroDivisionError.*m\.py:16"):
        load_models(["m.py"])


def test_a_package_that_imports_something_missing_is_a_crash() -> None:
    write("pack/__init__.py", "")
    write("pack/inner.py", "import no_such_package")
    with pytest.raises(LoadError, match=r"importing 'pack\.inner' raised .*inner\.py:1") as caught:
        load_models(["pack.inner:Beam"])
    assert caught.value.detail


def test_a_file_that_failed_may_be_loaded_when_mended() -> None:
    write("m.py", "raise ValueError")
    with pytest.raises(LoadError):
        load_models(["m.py"])
    write("m.py", BEAM)
    assert list(load_models(["m.py"])) == ["Beam"]


def test_a_file_is_loaded_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if Python would take it for another text, of the same second and size."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for size in (3, 4):
        write("now.py", BEAM.replace("3", str(size)))
        os.utime("now.py", (1e9, 1e9))
        models = load_models(["now.py"])
        assert value_of(models, "Beam", *[1.0] * size) == size
        del sys.modules["now"]


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ("model.py", "{here}/model.py"),
        ("model.py:Beam", "{here}/model.py:Beam"),
        ("stiff=sub/model.py:Beam", "stiff={here}/sub/model.py:Beam"),
        ("net.onnx", "{here}/net.onnx"),
        ("net=nets/net.pt2", "net={here}/nets/net.pt2"),
        ("/nets/net.pt", "/nets/net.pt"),
        ("package.module:beam", "package.module:beam"),
        ("net@kserve+http://host:8000/net.onnx", "net@kserve+http://host:8000/net.onnx"),
        ("graphpipe+http://host:9000/net.onnx", "graphpipe+http://host:9000/net.onnx"),
    ],
)
def test_files_are_named_by_their_whole_path_for_a_process_elsewhere(spec: str, found: str) -> None:
    assert located(spec) == found.format(here=Path.cwd())


@pytest.mark.parametrize("spec", ["beam.py", "beam.py:Beam", "other=beam.py:Beam", "./beam.py"])
def test_the_version_and_the_source_of_a_file_are_known_without_loading_it(
    spec: str, tmp_path: Path
) -> None:
    Path("beam.py").write_text(BEAM)
    unloaded = version_of(spec)
    assert "beam" not in sys.modules
    (model,) = load_models([spec]).values()
    assert unloaded == model.version != ""
    assert source_of(spec) == str(tmp_path / "beam.py")
    Path("beam.py").write_text(f"{BEAM}# changed")
    assert version_of(spec) != unloaded


def test_what_is_not_a_file_has_no_version() -> None:
    Path("neighbour.py").write_text("")
    Path("beam.py").write_text(f"import neighbour\n{BEAM}")
    for spec in ("beam.py", "missing.py", "package.module:Beam", "http://127.0.0.1:9"):
        assert version_of(spec) == ""
    assert source_of("package.module:Beam") == "package.module"
    for spec in ("http://127.0.0.1:9", "a=beam@http://127.0.0.1:9,http://127.0.0.1:8"):
        assert source_of(spec) == ""


def test_a_stateful_model_does_not_run_on_several_ranks(tmp_path: Path) -> None:
    (tmp_path / "kept.py").write_text(
        "import farm\n"
        "@farm.model(inputs={'x': 1}, outputs={'y': 1}, stateful=True)\n"
        "def kept(x, sequence):\n"
        "    return x\n"
    )
    spec = str(tmp_path / "kept.py")
    assert load_models([spec])["kept"].stateful
    with pytest.raises(LoadError, match="model 'kept' is stateful, which one on several MPI ranks"):
        load_models([spec], comm=object())


@pytest.mark.parametrize("spec", ["m1.py", "m2.py:Beam", "m3.py:beam"])
@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("def evalute(self, inputs, config)", "class Beam extends farm.Model, but defines no eval"),
        ("def evaluate(self, x)", r"Beam.evaluate takes \(x\); expected evaluate\(self, inputs"),
    ],
)
def test_a_class_in_the_wrong_form_is_told_the_right_one(
    tmp_path: Path, spec: str, wrong: str, complaint: str
) -> None:
    text = BEAM.replace("def evaluate(self, inputs, config)", wrong)
    stem, _, name = spec.partition(":")
    (tmp_path / stem).write_text(text + "beam = Beam()\n" * (name == "beam"))
    sys.modules.pop(stem.removesuffix(".py"), None)
    with pytest.raises(LoadError, match=complaint):
        load_models([str(tmp_path / spec)])
