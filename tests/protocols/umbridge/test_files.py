"""Files that serve their models themselves: loading one starts no server and loses no model."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import umbridge

from farm.call import Call, Operation, Result
from farm.worker.loader import LoadError, load_models
from farm.worker.runner import Runner
from tests.support.dispatcher_farm import serving

CLASSES = """
import umbridge

class Doubled(umbridge.Model):
    def get_input_sizes(self, config):
        return [1]
    def get_output_sizes(self, config):
        return [1]
    def __call__(self, parameters, config):
        return [[2 * parameters[0][0]]]
    def supports_evaluate(self):
        return True

class Negated(Doubled):
    def __call__(self, parameters, config):
        return [[-parameters[0][0]]]
"""

BARE = CLASSES + 'umbridge.serve_models([Doubled("doubled"), Negated("negated")], 4242)\n'


@pytest.fixture(autouse=True)
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in an empty folder, and forget the modules that the test imports from it."""
    monkeypatch.chdir(tmp_path)
    before, path = {*sys.modules}, [*sys.path]
    yield
    for name in {*sys.modules} - before:
        if name.startswith(("served", "inner")):
            del sys.modules[name]
    sys.path[:] = path


def value(name: str, *specs: str) -> float:
    call = Call(name, Operation.EVALUATE, (np.array([3.0]),))
    (result,) = Runner(load_models(specs)).execute([call])
    assert isinstance(result, Result), result
    return float(result.outputs[0][0])


@pytest.mark.parametrize(
    "text",
    [
        BARE,
        BARE.replace("umbridge.serve_models", "from umbridge import serve_models\nserve_models"),
        BARE.replace("umbridge.serve_models", "from umbridge.um import serve_models as s\ns"),
        BARE.replace("import umbridge\n", "import umbridge as ub\numbridge = ub\n"),
        BARE + "import sys\nsys.exit(0)\n",
        "import argparse\nargparse.ArgumentParser().parse_args()\n" + BARE,
        BARE.replace("umbridge.serve", "if __name__ != 'never':\n    umbridge.serve"),
    ],
)
def test_all_models_that_a_file_serves_are_loaded(tmp_path: Path, text: str) -> None:
    (tmp_path / "served.py").write_text(text)
    assert [*load_models(["served.py"])] == ["doubled", "negated"]
    assert value("doubled", "served.py") == 6.0
    assert value("negated", "served.py") == -3.0


def test_one_of_them_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text(BARE)
    assert [*load_models(["served.py:negated"])] == ["negated"]
    assert [*load_models(["other=served.py:Doubled"])] == ["other"]
    with pytest.raises(LoadError, match=r"no 'missing' in .*; the models there are doubled, neg"):
        load_models(["served.py:missing"])


def test_what_a_file_serves_may_come_from_a_module_that_it_imports(tmp_path: Path) -> None:
    inside = textwrap.indent(BARE, "    ")
    (tmp_path / "inner.py").write_text(f"def start():\n    global umbridge\n{inside}")
    (tmp_path / "served.py").write_text("import inner\ninner.start()\n")
    assert [*load_models(["served.py"])] == ["doubled", "negated"]
    assert [*load_models(["served"])] == ["doubled", "negated"]


def test_the_package_serves_again_afterwards(tmp_path: Path) -> None:
    official, arguments = umbridge.serve_models, sys.argv
    (tmp_path / "served.py").write_text(BARE)
    load_models(["served.py"])
    (tmp_path / "served2.py").write_text(BARE + "1 / 0\n")
    with pytest.raises(LoadError, match="division by zero"):
        load_models(["served2.py"])
    (tmp_path / "served3.py").write_text("import sys\nsys.exit('no licence')\n")
    with pytest.raises(LoadError, match="SystemExit: no licence"):
        load_models(["served3.py"])
    assert umbridge.serve_models is umbridge.um.serve_models is official
    assert sys.argv is arguments


@pytest.mark.parametrize("first", ["", pytest.param("import umbridge\n", marks=pytest.mark.slow)])
def test_the_package_is_imported_by_files_that_do_so_only(tmp_path: Path, first: str) -> None:
    """In a process of its own, because the package is already imported here."""
    (tmp_path / "served.py").write_text(BARE)
    (tmp_path / "plain.py").write_text(
        "import farm\n@farm.model(inputs={'x': 1}, outputs={'y': 1})\ndef plain(x): return x\n"
    )
    program = (
        first + "import sys\nfrom farm.worker.loader import load_models\n"
        "load_models(['plain.py'])\n"
        "print('umbridge' in sys.modules, [type(f).__name__ for f in sys.meta_path])\n"
        "print([*load_models(['served.py'])])\n"
        "import umbridge\n"
        "print(umbridge.serve_models.__module__, umbridge.__loader__ is umbridge.__spec__.loader)\n"
        "print(type(umbridge.__loader__).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    imported, served, restored, loader = done.stdout.splitlines()
    assert imported.startswith(f"{bool(first)} ")
    assert "_AfterImport" not in imported
    assert served == "['doubled', 'negated']"
    assert restored == "umbridge.um True"
    assert loader == "SourceFileLoader"


@pytest.mark.slow
def test_a_farm_serves_such_a_file_and_nothing_else_listens(tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text(BARE)
    with serving(tmp_path, "served.py", "--workers", "2") as served:
        url = served.connection.url
        assert umbridge.HTTPModel(url, "doubled")([[4.0]]) == [[8.0]]
        assert umbridge.HTTPModel(url, "negated")([[4.0]]) == [[-4.0]]
        farm = psutil.Process(served.connection.pid)
        for process in farm.children(recursive=True):
            listening = [c for c in process.net_connections() if c.status == psutil.CONN_LISTEN]
            assert listening == []
