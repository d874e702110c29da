"""Checks of Python, packages and variables."""

from __future__ import annotations

import os
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from farm.doctor import packages
from farm.doctor.finding import Weight

NEEDED = [
    "click>=8.2",
    "numpy>=2.0",
    "torch>=2.8; extra == 'torch'",
    "mypy>=9; extra == 'dev'",
    "modelfarm[xarray]; extra == 'examples'",
    "h5netcdf>=1.3; python_version < '4' and extra == 'xarray'",
]


def checked(**installed: str) -> list[tuple[Weight, str]]:
    """Return weight and text of the findings for these installed versions."""

    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    return [(each.weight, each.text) for each in packages.versions(NEEDED, version)]


def test_right_versions_are_one_line() -> None:
    right = {"click": "8.2.1", "numpy": "2.0.0", "torch": "2.10.0+cu130"}
    assert checked(**right) == [(Weight.OK, "3 packages, none too old")]


def test_missing_and_old_packages_are_wrong() -> None:
    assert checked(numpy="1.26.4") == [
        (Weight.WRONG, "click is missing"),
        (Weight.WRONG, "numpy is 1.26.4; farm needs 2.0 or newer"),
    ]


def test_old_packages_of_an_extra_are_a_warning() -> None:
    right = {"click": "8.2", "numpy": "2.0", "mypy": "1.0"}
    assert checked(**right, torch="2.7.1", h5netcdf="1.2") == [
        (Weight.WARNING, "torch is 2.7.1; farm needs 2.8 or newer for [torch]"),
        (Weight.WARNING, "h5netcdf is 1.2; farm needs 1.3 or newer for [xarray]"),
    ]


@pytest.mark.parametrize(
    ("older", "newer"), [("1.9", "1.10"), ("2.8rc1", "2.8.1"), ("0.9", "2024.1"), ("2", "2.0.1")]
)
def test_versions_are_compared_by_their_numbers(older: str, newer: str) -> None:
    assert packages.release(older) < packages.release(newer)
    assert packages.release("2.0.0") == packages.release("2")


def test_this_environment_is_right() -> None:
    assert [f.weight for f in packages.versions()] == [Weight.OK]
    (python,) = packages.python_is_new_enough()
    assert python.weight is Weight.OK
    assert sys.executable in python.text


def test_a_python_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    (python,) = packages.python_is_new_enough()
    assert (python.weight, "farm needs 3.11" in python.text) == (Weight.WRONG, True)


BOTH = "'--enable-optimizations' '--with-lto'"
SLOW = "; the front door is about 25% slower than with Debian's, uv's or conda-forge's"
ONE_THREAD = "; farm's front door has one thread, which is slower without the GIL"


DEBUG = "; several times slower"
ENABLED, SHARED = (
    "'--enable-optimizations'",
    {"CONFIG_ARGS": "'--enable-shared'", "Py_ENABLE_SHARED": 1},
)
DEBIAN = {"PGO_PROF_USE_FLAG": ""}


@pytest.mark.parametrize(
    ("settings", "words", "cost"),
    [
        ({"CONFIG_ARGS": BOTH}, "PGO, LTO", ""),
        ({"CONFIG_ARGS": "'--with-lto=full'"}, "no PGO, LTO", SLOW),
        ({"CONFIG_ARGS": f"{ENABLED[:-1]}=yes' '--with-lto=no'"}, "PGO, no LTO", ""),
        ({"CONFIG_ARGS": f"{ENABLED[:-1]}=no'"}, "no PGO, no LTO", SLOW),
        ({**SHARED, "Py_DEBUG": 0}, "no PGO, no LTO, shared libpython", SLOW),
        (
            {**SHARED, "CONFIG_ARGS": f"{BOTH} '--enable-static-libpython-for-interpreter'"},
            "PGO, LTO",
            "",
        ),
        ({**SHARED, **DEBIAN}, "PGO and LTO by Debian", ""),
        ({"CONFIG_ARGS": "'--with-lto=full'", **DEBIAN}, "no PGO, LTO", SLOW),
        ({"CONFIG_ARGS": ENABLED, **DEBIAN}, "PGO, no LTO", ""),
        ({"CONFIG_ARGS": BOTH, "Py_GIL_DISABLED": 1}, "free-threaded, PGO, LTO", ONE_THREAD),
        (
            {"CONFIG_ARGS": "'--disable-gil'", "Py_GIL_DISABLED": 1},
            "free-threaded, no PGO, no LTO",
            ONE_THREAD + SLOW,
        ),
        ({}, "PGO and LTO not known", ""),
        (
            {**SHARED, **DEBIAN, "Py_DEBUG": 1},
            "debug build, no PGO, no LTO, shared libpython",
            DEBUG,
        ),
        ({"Py_DEBUG": 1}, "debug build, PGO and LTO not known", DEBUG),
    ],
)
def test_how_python_is_built_and_what_that_costs(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], words: str, cost: str
) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", settings.get)
    assert packages.build() == words
    (found,) = packages.interpreter()
    assert (found.weight is Weight.WARNING, found.text) == (cost == DEBUG, words + cost)
    assert found.remedy == ("use a release build" if cost == DEBUG else "")


def test_the_program_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert packages.program_is_this_one()[0].weight is Weight.OK
    (tmp_path / "farm").touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{Path(sys.executable).parent}")
    (other,) = packages.program_is_this_one()
    assert (other.weight, "another installation" in other.text) == (Weight.WARNING, True)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert packages.program_is_this_one()[0].text == "farm is not on PATH"


def test_variables_that_name_a_farm(tmp_path: Path) -> None:
    assert [f.text for f in packages.environment({})] == ["no farm is set"]
    right = {"FARM_CONNECTION": str(tmp_path), "FARM_URL": "HTTP://a:secret@h:1"}
    assert [f.text for f in packages.environment(right)] == ["FARM_CONNECTION and FARM_URL set"]
    wrong = packages.environment({"FARM_CONNECTION": "/no/such", "FARM_URL": "h:1"})
    assert [f.weight for f in wrong] == [Weight.WRONG] * 2
    assert "/no/such, which does not exist" in wrong[0].text
