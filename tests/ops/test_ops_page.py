"""The examples of docs/ops.md work; tests/samplers has the one that needs PyMC."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import farm
from farm.client import Client

PAGE = (Path(__file__).parents[2] / "docs" / "ops.md").read_text()
SHOWN = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
X = np.random.default_rng(1).standard_normal((8, 2))


@pytest.fixture
def names(client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Return the names that the examples use without defining them."""
    monkeypatch.setattr(farm, "connect", lambda: Kept(client))
    yield {"client": client, "farm": farm, "x": X[0], "X": X}
    jax.config.update("jax_enable_x64", False)


class Kept:
    """A client that the end of a block does not close."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __enter__(self) -> Client:
        return self.client

    def __exit__(self, *error: object) -> None:
        pass


def test_jax(names: dict[str, Any]) -> None:
    exec(compile(SHOWN[0], "docs/ops.md, block 0", "exec"), names)
    expected = -0.5 * (X**2).sum(-1)
    assert np.allclose(names["value"], expected[0])
    assert np.allclose(names["gradient"], -X[0])
    assert np.allclose(names["values"], expected)
    assert np.allclose(names["gradients"], -X)
    assert names["f"].counts.requests == 3


def test_torch(names: dict[str, Any]) -> None:
    exec(compile(SHOWN[1], "docs/ops.md, block 1", "exec"), names)
    assert np.allclose(names["x"].grad, -X)
    assert np.allclose(names["gradients"], -X)
    assert names["f"].counts.requests == 1


def test_every_block_is_tested() -> None:
    assert len(SHOWN) == 3
