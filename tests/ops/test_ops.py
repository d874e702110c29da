"""`farm.ops`: found without an import, loads no framework, and names the extra that is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRAMEWORKS = {"jax", "torch", "pytensor"}


def test_no_framework_is_loaded_before_it_is_needed() -> None:
    script = f"""
import sys, farm
assert "farm.ops" not in sys.modules
assert farm.ops.jax_op.__module__ == "farm.ops"
print(sorted({FRAMEWORKS!r} & set(sys.modules)))
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert found.stdout.strip() == b"[]"


@pytest.mark.parametrize("framework", sorted(FRAMEWORKS))
def test_a_missing_framework_is_named_with_its_extra(framework: str) -> None:
    script = f"""
import sys
sys.modules[{framework!r}] = None
import farm
try:
    farm.ops.{framework}_op(None)
except ImportError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    expected = f'farm.ops.{framework}_op needs {framework}: pip install "modelfarm[{framework}]" ('
    assert found.stdout.decode().startswith(expected)
