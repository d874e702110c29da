"""The versions of installed packages, from their own files."""

from __future__ import annotations

import importlib.metadata
import sysconfig
from pathlib import Path

import pytest

from farm.worker.installed import version_in


def test_it_finds_what_importlib_metadata_finds() -> None:
    folder = Path(sysconfig.get_path("purelib"))
    for package in ("numpy", "click", "orjson", "pytest"):
        assert version_in(folder, package) == importlib.metadata.version(package)


def described(folder: Path, name: str, text: str) -> None:
    (folder / name).mkdir()
    (folder / name / "METADATA").write_text(text)


@pytest.mark.parametrize("asked", ["a.b-c", "A_B_C", "a-b-c"])
def test_a_name_has_several_spellings(tmp_path: Path, asked: str) -> None:
    described(tmp_path, "a_b_c-1.0.dist-info", "Name: a.b-c\nVersion: 1.0+local\n\nVersion: 2")
    described(tmp_path, "a_b-3.0.dist-info", "Name: a-b\nVersion: 3.0\n\n")
    assert version_in(tmp_path, asked) == "1.0+local"


def test_what_is_not_plain_is_not_guessed(tmp_path: Path) -> None:
    assert version_in(tmp_path, "a") == ""
    (tmp_path / "a-1.0.dist-info").mkdir()
    assert version_in(tmp_path, "a") == "", "no METADATA"
    (tmp_path / "a-1.0.dist-info" / "METADATA").write_text("Name: a\n\nVersion: 2.0\n")
    assert version_in(tmp_path, "a") == "", "the description is no header"
    described(tmp_path, "b-1.0.dist-info", "Version: 1.0\n\n")
    described(tmp_path, "b-2.0.dist-info", "Version: 2.0\n\n")
    assert version_in(tmp_path, "b") == "", "two releases, one of which is left over"
