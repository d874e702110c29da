"""Runs the tests of models on one thread, like the models themselves."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="module")
def _libraries(request: pytest.FixtureRequest) -> None:
    """Import what a file names under `if TYPE_CHECKING` as its first test begins.

    Torch and BoTorch take seconds, in each process that collects tests.
    """
    importlib.import_module("farm.experiment.models")  # first: it configures what it imports
    file = request.module.__file__
    for node in ast.parse(Path(file).read_text()).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), file, "exec"), vars(request.module))


@pytest.fixture(autouse=True)
def _one_thread(_libraries: None) -> Iterator[None]:
    from farm.experiment.models.libraries import alone

    with alone(0):
        yield
