"""The names of `import farm`: all exist, the same for type checkers, and cheap for a worker."""

from __future__ import annotations

import inspect
import subprocess
import sys
import types

import pytest

import farm
from farm.sweep import session
from farm.sweep.space import parameters

HEAVY = {
    *("h5py", "pandas", "xarray", "fastapi", "pydantic", "uvicorn", "uvloop", "zmq", "rich"),
    *("urllib3", "scipy", "asyncio", "ssl", "email", "importlib.metadata", "tomllib"),
    *("subprocess", "tempfile", "multiprocessing", "concurrent.futures"),
}
"""What farm or its extras use but neither a model nor the help of the commands needs."""

FOR_ARRAYS = {"numpy", "dataclasses", "orjson", "json"}


@pytest.mark.parametrize("name", farm.__all__)
def test_name_is_there_and_is_no_module(name: str) -> None:
    assert not isinstance(getattr(farm, name), types.ModuleType)


def test_sweep_is_the_function_whatever_is_imported_before() -> None:
    assert parameters.__name__ == "farm.sweep.space.parameters"
    with pytest.raises(TypeError, match="out"):
        farm.sweep("model.py", {})  # type: ignore[call-arg]  # the missing argument is the test
    assert farm.Sweep is session.Sweep


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


def imported(code: str) -> set[str]:
    """Return the modules in a new process that has run `code`."""
    script = f"import sys\n{code}\nprint(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    return set(found.stdout.decode().splitlines()[-1].split())


def test_the_import_alone_needs_next_to_nothing() -> None:
    found = imported("import farm")
    assert found & {*HEAVY, *FOR_ARRAYS} == set()
    assert {name for name in found if name.startswith("farm.")} == {"farm.version"}


def test_the_help_needs_click_and_little_else() -> None:
    help_ = "from farm.cli import run; run(['--help'])"
    found = imported(help_)
    assert "click" in found
    assert found & {*HEAVY, *FOR_ARRAYS, "logging"} == set()
    ours = {name for name in found if name.startswith("farm.") and not name.startswith("farm.cli")}
    assert ours == {"farm.errors", "farm.version", "farm.wording"}


def test_a_model_needs_little() -> None:
    """A program that imports a model's file loads numpy and no other library."""
    found = imported("import farm; farm.Model, farm.model, farm.tensor, farm.Inputs")
    assert "numpy" in found
    assert found & HEAVY == set()


def test_modules_of_values_are_there_without_an_import_of_their_own() -> None:
    names = ("errors", "units", "dtypes", "call", "functions")
    found = imported(f"import farm; {'; '.join(f'farm.{name}.__file__' for name in names)}")
    assert found >= {f"farm.{name}" for name in names}


@pytest.mark.parametrize("before", ["", "import farm; farm.model, farm.sweep; "])
def test_the_functions_stay_when_the_modules_of_their_names_are_imported(before: str) -> None:
    check = "import inspect; assert all(map(inspect.isfunction, (farm.model, farm.sweep)))"
    found = imported(f"{before}import farm.model, farm.sweep; {check}")
    assert found >= {"farm.model", "farm.sweep"}
