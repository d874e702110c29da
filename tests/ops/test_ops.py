"""`farm.ops`: found without an import, loads no framework, and names the extra that is missing."""

from __future__ import annotations

import subprocess
import sys

FRAMEWORKS = ("jax", "torch", "pytensor")


def test_no_framework_is_loaded_before_it_is_needed() -> None:
    script = f"""
import sys, farm
assert "farm.ops" not in sys.modules
assert farm.ops.jax_op.__module__ == "farm.ops"
print([name for name in {FRAMEWORKS!r} if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert found.stdout.strip() == b"[]"


def test_a_missing_framework_is_named_with_its_extra() -> None:
    script = f"""
import sys, farm
for name in {FRAMEWORKS!r}:
    sys.modules[name] = None
    try:
        getattr(farm.ops, f"{{name}}_op")(None)
    except ImportError as error:
        print(error)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    lines = found.stdout.decode().splitlines()
    for name, line in zip(FRAMEWORKS, lines, strict=True):
        expected = f'farm.ops.{name}_op needs {name}: pip install "modelfarm[{name}]" ('
        assert line.startswith(expected)
