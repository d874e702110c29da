"""The names of `import farm`: all exist, the same for type checkers, and cheap for a worker."""

from __future__ import annotations

import inspect
import subprocess
import sys
import types

import pytest

import farm
from farm.sweep import api
from farm.sweep.space import parameters

HEAVY = {"h5py", "pandas", "xarray", "fastapi", "zmq", "rich", "urllib3", "scipy"}


@pytest.mark.parametrize("name", farm.__all__)
def test_name_is_there_and_is_no_module(name: str) -> None:
    assert not isinstance(getattr(farm, name), types.ModuleType)


def test_sweep_is_the_function_whatever_is_imported_before() -> None:
    assert parameters.__name__ == "farm.sweep.space.parameters"
    with pytest.raises(TypeError, match="out"):
        farm.sweep("model.py", {})  # type: ignore[call-arg]  # the missing argument is the test
    assert farm.Sweep is api.Sweep


def test_the_names_are_listed() -> None:
    assert dir(farm) == sorted([*farm.__all__, "ops"])


def test_every_function_shows_its_own_signature_and_text() -> None:
    for name in farm.__all__:
        public = getattr(farm, name)
        if inspect.isfunction(public):
            assert public.__doc__, name
            kinds = {p.kind for p in inspect.signature(public).parameters.values()}
            assert inspect.Parameter.VAR_POSITIONAL not in kinds or name in ("choice", "serve")
    assert "out" in inspect.signature(farm.sweep).parameters


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sweeep'"):
        farm.sweeep  # type: ignore[attr-defined]  # noqa: B018  # that it is unknown is the test


def test_a_model_needs_little() -> None:
    """A worker that imports a model's file loads numpy and no other library."""
    script = f"import sys, farm; print(sorted({HEAVY!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert found.stdout.strip() == b"[]"
