"""Descriptors: the built-in ones are valid, and those of other packages are found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from farm.descriptors import BUILT_IN, Protocol, built_in, every, installed, resolve
from farm.errors import Unavailable
from farm.settings import Settings

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r'"(\w+(?:\.\w+)+:\w+)"')


def named_in(module: str) -> list[str]:
    """Yield the functions that a descriptor names."""
    return NAMED.findall((ROOT / f"{module.replace('.', '/')}.py").read_text())


@pytest.mark.parametrize("module", BUILT_IN)
def test_a_descriptor_names_functions_of_its_own_room(module: str) -> None:
    names = named_in(module)
    assert names
    for name in names:
        own = module.removesuffix("protocol"), "farm.experiment.server:"  # AEPsych's experiments
        assert name.startswith(own), name
        assert callable(resolve(name)), name


def test_every_room_is_in_the_table() -> None:
    rooms = {path.parent.name for path in (ROOT / "farm" / "protocols").glob("*/protocol.py")}
    assert [module.split(".")[2] for module in BUILT_IN] == [p.name for p in built_in()]
    assert rooms == {protocol.name for protocol in built_in()}
    folders = {path.parent.name for path in (ROOT / "farm" / "protocols").glob("*/__init__.py")}
    assert folders == rooms


def test_no_option_is_called_like_another_or_like_a_setting() -> None:
    names = [option.name for protocol in built_in() for option in protocol.options]
    names += [field.name for field in fields(Settings)]
    assert len(names) == len(set(names))


@pytest.fixture
def fresh() -> Iterator[None]:
    installed.cache_clear()
    yield
    installed.cache_clear()


def package(folder: Path, descriptor: str, *, value: str = "odd_protocol:PROTOCOL") -> None:
    """Install a package with this descriptor, in a folder of the module search path."""
    info = folder / "odd-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[farm.protocols]\nodd = {value}\n")
    (folder / "odd_protocol.py").write_text(
        f"from farm.descriptors import *\nPROTOCOL = {descriptor}\n"
    )


@pytest.mark.usefixtures("fresh")
def test_a_protocol_of_another_package_comes_after_the_built_in_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "Protocol('odd', 'odd:serve')")
    monkeypatch.syspath_prepend(tmp_path)
    assert every() == (*built_in(), Protocol("odd", "odd:serve"))


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("descriptor", "value", "complaint"),
    [
        ("Protocol('mip', 'odd:serve')", "odd_protocol:PROTOCOL", "name 'mip', which"),
        (
            "Protocol('odd', 'odd:serve', options=(Option('aepsych'),))",
            "odd_protocol:PROTOCOL",
            "option 'aepsych', which",
        ),
        ("'odd'", "odd_protocol:PROTOCOL", "is a str; expected a farm.descriptors.Protocol"),
        ("1 / 0", "odd_protocol:PROTOCOL", "cannot be loaded: ZeroDivisionError"),
        ("None", "odd_elsewhere:PROTOCOL", "cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_one_that_cannot_be_used_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, descriptor: str, value: str, complaint: str
) -> None:
    package(tmp_path, descriptor, value=value)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "odd_protocol", raising=False)
    with pytest.raises(Unavailable, match=rf"the protocol 'odd' of odd .*{re.escape(complaint)}"):
        installed()
