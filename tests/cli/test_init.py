"""`farm init`: what it writes is a model, and the commands that it prints run as printed."""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from farm.call import Call, Derivative, Operation, Result
from farm.cli.init import KINDS
from farm.worker.loader import load_models
from farm.worker.runner import Runner
from tests.cli.conftest import assert_one_line
from tests.support.dispatcher_farm import run_farm, run_here, serving

TIP = 500.0 * 2.0**4 / (8 * 210e9 * 0.1 * 0.02**3 / 12)


def commands(text: str) -> list[list[str]]:
    """Return the words of each command that `farm init` prints."""
    joined = text.replace("\\\n", "")
    return [shlex.split(line) for line in joined.splitlines() if line.startswith("  ")]


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore `sys.path`: loading a file adds its folder."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.slow] if kind == "jax" else []) for kind in KINDS],
)
def test_the_written_model_is_formatted_and_computes_the_deflection(
    tmp_path: Path, kind: str
) -> None:
    name = f"started_{kind}.py"
    assert run_here("init", name, "--kind", kind, cwd=tmp_path)[0] == 0
    runner = Runner(load_models([str(tmp_path / name)]))
    inputs = (np.array([500.0]), np.array([0.02]))
    (outcome,) = runner.execute([Call("beam", Operation.EVALUATE, inputs)])
    assert isinstance(outcome, Result), outcome
    assert outcome.outputs[0] == pytest.approx([TIP], rel=1e-12)
    if kind == "jax":
        slope = Call(
            "beam", Operation.GRADIENT, inputs, derivative=Derivative(0, 1, sens=np.ones(1))
        )
        (outcome,) = runner.execute([slope])
        assert isinstance(outcome, Result), outcome
        assert outcome.outputs[0] == pytest.approx([-3 * TIP / 0.02], rel=1e-12)
    ruff = str(Path(sys.executable).with_name("ruff"))
    command = [ruff, "format", "--check", "--isolated", "--line-length", "100", name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_printed_commands_run(tmp_path: Path) -> None:
    """They are the same for all kinds."""
    status, out, errors = run_here("init", "my-beam.py", cwd=tmp_path)
    assert (status, errors) == (0, "")
    sweep, plot, serve, call = commands(out)
    for command in (sweep, plot):
        assert command[0] == "farm"
        status, _, errors = run_farm(*command[1:], cwd=tmp_path)
        assert status == 0, errors
    with h5py.File(tmp_path / "my-beam.h5") as file:
        load, thickness = file["theta"][:].T
        expected = TIP * load / 500.0 * (0.02 / thickness) ** 3
        assert file["out_0"][:, 0] == pytest.approx(expected, rel=1e-12)
        assert len(load) == 256
    assert (tmp_path / "my-beam.html").stat().st_size > 1000
    assert serve[:2] == ["farm", "serve"]
    assert call[:2] == ["farm", "call"]
    with serving(tmp_path, *serve[2:]) as served:
        to = ["--to", str(served.folder), "--json"]
        status, out, errors = run_farm(*call[1:], *to, cwd=tmp_path)
    assert status == 0, errors
    assert json.loads(out)["outputs"] == {"deflection": pytest.approx([TIP], rel=1e-12)}


def test_a_path_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "two words").mkdir()
    status, out, _ = run_here("init", "two words/beam.py", cwd=tmp_path)
    assert status == 0
    sweep, _, serve, _ = commands(out)
    assert sweep[2] == serve[2] == "two words/beam.py"
    assert sweep[-1] == "beam.h5"


def test_model_py_is_the_default(tmp_path: Path) -> None:
    assert run_here("init", cwd=tmp_path)[0] == 0
    assert (tmp_path / "model.py").read_text() == KINDS["function"]


def test_missing_packages_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    _, out, _ = run_here("init", "a.py", "--kind", "jax", cwd=tmp_path)
    assert commands(out)[0] == ["pip", "install", "modelfarm[jax]"]
    _, out, _ = run_here("init", "b.py", cwd=tmp_path)
    assert commands(out)[0][:2] == ["farm", "sweep"]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("there.py", "there.py exists and is left as it is; choose another name"),
        ("model", "the file is 'model'; expected letters, digits, '_', '-', '.' and the end .py"),
        ("a=b.py", "the file is 'a=b.py'; expected letters"),
        ("jax.py", "jax.py would hide the package jax from programs beside it"),
        ("nosuch/model.py", "nosuch/model.py: No such file or directory; check the path"),
    ],
)
def test_a_refused_name_is_one_line(tmp_path: Path, name: str, complaint: str) -> None:
    (tmp_path / "there.py").write_text("kept")
    assert_one_line(run_here("init", name, cwd=tmp_path), complaint)
    assert (tmp_path / "there.py").read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["there.py"]
