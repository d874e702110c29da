"""The examples of docs/ops.md work as they stand; tests/samplers has the one that needs PyMC."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.dispatcher_farm import serving

PAGE = (Path(__file__).parents[2] / "docs" / "ops.md").read_text()
SHOWN = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working folder with the page's model, and the run folder of a farm that serves it."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "density.py").write_text(SHOWN[0])
    with serving(folder, "density.py", "--workers", "1") as farm:
        (folder / "farm-run").symlink_to(farm.folder)
        yield folder


def shown(number: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run a block of the page in the folder; return its names."""
    monkeypatch.chdir(folder)
    for name in ("FARM_CONNECTION", "FARM_URL"):
        monkeypatch.delenv(name, raising=False)
    names: dict[str, Any] = {}
    exec(compile(SHOWN[number], f"docs/ops.md, block {number}", "exec"), names)
    return names


def test_jax(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        names = shown(1, folder, monkeypatch)
    finally:
        jax.config.update("jax_enable_x64", False)
    X = names["X"]
    expected = -0.5 * (X**2).sum(-1)
    assert np.allclose(names["value"], expected[0])
    assert np.allclose(names["gradient"], -X[0])
    assert np.allclose(names["values"], expected)
    assert np.allclose(names["gradients"], -X)
    assert names["f"].counts.requests == 3


@pytest.mark.slow
def test_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = shown(2, folder, monkeypatch)
    assert np.allclose(names["x"].grad, -names["X"])
    assert np.allclose(names["gradients"], -names["X"])
    assert names["f"].counts.requests == 1


def test_every_block_is_tested() -> None:
    assert len(SHOWN) == 4
